"""`launcherkit run` at a stand-in for libvirt's Python module: a guest's life and console, and libvirt's restarts.

The guest tier does the same with real daemons and guests; here every moment is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from launcherkit import Host, translate
from launcherkit.errors import DOMAIN_IN_THE_WAY, LIBVIRT_NOT_THERE
from launcherkit.pipeline import Translation
from launcherkit.run.children import Ending
from launcherkit.run.connection import Connection
from launcherkit.run.launcher import Settings, World, run_guest
from tests.support.errors import raises_code

DOMAIN = b"<domain type='kvm'><name>gpu-vm</name><devices/></domain>"
RUNNING, SHUTOFF = 1, 5  # virDomainState
SHUT_DOWN, DESTROYED, CRASHED = 1, 2, 3  # virDomainShutoffReason
NO_DOMAIN, INVALID_ARGUMENT = 42, 8  # virErrorNumber
SECURE, INACTIVE, VALIDATE, START_PAUSED = 1, 2, 1, 1
MANAGED_SAVE, SNAPSHOTS, CHECKPOINTS, KEEP_NVRAM, KEEP_TPM = 1, 2, 16, 8, 64


class Refusal(Exception):
    """libvirt's `libvirtError`."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self._message, self._code = message, code

    def get_error_message(self) -> str:
        return self._message

    def get_error_code(self) -> int:
        return self._code


class Module:
    libvirtError = Refusal


class Domain:
    """A domain, with the state that libvirt reports."""

    def __init__(self, libvirt: Libvirt, text: str) -> None:
        self.libvirt, self.text = libvirt, text
        self.state_and_reason = (SHUTOFF, 0)

    def name(self) -> str:
        return "gpu-vm"

    def state(self, flags: int) -> list[int]:
        self.libvirt.answers()
        if self.libvirt.there is not self:
            raise Refusal("no domain", NO_DOMAIN)
        return list(self.state_and_reason)

    def isActive(self) -> int:
        return int(self.state_and_reason[0] == RUNNING)

    def isPersistent(self) -> int:
        return 1

    def createWithFlags(self, flags: int) -> None:
        self.libvirt.said.append("started paused" if flags & START_PAUSED else "started")
        self.state_and_reason = (RUNNING, 0)

    def resume(self) -> None:
        self.libvirt.said.append("resumed")

    def shutdown(self) -> None:
        self.libvirt.said.append("asked to shut down")

    def destroy(self) -> None:
        self.libvirt.said.append("destroyed")
        self.state_and_reason = (SHUTOFF, DESTROYED)

    def undefineFlags(self, flags: int) -> None:
        if flags & KEEP_TPM and not self.libvirt.knows_tpm:
            raise Refusal("unsupported flags (0x40)", INVALID_ARGUMENT)
        assert flags & ~KEEP_TPM == MANAGED_SAVE | SNAPSHOTS | CHECKPOINTS | KEEP_NVRAM
        self.libvirt.said.append("undefined, TPM kept" if flags & KEEP_TPM else "undefined")
        self.libvirt.there = None

    def openConsole(self, device: str | None, stream: Stream, flags: int) -> None:
        self.libvirt.said.append("console opened")


class Stream:
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = iter([*chunks, b""])

    def recv(self, size: int) -> bytes:
        return next(self._chunks)


class Libvirt:
    """A libvirt with one domain at most; it can be away."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.there: Domain | None = None
        self.away = False
        self.knows_tpm = True
        self.prints: list[bytes] = []

    def answers(self) -> None:
        if self.away:
            raise Refusal("End of file while reading data")

    def connect(self, uri: str) -> Connection:
        if self.away:
            raise LIBVIRT_NOT_THERE(f"libvirt does not answer at {uri}", "Start it.", file=uri)
        return Connection(Module, self)

    def isAlive(self) -> int:
        return int(not self.away)

    def listAllDomains(self, flags: int) -> list[Domain]:
        return [] if self.there is None else [self.there]

    def lookupByName(self, name: str) -> Domain:
        self.answers()
        if self.there is None:
            raise Refusal("no domain", NO_DOMAIN)
        return self.there

    def defineXMLFlags(self, text: str, flags: int) -> Domain:
        assert flags == VALIDATE
        self.there = Domain(self, text)
        return self.there

    def getLibVersion(self) -> int:
        return 11_007_000

    def newStream(self, flags: int) -> Stream:
        return Stream(self.prints)

    def close(self) -> None:
        self.said.append("hung up")


class NoProcesses:
    """Children and daemons, of which there are none; what has ended can be told."""

    def __init__(self) -> None:
        self.has_ended: list[str] = []
        self.closed = False
        self.stopped = False

    def start(self) -> list[str]:
        return []

    def stop(self, wait: object, clock: object) -> None:
        self.stopped = True

    def ended(self) -> list[str]:
        ended, self.has_ended = self.has_ended, []
        return ended

    def close(self) -> None:
        self.closed = True


class Days:
    """Wakeups, and a clock that a wait moves on: what is to happen happens then, one thing a wait."""

    def __init__(self) -> None:
        self.now = 100.0
        self.stops = 0
        self.happens: list[Callable[[], object]] = []

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.happens.pop(0)()


def nothing() -> None:
    """The guest runs on."""


class Stage:
    """A launcher with all that it is told about the world, and what it told."""

    def __init__(self, owner: str | None = None) -> None:
        self.libvirt, self.processes, self.days, self.told = Libvirt(), NoProcesses(), Days(), list[str]()
        self.owner = owner or str(uuid4())  # other tests may run in this network namespace, which its lock is for

    def run(self, *happens: Callable[[], object], **settings: Any) -> Ending:
        """The guest's whole life, if that is not longer than what happens in it."""
        self.days.happens = list(happens)
        others: Any = self.processes
        wakeups: Any = self.days
        world = World(self.libvirt.connect, others, others, wakeups, lambda: self.days.now, self.told.append)
        known: dict[str, Any] = {"grace": 30.0, "wait": 5.0, "console": False, "liveness": None}
        return run_guest(Settings("qemu:///system", self.owner, **known | settings), world, made)

    def ends(self, reason: int = SHUT_DOWN) -> None:
        assert self.libvirt.there is not None
        self.libvirt.there.state_and_reason = (SHUTOFF, reason)

    def stop(self) -> None:
        self.days.stops += 1


def made(version: tuple[int, ...] | None) -> Translation:
    return translate(DOMAIN, env={}, host=Host.none())


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.mark.parametrize(
    ("reason", "ending", "words"),
    [
        (SHUT_DOWN, Ending.SHUT_DOWN, "the guest has shut down"),
        (DESTROYED, Ending.DESTROYED, "the guest was destroyed by someone else"),
        (CRASHED, Ending.CRASHED, "the guest or its QEMU has crashed"),
        (99, Ending.FAILED, "the guest has ended, and libvirt does not know how"),
    ],
)
def test_how_a_guest_ended_is_returned_and_told(stage: Stage, reason: int, ending: Ending, words: str) -> None:
    assert stage.run(nothing, lambda: stage.ends(reason)) is ending
    assert stage.told == [words]
    assert stage.libvirt.said == ["started", "undefined, TPM kept", "hung up"]
    assert stage.processes.stopped
    assert stage.processes.closed


def test_a_libvirt_that_cant_keep_a_tpm_forgets_the_domain_all_the_same(stage: Stage) -> None:
    stage.libvirt.knows_tpm = False
    stage.run(stage.ends)
    assert "undefined" in stage.libvirt.said
    assert stage.libvirt.there is None


def test_a_guest_that_is_gone_was_destroyed_by_someone_else(stage: Stage) -> None:
    def undefined() -> None:
        stage.libvirt.there = None

    assert stage.run(undefined) is Ending.DESTROYED


def test_a_stop_asks_the_guest_every_five_seconds_and_ends_with_it(stage: Stage) -> None:
    assert stage.run(stage.stop, *[nothing] * 10, stage.ends) is Ending.SHUT_DOWN
    assert stage.libvirt.said.count("asked to shut down") == 2  # a booting guest ignores the power button
    assert stage.told[0] == "asked to stop: gpu-vm has 30 seconds to shut down"


def test_a_guest_that_takes_too_long_to_stop_is_destroyed(stage: Stage) -> None:
    assert stage.run(stage.stop, *[nothing] * 4, grace=2.0) is Ending.STOPPED_BY_FORCE
    assert stage.libvirt.said[-3:] == ["destroyed", "undefined, TPM kept", "hung up"]
    assert stage.told[-1] == "the guest did not shut down in time and was destroyed"


def test_a_second_stop_does_not_wait_for_the_guest(stage: Stage) -> None:
    assert stage.run(stage.stop, stage.stop) is Ending.STOPPED_BY_FORCE


def test_a_stop_before_the_guest_runs_starts_none(stage: Stage) -> None:
    stage.stop()
    assert stage.run() is Ending.SHUT_DOWN
    assert stage.libvirt.said == []
    assert stage.told == ["asked to stop before the guest ran"]


def test_a_guest_goes_on_while_libvirt_is_away(stage: Stage) -> None:
    def goes() -> None:
        stage.libvirt.away = True

    def returns() -> None:
        stage.libvirt.away = False

    assert stage.run(goes, nothing, stage.stop, returns, stage.ends) is Ending.SHUT_DOWN
    assert stage.libvirt.said.count("started") == 1
    assert stage.told == [
        "libvirt has gone (End of file while reading data); the guest goes on, waiting for libvirt to come back",
        "libvirt is back",
        "asked to stop: gpu-vm has 30 seconds to shut down",
        "the guest has shut down",
    ]


def test_a_libvirt_that_stays_away_ends_the_launcher(stage: Stage) -> None:
    def goes() -> None:
        stage.libvirt.away = True

    with raises_code(LIBVIRT_NOT_THERE):
        stage.run(goes, *[nothing] * 10, wait=5.0)
    assert stage.days.now == 105.5
    assert stage.processes.closed


def test_libvirt_is_waited_for_at_the_start(stage: Stage) -> None:
    def arrives() -> None:
        stage.libvirt.away = False

    stage.libvirt.away = True
    assert stage.run(nothing, arrives, stage.ends) is Ending.SHUT_DOWN
    assert [line for line in stage.told if "waiting" in line] == [stage.told[0]]
    assert stage.told[0].endswith("; waiting for up to 5 seconds")


def test_a_process_that_ended_is_told_of_before_and_while_the_guest_runs(stage: Stage) -> None:
    def another() -> None:
        stage.processes.has_ended.append("virtlogd ended with exit code 1")

    stage.processes.has_ended.append("virtqemud ended with exit code 1")
    stage.run(another, stage.ends)
    assert stage.told[:2] == ["virtqemud ended with exit code 1", "virtlogd ended with exit code 1"]


def test_the_liveness_file_is_touched_while_all_is_well_and_removed_at_the_end(stage: Stage, tmp_path: Path) -> None:
    file, seen = tmp_path / "alive", list[bool]()

    def look() -> None:
        seen.append(file.exists())
        file.unlink()

    def arrives() -> None:
        look()
        stage.libvirt.away = False

    stage.libvirt.away = True
    stage.run(look, arrives, look, look, stage.ends, liveness=str(file))
    assert seen == [True] * 4  # while libvirt is waited for, too
    assert not file.exists()


def test_a_guests_console_is_opened_before_it_runs_and_printed_to_its_end(
    stage: Stage, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    stage.libvirt.prints = [b"Booting\n", b"login: "]
    stage.run(stage.ends, console=True)
    assert stage.libvirt.said[:3] == ["started paused", "console opened", "resumed"]
    assert capfdbinary.readouterr().out == b"Booting\nlogin: "


def test_a_name_that_another_launcher_holds_is_refused(stage: Stage) -> None:
    def begin_another() -> None:
        with raises_code(DOMAIN_IN_THE_WAY, match="another `launcherkit run`"):
            Stage(stage.owner).run()
        stage.ends()

    stage.run(begin_another)
