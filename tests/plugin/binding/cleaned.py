"""A node whose devices are cleaned between two pods: the daemon's parts on a host that is a tree."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from launcherkit.host.source import Host
from launcherkit.model.host import HostFacts
from launcherkit_plugin.allocation.allocator import Allocator
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.binding.lent import LentDevices
from launcherkit_plugin.daemon.wiring import Wiring, assemble
from launcherkit_plugin.host.processes import HolderProcess, OpenNodes
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import Config, PciRule, ReleaseProgram, Selector, VgpuConfig
from launcherkit_plugin.model.device import Device, Grant, Holder, Usage
from launcherkit_plugin.telemetry.metrics import ActionOutcome, Metrics
from launcherkit_plugin.telemetry.reporter import EventType, Level, Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped
from tests.support.advertised import advertise
from tests.support.hosttree import HostTree
from tests.support.kernel import VFIO, FakeKernel
from tests.support.waiting import PATIENCE

NAME = "example.com/GPU"
GPU, AUDIO = "0000:01:00.0", "0000:01:00.1"
NOBODY = Usage("pod-resources", {})
POD = Usage("pod-resources", {NAME: {GPU: Holder("vms/launcher", "compute")}})
RESET = PciRule(select=(Selector(classes=("03",)),), name=NAME, release="reset")


class Node(Metrics):
    """A node with one card; a folder that has one already is gone on with, as by the next daemon."""

    def __init__(
        self, root: Path, rule: PciRule = RESET, *, driver: str = VFIO, vgpu: VgpuConfig | None = None
    ) -> None:
        self.root = root
        self.vgpus = vgpu
        is_new = not (root / "sys").exists()
        self.tree = HostTree(root)
        ids = {"nvidia": {(0x10DE, 0x2204)}, "snd_hda_intel": {(0x10DE, 0x1AEF)}}
        self.kernel = FakeKernel(self.tree, ids)
        if is_new:
            audio = VFIO if driver == VFIO else "snd_hda_intel"
            reset: Mapping[str, str | bytes | None] = {"reset": ""}
            self.tree.function(GPU, driver=driver, group=44, files=reset)
            more = {"device": 0x1AEF, "class_code": 0x040300}
            self.tree.function(AUDIO, driver=audio, group=44, files=reset, **more)  # type: ignore[arg-type]
            (root / "proc/sys/kernel/random").mkdir(parents=True)
            self.boot("first")
        self.log = root / "log"
        self.open: Mapping[str, tuple[HolderProcess, ...]] = {}
        self.unseen = ""
        self.usage = NOBODY
        self.now = 1000.0
        self.rule = rule
        self.outcomes: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.restart()

    def boot(self, name: str) -> None:
        """The machine boots."""
        (self.root / "proc/sys/kernel/random/boot_id").write_text(f"{name}\n")

    def program(self, text: str, timeout: float = 60) -> PciRule:
        """A rule with a program: a script of the shell, which finds the node's folder in ``$1``."""
        path = self.root / "clean"
        path.write_text(f"#!/bin/sh -eu\n{text}\n")
        path.chmod(0o700)
        self.rule = self.rule._replace(release=ReleaseProgram((str(path), str(self.root)), timeout))
        self.restart()
        return self.rule

    def restart(self) -> None:
        """The daemon ends, and another one starts; or it has another configuration."""
        self.kernel.new_process()
        reporter = Reporter(self._tell, self, self)
        wiring = Wiring(
            Host.from_sysfs(self.root),
            str(self.root),
            reporter,
            WorkQueue(stall=PATIENCE),
            Stopped(),
            proc=f"{self.root}/proc",
            ledger=f"{self.root}/ledger",
            state=f"{self.root}/state",
            usage=lambda: self.allocator.usage(),
            make_worker=self.kernel.hand,
            helper=lambda devices={}: OpenNodes(self.open, self.unseen),  # type: ignore[arg-type]
        )
        config = Config(pci=(self.rule,)) if self.vgpus is None else Config(pci=(self.rule,), vgpu=self.vgpus)
        self.setup = assemble(config, wiring)
        self.queue = wiring.queue
        self.allocator = Allocator(Reservations(), lambda: self.now)
        self.lent = LentDevices(f"{self.root}/state/lent")

    def cleaned(self, outcome: ActionOutcome) -> None:
        self.outcomes.append(outcome)

    def event(self, type: EventType, reason: str, message: str) -> None:  # noqa: A002
        self.events.append((reason, message))

    def _tell(self, level: Level, text: str, **fields: object) -> None:
        """The log isn't looked at: what matters is an Event, too."""

    def look(self) -> HostFacts:
        return read_node(self.setup_host(), self.setup.wants, vgpu=self.vgpus is not None)

    def setup_host(self) -> Host:
        return Host.from_sysfs(self.root)

    def turn(self, usage: Usage | None = None, seconds: float = 0.0) -> None:
        """One turn of the daemon, so much later; waits until all is done that it has begun."""
        self.now += seconds
        self.usage = self.usage if usage is None else usage
        asyncio.run(self.take_turn())

    async def take_turn(self, *, patient: bool = True) -> None:
        """A turn; without patience what it has begun goes on."""
        usage = self.allocator.observe(self.usage, self.now)
        facts = self.look()
        for reconciler in self.setup.reconcilers:
            begun = reconciler.reconcile(facts, usage, self.now)
            if patient:
                await asyncio.gather(*begun)
        self.advertise()

    def advertise(self) -> None:
        facts = self.look()
        listed = advertise(self.setup, self.allocator, facts, self.now)
        self.seen: dict[str, Device] = {key: device for each in listed.values() for key, device in each.devices.items()}

    def allocate(self, name: str = NAME) -> Grant:
        """A pod gets the card."""
        return asyncio.run(self.take(name))

    async def take(self, name: str = NAME) -> Grant:
        (grant,) = await self.allocator.allocate(name, [[GPU]])
        return grant

    def end_of_pod(self) -> None:
        """The pod that got the card has run, and ends; the daemon notices that."""
        self.turn(POD, 100)
        self.turn(NOBODY, 100)

    def reason(self) -> str | None:
        problem = self.seen[GPU].problem
        return None if problem is None else problem.reason

    def text(self) -> str:
        problem = self.seen[GPU].problem
        assert problem is not None
        return problem.text

    def lines(self) -> list[str]:
        """What was written to the log of the tests, `log` in the node's folder."""
        return self.log.read_text().splitlines() if self.log.exists() else []
