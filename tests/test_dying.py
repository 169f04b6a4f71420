"""Processes that are killed as they make a change, by which other tests kill the project's own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.dying import MACHINE, Change, Life, command, life, live, rounds
from tests.support.hooks import ROOT

pytestmark = pytest.mark.skipif(os.uname().machine != MACHINE, reason=f"system calls of {MACHINE}")

ENV = os.environ | {"PYTHONPATH": str(ROOT)}
CHANGES = ["openat a.new", "write a.new", "rename a.new", "mkdir b", "openat b/c", "write b/c", "unlink b/c", "rmdir b"]
"""Of `work`, in order, the last five by a process of its own."""


def work(folder: Path) -> None:
    """Make changes of all kinds, with a thread and another process, and others elsewhere."""
    new, b = folder / "a.new", folder / "b"

    def first() -> None:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT), "w") as file:
            file.write("content")
        new.rename(folder / "a")

    thread = threading.Thread(target=first)
    thread.start()
    thread.join()
    (folder.parent / "elsewhere").write_text("content")
    (folder / "a").read_text()
    code = "import os; os.mkdir('b'); open('b/c', 'w').write('c'); os.unlink('b/c'); os.rmdir('b')"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=False)
    (folder.parent / "end").touch()
    assert not b.exists(), "the other process has not come to its end"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    return made


def clear(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def test_each_change_can_be_the_last_and_is_not_made(folder: Path) -> None:
    for number, change in enumerate(CHANGES, 1):
        call, name = change.split()
        found = live(work, folder, below=[folder], die_at=number)
        assert found == Life(number - 1, Change(call, str(folder / name)), -9)
        assert (folder / "a").exists() == (number > 3)
        assert (folder / "b/c").exists() == (number in (6, 7))
        clear(folder)
    assert not (folder.parent / "end").exists()


def test_who_lives_to_the_end_makes_all_changes(folder: Path) -> None:
    assert live(work, folder, below=[folder]) == Life(len(CHANGES), None, 0)
    assert (folder.parent / "end").exists()


def test_of_two_processes_one_can_be_killed(folder: Path) -> None:
    unlink = CHANGES.index("unlink b/c")
    first = live(work, folder, below=[folder], die_at=unlink + 1, whom="first")
    assert (first.code, (folder / "b").exists(), (folder.parent / "end").exists()) == (-9, False, False)
    clear(folder)
    caller = live(work, folder, below=[folder], die_at=unlink + 1, whom="caller")
    assert (caller.code, (folder / "b/c").exists(), (folder.parent / "end").exists()) == (1, True, True)
    assert first.last == caller.last == Change("unlink", str(folder / "b/c"))


def test_a_program_is_killed_too_or_ends_as_ever(folder: Path) -> None:
    report, code = folder.parent / "report", "import os; os.mkdir('a'); os.mkdir('b'); raise SystemExit(3)"
    for die_at, ended in ((2, Life(1, Change("mkdir", str(folder / "b")), -9)), (0, Life(2, None, 3))):
        done = subprocess.run(command([sys.executable, "-c", code], [folder], die_at, report), cwd=folder, env=ENV)
        assert (done.returncode, life(report)) == (ended.code, ended)
        clear(folder)


def test_a_socket_is_a_change(folder: Path) -> None:
    code = "import socket; socket.socket(socket.AF_UNIX).bind('s'); socket.socket().bind(('127.0.0.1', 0))"
    report = folder.parent / "report"
    subprocess.run(command([sys.executable, "-c", code], [folder], 1, report), cwd=folder, env=ENV)
    assert life(report) == Life(0, Change("bind", str(folder / "s")), -9)
    assert list(folder.iterdir()) == []


def test_kills_go_on_until_enough_were_where_it_matters_but_not_for_ever() -> None:
    hits = list[int]()
    assert [*rounds(3, lambda: True)] == [0, 1, 2]
    for number in rounds(3, lambda: len(hits) > 1):
        if number % 4 == 3:
            hits.append(number)
    assert hits == [3, 7]
    with pytest.raises(AssertionError, match="hardly any of 30 kills"):
        list(rounds(3, lambda: False))
