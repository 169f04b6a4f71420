"""The command of the lab, as far as it needs no machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def lab(cache: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launcherkit_lab", *words]
    variables = {**os.environ, "LAUNCHERKIT_KERNEL_CACHE": str(cache), **env}
    return subprocess.run(command, capture_output=True, text=True, env=variables)


def test_the_ready_machines_are_listed_on_standard_output(tmp_path: Path) -> None:
    done = lab(tmp_path, "machines")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["hgx", "nvme-vfs", "rtx2", "vgpu", "workstation"]


@pytest.mark.parametrize("words", [("run", "--", "true"), ("shell",), ("down",)])
def test_without_a_machine_a_command_says_how_to_start_one(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = lab(tmp_path, *words)
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr == "launcherkit-lab: error: no machine is up; `launcherkit-lab up` starts one\n"


def test_a_machine_that_can_not_be_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("memory: 1\n")
    done = lab(tmp_path, "up", "--machine", str(path))
    assert (done.returncode, done.stdout) == (65, "")
    assert done.stderr.startswith(f"launcherkit-lab: error: {path}: memory: Input should be greater than")


def test_run_takes_a_command(tmp_path: Path) -> None:
    assert lab(tmp_path, "run").returncode == 2


def test_missing_programs_are_named_with_the_command_that_gets_them(tmp_path: Path) -> None:
    """Which are missing depends on this machine, but for those of /usr/sbin all are on PATH."""
    done = lab(tmp_path, "up", PATH=str(tmp_path))
    assert done.returncode == 69
    assert "apt-get install --no-install-recommends " in done.stderr or "x86_64" in done.stderr
