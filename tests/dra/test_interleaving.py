"""Whatever happens when: nothing is lost, nothing is left, and no group is in two places."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

import pytest

from tests.dra.interleaving import interleave
from tests.dra.kills import kill_and_see
from tests.dra.node import running_node
from tests.support.dying import MACHINE
from tests.support.hosttree import HostTree
from tests.tiers import KILLS as KILLS_VARIABLE

KILLS = int(os.environ.get(KILLS_VARIABLE, "20"))


def _all(folder: Path, seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        (folder / str(seed)).mkdir()
        seen.update(asyncio.run(interleave(folder / str(seed), seed)))
    return seen


def test_some_histories(tmp_path: Path) -> None:
    seen = _all(tmp_path, range(15))
    assert min(seen["died"], seen["prepared"], seen["unprepared"]) > 15, seen


@pytest.mark.slow
def test_a_thousand_histories(tmp_path: Path) -> None:
    _all(tmp_path, range(1000, 2000))


@pytest.mark.slow
@pytest.mark.skipif(os.uname().machine != MACHINE, reason=f"system calls of {MACHINE}")
def test_a_process_that_is_killed_at_any_moment(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.card("0000:01:00", group=10)
    tree.card("0000:02:00", group=11)
    tree.function("0000:03:00.0", group=12, driver="vfio-pci")
    tree.function("0000:03:01.0", group=12, driver="vfio-pci")
    with running_node(tree.root) as node:
        kill_and_see(node, KILLS, "gpu")
