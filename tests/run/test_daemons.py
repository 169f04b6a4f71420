"""libvirt's daemons in a launcher pod: which are started, started again, and stopped."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcherkit.errors import LIBVIRT_NOT_THERE
from launcherkit.run.connection import SYSTEM
from launcherkit.run.daemons import Daemons
from tests.support.errors import raises_code

BOTH = ["/usr/sbin/virtlogd", "/usr/sbin/virtqemud"]


class Processes:
    """Children that run until a signal ends them."""

    def __init__(self) -> None:
        self.running: dict[int, str] = {}
        self.signals: list[tuple[str, int]] = []
        self.ignored: set[int] = set()
        self._started: dict[int, str] = {}

    def start(self, command: Sequence[str]) -> int:
        pid = 100 + len(self._started)
        self.running[pid] = self._started[pid] = command[0]
        return pid

    def is_running(self, pid: int) -> bool:
        return pid in self.running

    def signal(self, pid: int, number: int) -> None:
        self.signals.append((self._started[pid], number))
        if number not in self.ignored:
            self.running.pop(pid, None)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def daemons(processes: Any, run: Path, *names: str, uri: str = SYSTEM, allowed: bool = True) -> Daemons:
    """With these programs on the machine."""
    return Daemons(
        uri,
        processes,
        allowed=allowed,
        run=str(run),
        find=lambda name: f"/usr/sbin/{name}" if name in names else None,
    )


def test_the_modular_daemon_is_preferred_and_each_is_started_once(tmp_path: Path) -> None:
    started = daemons(Processes(), tmp_path, "virtlogd", "virtqemud", "libvirtd")
    assert started.start() == BOTH
    assert started.start() == []


def test_a_machine_without_a_daemon_for_logs_has_the_other_one_started(tmp_path: Path) -> None:
    assert daemons(Processes(), tmp_path, "libvirtd").start() == ["/usr/sbin/libvirtd"]
    assert daemons(Processes(), tmp_path, "virtlogd").start() == ["/usr/sbin/virtlogd"]


def test_one_that_has_ended_is_started_again_and_the_other_left_alone(tmp_path: Path) -> None:
    processes = Processes()
    started = daemons(processes, tmp_path, "virtlogd", "virtqemud")
    started.start()
    del processes.running[100]
    assert started.start() == BOTH[:1]
    del processes.running[101]
    assert started.start() == BOTH[1:]


@pytest.mark.parametrize(
    ("theirs", "answering"), [("virtlogd-sock", BOTH[:1]), ("virtqemud-sock", BOTH[1:]), ("libvirt-sock", BOTH[1:])]
)
def test_what_answers_already_is_somebody_elses(tmp_path: Path, theirs: str, answering: list[str]) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / theirs))
        names = ("virtlogd", "virtqemud")
        assert daemons(Processes(), tmp_path, *names).start() == BOTH  # the file alone is left over
        listening.listen()
        assert daemons(Processes(), tmp_path, *names).start() == [name for name in BOTH if name not in answering]


def test_none_is_started_for_another_libvirt_or_where_that_is_not_wanted(tmp_path: Path) -> None:
    names = ("virtlogd", "virtqemud")
    assert daemons(Processes(), tmp_path, *names, uri="qemu+tcp://other/system").start() == []
    assert daemons(Processes(), tmp_path, *names, allowed=False).start() == []


def test_one_that_can_not_be_started_is_named(tmp_path: Path) -> None:
    class Refusing(Processes):
        def start(self, command: Sequence[str]) -> int:
            raise PermissionError(13, "Permission denied")

    with raises_code(LIBVIRT_NOT_THERE, match=r"^/usr/sbin/virtlogd can't be started: Permission denied$"):
        daemons(Refusing(), tmp_path, "virtlogd").start()


def test_they_are_asked_to_end_the_last_one_first(tmp_path: Path) -> None:
    processes, clock = Processes(), Clock()
    started = daemons(processes, tmp_path, "virtlogd", "virtqemud")
    started.start()
    started.stop(clock.wait, clock)
    asked = [name for name, number in processes.signals if number == signal.SIGTERM]
    assert asked == ["/usr/sbin/virtqemud", "/usr/sbin/virtlogd"]
    assert clock.now == 0.0
    assert started.start() == BOTH


def test_one_that_does_not_end_in_ten_seconds_is_killed(tmp_path: Path) -> None:
    processes, clock = Processes(), Clock()
    processes.ignored.add(signal.SIGTERM)
    started = daemons(processes, tmp_path, "virtlogd")
    started.start()
    started.stop(clock.wait, clock)
    assert [number for _, number in processes.signals] == [signal.SIGTERM, signal.SIGKILL]
    assert 10.0 <= clock.now < 10.5  # it is looked at five times a second
    assert processes.running == {}
