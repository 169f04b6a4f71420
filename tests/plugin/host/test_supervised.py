"""A program of the operator's runs within its time, and nothing of it is left when it has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcherkit_plugin.file_lock import FileLock
from launcherkit_plugin.host.supervised import LINE_CHARACTERS, ProgramFailed, run_program
from tests.support.hooks import ROOT
from tests.support.waiting import until

ENV = {"PATH": os.defpath}
OURS = """
import sys
from launcherkit_plugin.file_lock import FileLock
from launcherkit_plugin.host.supervised import run_program
lock = FileLock(sys.argv[1])
lock.lock()
run_program(["/bin/sh", "-c", sys.argv[2]], {"PATH": "/usr/bin:/bin"}, 600, [lock.file])
"""


def sh(text: str, seconds: float = 60) -> None:
    run_program(["/bin/sh", "-c", text], ENV, seconds)


def test_it_has_the_environment_that_it_is_given_no_input_and_the_root_as_its_folder(tmp_path: Path) -> None:
    run_program(["/usr/bin/env"], {"A": "1"}, 60)
    out = tmp_path / "out"
    run_program(["/bin/sh", "-c", 'cat; pwd; env >"$1"', "sh", str(out)], {"A": "$(b)"}, 60)
    assert "A=$(b)" in out.read_text().splitlines()
    assert not [line for line in out.read_text().splitlines() if line.startswith(("HOME=", "PYTHON", "PATH="))]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("exit 3", "it ended with exit code 3"),
        ("echo one; echo two >&2; echo; exit 1", "it ended with exit code 1: two"),
        ("kill -9 $$", "it was killed by signal 9"),
        ("printf 'a\\033[1mb\\n'; exit 1", "it ended with exit code 1: a?[1mb"),
    ],
)
def test_how_it_failed_is_said_with_the_last_line_of_what_it_printed(text: str, why: str) -> None:
    with pytest.raises(ProgramFailed) as failed:
        sh(text)
    assert str(failed.value) == why


def test_one_that_is_not_there_can_not_be_started() -> None:
    with pytest.raises(ProgramFailed, match=r"/nowhere: No such file or directory$"):
        run_program(["/nowhere"], ENV, 60)


def test_of_endless_output_the_end_is_kept() -> None:
    with pytest.raises(ProgramFailed) as failed:
        sh("head -c 5000000 /dev/zero | tr '\\0' x; exit 1")
    assert str(failed.value) == f"it ended with exit code 1: {'x' * LINE_CHARACTERS}"


@pytest.mark.parametrize(("text", "seconds"), [("sleep 1000", 0.5), ("exit 0", 60)], ids=["at its time", "by itself"])
def test_when_it_ends_all_that_it_has_started_ends_too(tmp_path: Path, text: str, seconds: float) -> None:
    lock = FileLock(str(tmp_path / "lock"))
    assert lock.try_lock()
    command = ["/bin/sh", "-c", f"setsid sh -c 'sleep 1000 & wait' & {text}"]
    if text == "exit 0":
        run_program(command, ENV, seconds, [lock.file])
    else:
        with pytest.raises(ProgramFailed, match=r"^it has not ended within 0.5 s$"):
            run_program(command, ENV, seconds, [lock.file])
    lock.close()
    assert is_free(tmp_path / "lock")


def test_it_ends_with_whoever_has_started_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    text = f"trap '' TERM; echo $$ >'{pid}.new'; mv '{pid}.new' '{pid}'; while :; do sleep 1; done"
    env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugin'}"}
    with subprocess.Popen([sys.executable, "-c", OURS, tmp_path / "lock", text], env=env) as process:
        until(pid.exists, "the program")
        other = FileLock(str(tmp_path / "lock"))
        assert not other.try_lock()
        other.close()
        process.kill()
    assert is_free(tmp_path / "lock")


def is_free(path: Path) -> bool:
    """Whether nobody has a lock any more; it is waited for."""
    lock = FileLock(str(path))
    try:
        return lock.lock(60)
    finally:
        lock.close()
