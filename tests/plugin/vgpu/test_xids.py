"""Xids by NVIDIA's own binding, and the stand-in for the library that it calls: one process, and the daemon with it."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcherkit.model.address import PciAddress
from launcherkit_lab.kubelet import running_kubelet
from launcherkit_plugin.devices.xid_watch import FIRST_PAUSE_SECONDS, SILENT_SECONDS, XidWatch
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.nvml import Nvml
from tests.plugin.daemon.test_serve import ENV
from tests.plugin.devices.test_container import information
from tests.plugin.kubelet.parts import Lines
from tests.plugin.vgpu.stand_in import CARD, OLD, OTHER, StandIn, needed
from tests.support.hooks import ServerProcess
from tests.support.hosttree import HostTree
from tests.support.looping import Loop, running_loop
from tests.support.waiting import until

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed; ./dev test has it")
pytestmark = [*needed]

XID, WHOLE = 8, "4294967295 4294967295"
HEALTHY = (f"card {CARD} 1 1 1 1", f"events {CARD} {XID}", f"card {OTHER} 1 0 0 0", f"events {OTHER} 25")


class Watched:
    """What waits for the cards of the stand-in."""

    def __init__(self, stand_in: StandIn, loop: Loop) -> None:
        self.stand_in = stand_in
        self.loop = loop
        self.lines = Lines()
        self.watch = loop.call(XidWatch, Reporter(self.lines), lambda: None)

    def cards(self, *cards: str) -> None:
        self.loop.call(self.watch.watch, {PciAddress.parse(card): frozenset({13}) for card in cards})

    def processes(self, card: str) -> list[int]:
        """The processes that have waited for a card, in order."""
        return [int(words[2]) for line in self.stand_in.lines if (words := line.split())[:2] == ["registered", card]]

    def process(self, card: str = CARD, number: int = 1) -> int:
        """The process that is the n-th to wait for a card."""
        until(lambda: len(self.processes(card)) >= number, f"process {number} for {card}", lambda: self.lines.lines)
        return self.processes(card)[number - 1]

    def text(self, card: str) -> str:
        problem = self.loop.call(self.watch.problem, PciAddress.parse(card))
        return "" if problem is None else problem.text

    def fails(self, card: str, text: str) -> None:
        until(lambda: text in self.text(card), f"{text} of {card}", lambda: [self.text(card), *self.lines.lines])

    def reports(self, text: str) -> None:
        until(lambda: any(text in line for line in self.lines.lines), text, lambda: self.lines.lines)


@pytest.fixture
def watched(stand_in: StandIn) -> Iterator[Watched]:
    stand_in.has(*HEALTHY)
    with running_loop() as loop:
        watched = Watched(stand_in, loop)
        try:
            yield watched
        finally:
            loop.run(watched.watch.close())


def test_an_xid_is_seen_of_the_card_that_had_it(watched: Watched) -> None:
    watched.cards(CARD, OTHER)
    watched.process(OTHER)
    watched.stand_in.add(f"event {OTHER} {XID} 13 {WHOLE}")
    watched.stand_in.add(f"event {OTHER} 1 0 {WHOLE}")  # of a type for which nobody has registered
    watched.stand_in.add(f"event {CARD} {XID} 95 3 0")
    watched.fails(CARD, f"{CARD}: NVIDIA's driver reported Xid 95, GPU instance 3, compute instance 0")
    watched.stand_in.add(f"event {OTHER} {XID} 79 {WHOLE}")
    watched.fails(OTHER, "Xid 79")
    assert watched.text(OTHER) == f"{OTHER}: NVIDIA's driver reported Xid 79"


def test_what_was_before_somebody_waited_is_not_recorded(watched: Watched) -> None:
    watched.stand_in.add(f"event {CARD} {XID} 48 {WHOLE}")
    watched.cards(CARD)
    watched.process()
    watched.stand_in.add(f"event {CARD} {XID} 79 {WHOLE}")
    watched.fails(CARD, "Xid 79")


def test_a_card_without_such_events_is_named_and_the_others_are_watched(watched: Watched) -> None:
    watched.stand_in.add(f"card {OLD} 0 0 0 0")
    watched.cards(CARD, OLD, "0000:99:00.0")
    watched.reports(f"Xids of {OLD} aren't seen: nvmlDeviceRegisterEvents: Not Supported (3)")
    watched.reports("Xids of 0000:99:00.0 aren't seen: nvmlDeviceGetHandleByPciBusId: Not Found (6)")
    watched.process()
    watched.stand_in.add(f"event {CARD} {XID} 79 {WHOLE}")
    watched.fails(CARD, "Xid 79")
    assert watched.text(OLD) == ""


def test_where_a_card_is_lost_the_process_starts_anew_and_finds_out_which(watched: Watched) -> None:
    watched.cards(CARD, OTHER)
    watched.process(OTHER)
    watched.stand_in.add(f"lost {OTHER}")
    watched.reports("aren't seen: nvmlEventSetWait_v2: GPU is lost (15)")
    assert watched.text(OTHER) == watched.text(CARD) == ""
    watched.loop.skip(FIRST_PAUSE_SECONDS)
    watched.fails(OTHER, "is lost, says NVML: nvmlDeviceGetHandleByPciBusId: GPU is lost (15)")
    assert watched.text(CARD) == ""


def test_a_process_that_is_killed_is_started_anew(watched: Watched) -> None:
    watched.cards(CARD)
    os.kill(watched.process(), signal.SIGKILL)
    watched.reports("the process that waits for them was killed by signal 9")
    watched.loop.skip(FIRST_PAUSE_SECONDS)
    watched.process(number=2)
    watched.stand_in.add(f"event {CARD} {XID} 79 {WHOLE}")
    watched.fails(CARD, "Xid 79")


def test_one_whose_driver_hangs_is_killed_and_started_anew(watched: Watched) -> None:
    watched.stand_in.add("fail nvmlEventSetWait_v2 hang")
    watched.cards(CARD)
    before = watched.process()
    until(lambda: "hangs nvmlEventSetWait_v2" in watched.stand_in.lines, "the call that hangs")
    watched.loop.skip(SILENT_SECONDS)
    watched.reports("hangs: nothing for 60 s")
    until(lambda: not Path(f"/proc/{before}").exists(), "the end of the process")
    watched.stand_in.has(*HEALTHY)
    watched.loop.skip(FIRST_PAUSE_SECONDS)
    watched.process()
    assert watched.text(CARD) == ""


@pytest.mark.parametrize(("failure", "text"), [("9", "nvmlInit: .* \\(9\\)"), ("crash", "was killed by signal 11")])
def test_a_library_that_fails_or_crashes_changes_no_card(watched: Watched, failure: str, text: str) -> None:
    watched.stand_in.add(f"fail nvmlInitWithFlags {failure}")
    watched.cards(CARD)
    watched.reports("(9)" if failure == "9" else text)
    assert watched.text(CARD) == ""


def test_without_the_library_it_is_said_so(watched: Watched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    watched.cards(CARD)
    watched.reports("nvmlInit: NVML Shared Library Not Found (12)")
    assert watched.text(CARD) == ""


def test_gpu_instances_are_asked_for_while_it_waits(watched: Watched, tmp_path: Path) -> None:
    watched.cards(CARD)
    watched.process()
    assert Nvml(str(tmp_path / "lock")).read(CARD).enabled
    watched.stand_in.add(f"event {CARD} {XID} 79 {WHOLE}")
    watched.fails(CARD, "Xid 79")


# The daemon

NAME = "nvidia.com/gpu"


def two_cards(folder: Path) -> None:
    """A host with two cards."""
    tree = HostTree(folder / "host")
    for number, card in enumerate((CARD, OTHER)):
        tree.function(card, driver="nvidia", group=10 + number)
        information(folder, card, f"GPU-{number}", number)


def configure(folder: Path, rescan: int = 1) -> None:
    """Both cards are for containers."""
    rule = {"name": NAME, "select": [{"classes": ["03"]}], "use": "container", "container": {"by": "nodes"}}
    config = {"resources": [{**rule, "health": {"xid": True, "ignoredXids": [13]}}], "rescanSeconds": rescan}
    (folder / "plugin.yaml").write_text(json.dumps(config))


@contextmanager
def daemon(folder: Path, stand_in: StandIn) -> Iterator[ServerProcess]:
    places = {
        "--config": folder / "plugin.yaml",
        "--host": folder / "host",
        "--dev-root": folder / "host",
        "--proc": folder / "proc",
        "--kubelet-dir": folder / "k",
        "--ledger": folder / "ledger",
        "--state": folder / "state",
        "--features-dir": folder / "features.d",
    }
    options = (str(part) for pair in places.items() for part in pair)
    # A Python of its own: only when a program starts does it read where libraries are (LD_LIBRARY_PATH).
    command = [sys.executable, "-m", "launcherkit_plugin", "serve", *options]
    with ServerProcess(command, {**ENV, **stand_in.env}) as process:
        yield process


def of_processes(stand_in: StandIn) -> set[int]:
    """All processes that have waited."""
    return {int(line.split()[2]) for line in stand_in.lines if line.startswith("registered")}


def is_running(pid: int) -> bool:
    """Whether a process is there, and is no zombie."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_a_daemon_advertises_a_card_as_unhealthy_until_it_starts_anew(stand_in: StandIn) -> None:
    stand_in.has(*HEALTHY)
    with tempfile.TemporaryDirectory(prefix="xid-") as name, running_kubelet(Path(name) / "k") as kubelet:
        folder = Path(name)
        two_cards(folder)
        configure(folder)
        with daemon(folder, stand_in) as process:
            kubelet.wait_for(NAME, {CARD: True, OTHER: True})
            until(lambda: any(f"registered {OTHER}" in line for line in stand_in.lines), "what waits", process.reported)
            stand_in.add(f"event {CARD} {XID} 13 {WHOLE}")
            stand_in.add(f"event {OTHER} {XID} 79 {WHOLE}")
            kubelet.wait_for(NAME, {CARD: True, OTHER: False})
            process.wait_for(f"{NAME}: {OTHER}: NVIDIA's driver reported Xid 79")
            pids = of_processes(stand_in)
            configure(folder, rescan=2)
            process.wait_for("the new configuration is in force")
            assert "can be allocated" not in process.reported()
            assert process.end() == 0
            assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        with daemon(folder, stand_in) as process:
            kubelet.wait_for(NAME, {CARD: True, OTHER: True})
            until(lambda: of_processes(stand_in) - pids, "what waits", process.reported)
            process.end(signal.SIGKILL)
            until(lambda: not any(is_running(pid) for pid in of_processes(stand_in)), "its end")
