"""A machine's boot, which may hang: it is given up and begun again."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from launcherkit_lab.machine import Outcome, Running, booted


def running(folder: Path, *command: str) -> Running:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return Running(process, folder, lambda _: None)


def boots(folder: Path, *hang: bool) -> tuple[Callable[[], Running], list[Running]]:
    """Machines that hang or boot, one after the other; and those that were started."""
    left, started = list(hang), list[Running]()

    def boot() -> Running:
        if not left.pop(0):
            (folder / "begun").touch()
        started.append(running(folder, "sleep", "inf"))
        return started[-1]

    return boot, started


@pytest.mark.parametrize(("hang", "tries"), [((False,), 1), ((True, False), 2), ((True, True, True), 3)])
def test_a_boot_that_hangs_is_ended_and_another_one_begun(tmp_path: Path, hang: tuple[bool, ...], tries: int) -> None:
    boot, started = boots(tmp_path, *hang)
    with booted(boot, seconds=0) as last:
        assert len(started) == tries
        assert last is started[-1]
        assert [one.is_up() for one in started] == [False] * (tries - 1) + [True]


def test_a_machine_that_ends_while_it_boots_is_not_started_again(tmp_path: Path) -> None:
    (tmp_path / "exit").write_text("3\n")
    last = booted(lambda: running(tmp_path, "echo", "no root"), seconds=float("inf"))
    assert last.wait(1) == Outcome(3, "no root")
