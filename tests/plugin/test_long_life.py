"""A daemon that lives long takes no more in the end than in the beginning."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.long_life import node, rounds, thirds

ROUNDS, ALLOCATES, CLAIMS = 14, 400, 40


@pytest.mark.slow
def test_memory_handles_files_and_log_level_off(tmp_path: Path) -> None:
    with node(tmp_path) as made:
        samples = list(rounds(made, ROUNDS, ALLOCATES, CLAIMS))
    first, middle, last = thirds(samples)
    # In the first third what is loaded and kept once is still growing.
    assert last.own < middle.own + 1, "MB; 500 bytes an Allocate, or 5 KB a claim, would be a leak"
    assert last.handles <= first.handles
    assert last.files <= first.files
    assert max(sample.lines for sample in samples) < CLAIMS / 2, "lines are about the kubelet, which restarts each time"
