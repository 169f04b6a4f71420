"""The helper reads open files as this process would; without its answer nothing counts as closed.

Each test is in a process of its own: the helper is forked before there are threads, and capabilities are gone for good.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcherkit_plugin.host.open_files import CAPABILITIES, capabilities

HAS_BOTH = capabilities() & CAPABILITIES == CAPABILITIES
PATIENCE = 60
_IMPORTS = """
import json, os, signal, subprocess, sys
from launcherkit_plugin.host import open_files
from launcherkit_plugin.host.open_files import *
from launcherkit_plugin.host.processes import read_open_nodes
def allowed(process, line="CapPrm"):
    with open(f"/proc/{process}/status") as file:
        return next(int(row.split()[1], 16) for row in file if row.startswith(line + ":"))
"""


def evaluated(code: str, *arguments: object) -> Any:
    """What a program writes as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS + code, *map(str, arguments)], stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """One in which the host's processes 1, 2 and 812 are, of which the last has a group open."""
    for pid, name in ((1, "systemd"), (2, "kthreadd"), (812, "qemu")):
        (tmp_path / f"{pid}/fd").mkdir(parents=True)
        (tmp_path / f"{pid}/comm").write_text(name + "\n")
    (tmp_path / "812/fd/7").symlink_to("/dev/vfio/44")
    (tmp_path / "812/fd/8").symlink_to("/dev/null")
    return tmp_path


def test_the_helper_answers_every_question_as_this_process_would(proc: Path) -> None:
    code = """
helper = OpenFilesHelper(sys.argv[1])
questions = {}, {"/dev/null": (1, 3)}, {"/dev/null": (1, 5)}
print(json.dumps([[helper(one), read_open_nodes(sys.argv[1], one)] for one in questions]))
"""
    answers = evaluated(code, proc)
    assert [one == other for one, other in answers] == [True] * 3
    assert [sorted(answer[0]) for answer, _ in answers] == [
        ["/dev/vfio/44"],
        ["/dev/null", "/dev/vfio/44"],
        ["/dev/vfio/44"],
    ]
    (proc / "2/comm").write_text("sh\n")
    ((holders, unseen), other), *_ = evaluated(code, proc)
    assert [holders, unseen] == other
    assert "does not show all processes" in unseen


def test_a_helper_that_was_killed_answers_nothing_and_that_can_be_seen(proc: Path) -> None:
    code = """
import select
helper = OpenFilesHelper(sys.argv[1])
os.kill(helper.pid, signal.SIGKILL)
readable, _, _ = select.select([helper], [], [])
print(json.dumps([readable == [helper], helper().is_open(["/dev/vfio/44"]), helper().unseen]))
"""
    is_seen, is_open, unseen = evaluated(code, proc)
    assert is_seen
    assert is_open is None
    assert "gave no answer" in unseen


def test_an_answer_that_does_not_come_is_given_up(proc: Path) -> None:
    code = """
open_files.read_open_nodes = lambda *_: signal.alarm(10) or signal.pause()  # it ends some time
open_files.PATIENCE_SECONDS = 0.01
helper = OpenFilesHelper(sys.argv[1])
answer = helper()
os.kill(helper.pid, signal.SIGKILL)
print(json.dumps([answer.complete, answer.unseen]))
"""
    complete, unseen = evaluated(code, proc)
    assert not complete
    assert "no answer within 0.01 s" in unseen


def test_the_helper_has_nothing_open_but_its_socket_and_nothing_of_its_owner(proc: Path) -> None:
    code = """
kept = os.pipe()
helper = OpenFilesHelper(sys.argv[1])
helper()
files = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{helper.pid}/fd")]
reaped = allowed(helper.pid, "SigIgn") >> signal.SIGCHLD - 1 & 1
print(json.dumps([files, os.readlink(f"/proc/{helper.pid}/cwd"), os.getsid(helper.pid) == helper.pid, reaped]))
"""
    files, folder, is_apart, reaped = evaluated(code, proc)
    assert sorted(file.partition(":")[0] for file in files) == ["/dev/null"] * 3 + ["socket"]
    assert folder == "/"
    assert is_apart, "Ctrl-C in the terminal would end it"
    assert reaped, "processes that have answered would stay"


def test_the_helper_ends_with_its_owner_however_that_ends(proc: Path) -> None:
    code = """
helper = OpenFilesHelper(sys.argv[1])
helper()
print(helper.pid, flush=True)
sys.stdin.read()
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", _IMPORTS + code, str(proc)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with owner:
        assert owner.stdout
        helper = os.pidfd_open(int(owner.stdout.readline()))
        owner.kill()
    assert select.select([helper], [], [], PATIENCE)[0] == [helper]
    os.close(helper)


def test_without_both_capabilities_there_is_no_helper(proc: Path) -> None:
    code = """
keep_capabilities(~(1 << 2))
before = allowed("self")
print(json.dumps([start_helper(sys.argv[1]) is None, before == allowed("self")]))
"""
    assert evaluated(code, proc) == [True, True]


@pytest.mark.skipif(not HAS_BOTH, reason="needs the capabilities SYS_PTRACE and DAC_READ_SEARCH")
def test_the_helper_keeps_two_capabilities_which_its_owner_can_never_have_again(proc: Path) -> None:
    code = """
before = allowed("self")
helper = start_helper(sys.argv[1])
helper()
here = allowed("self"), allowed("self", "CapEff")
print(json.dumps({
    "before": before,
    "here": here,
    "helper": [allowed(helper.pid), allowed(helper.pid, "CapEff")],
    "started": int(subprocess.run(["grep", "CapPrm", "/proc/self/status"], capture_output=True).stdout.split()[1], 16),
    "looks into it": os.access(f"/proc/{helper.pid}/fd/0", os.F_OK),
}))
"""
    seen = evaluated(code, proc)
    others = seen["before"] & ~CAPABILITIES
    assert seen["here"] == [others, others]
    assert seen["helper"] == [CAPABILITIES, CAPABILITIES]
    assert seen["started"] & CAPABILITIES == 0
    assert not seen["looks into it"]
