"""The processes that `launcherkit run` starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcherkit.run.children import Children
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def children() -> Iterator[Children]:
    made = Children()
    yield made
    made.close()


def is_there(pid: int) -> bool:
    """Whether a process runs; one that nobody has buried yet doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


PARENT = """
import sys, time
from launcherkit.run.children import Children
script = "trap 'echo ended >&2; exit' TERM; echo ready >&2; while :; do sleep 0.1; done"
pid = Children().start(["/bin/sh", "-c", script])
print(pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_parent_that_dies_takes_its_children_along(number: int) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert parent.stdout
    assert parent.stderr
    child = int(parent.stdout.readline())
    assert parent.stderr.readline() == "ready\n"
    assert is_there(child)
    parent.send_signal(number)
    parent.wait()
    until(lambda: not is_there(child), "gone")
    assert parent.stderr.read() == "ended\n"  # it was asked, and could tidy up
    parent.stdout.close()
    parent.stderr.close()


def test_a_child_is_the_program_itself_with_its_arguments(children: Children, tmp_path: Path) -> None:
    pid = children.start(["/bin/sh", "-c", f"echo $$ $0 > '{tmp_path}/out'", "-I"])
    until(lambda: not children.is_running(pid), "ended")
    assert (tmp_path / "out").read_text() == f"{pid} -I\n"
    assert children.ended() == ["/bin/sh ended with exit code 0"]


@pytest.mark.parametrize(("path", "error"), [("/no/such/daemon", FileNotFoundError), ("file", PermissionError)])
def test_what_can_not_be_started_is_reported_at_once(
    children: Children, tmp_path: Path, path: str, error: type[OSError]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(error):
        children.start([str(tmp_path / path)])
    assert children.ended() == []


def test_what_is_no_program_ends_and_says_so(children: Children, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF nonsense")
    os.chmod(program, 0o755)
    pid = children.start([str(program)])
    until(lambda: not children.is_running(pid), "ended")
    assert children.ended() == [f"{program} ended with exit code 126"]
