"""A node whose NIC gets virtual functions: the daemon's parts on a host that is a tree."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit_plugin.allocation.allocator import Allocator
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.binding.vf_records import VfRecord, VfRecords
from launcherkit_plugin.daemon.wiring import Wiring, assemble
from launcherkit_plugin.host.processes import HolderProcess, OpenNodes
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import Config, PciRule, Selector, VfSettings
from launcherkit_plugin.model.device import Device, Grant, Holder, Usage
from launcherkit_plugin.telemetry.metrics import Metrics
from launcherkit_plugin.telemetry.reporter import EventType, Level, Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped
from tests.support.advertised import advertise
from tests.support.hosttree import HostTree
from tests.support.kernel import VFIO, FakeKernel, Sriov
from tests.support.waiting import PATIENCE

NIC, OTHER = "0000:03:00.0", "0000:04:00.0"
VFS = ("0000:03:10.0", "0000:03:10.1", "0000:03:10.2", "0000:03:10.3")
NAME = "example.com/VF"
NOBODY = Usage("pod-resources", {})
FOUR = VfSettings(4, driver=VFIO)
OFFER = PciRule(select=(Selector(virtual=True),), name=NAME)


def making(wish: VfSettings | None) -> tuple[PciRule, ...]:
    """The rules: VFs are made of the NIC, and offered."""
    if wish is None:
        return (OFFER,)
    return (PciRule(select=(Selector(addresses=(NIC,)),), virtual_functions=wish), OFFER)


class Node:
    """A node with a NIC that can have eight VFs; a folder that has one already is gone on with."""

    def __init__(self, root: Path, wish: VfSettings | None = FOUR) -> None:
        self.root = root
        is_new = not (root / "sys").exists()
        self.tree = HostTree(root)
        self.kernel = FakeKernel(self.tree, {"igb": {(0x8086, 0x10C9)}, "igbvf": {(0x8086, 0x10CA)}})
        if is_new:
            ids = {"vendor": 0x8086, "device": 0x10C9, "class_code": 0x020000}
            self.tree.function(NIC, driver="igb", group=20, **ids)  # type: ignore[arg-type]
            self.interface("eth0")
            self.write("proc/sys/kernel/random/boot_id", "first")
            self.write("proc/sys/net/core/dev_weight", "64")
            self.write("proc/1/mountinfo", "")
            self.routes()
        self.kernel.can_make(NIC, Sriov(8, (0x8086, 0x10CA), 30))
        self.open: Mapping[str, tuple[HolderProcess, ...]] = {}
        self.unseen = ""
        self.usage = NOBODY
        self.now = 1000.0
        self.rules = making(wish)
        self.layout: Sequence[object] = ()
        self.events: list[tuple[str, str]] = []
        self.restart()

    def write(self, path: str, text: str) -> None:
        """A file below the root."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(f"{text}\n")

    def interface(self, name: str, *, up: bool = True, mac: str = "a0:36:9f:00:00:01") -> None:
        """The NIC's network interface."""
        folder = self.tree.path(NIC) / "net" / name
        folder.mkdir(parents=True)
        (folder / "flags").write_text("0x1003\n" if up else "0x1002\n")
        (folder / "address").write_text(f"{mac}\n")
        (self.root / "sys/class/net").mkdir(parents=True, exist_ok=True)
        self.tree.link(f"sys/class/net/{name}", folder)

    def routes(self, *lines: str) -> None:
        """The routes of the node."""
        self.write("proc/1/net/route", "\n".join(["Iface\tDestination\tGateway ...", *lines]))

    def route_by(self, interface: str) -> None:
        """The default route goes through an interface."""
        self.routes(f"{interface}\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0")

    def wish(self, wish: VfSettings | None) -> None:
        """Another configuration."""
        self.rules = making(wish)
        self.restart()

    def restart(self) -> None:
        """The daemon ends, and another one starts; or it has another configuration."""
        self.kernel.new_process()
        wiring = Wiring(
            Host.from_sysfs(self.root),
            str(self.root),
            Reporter(self._tell, Metrics(), self),
            WorkQueue(stall=PATIENCE),
            Stopped(),
            proc=f"{self.root}/proc",
            ledger=f"{self.root}/ledger",
            usage=lambda: self.allocator.usage(),
            make_worker=self.kernel.hand,
            helper=lambda devices={}: OpenNodes(self.open, self.unseen),  # type: ignore[arg-type]
        )
        self.setup = assemble(Config(pci=self.rules), wiring)
        self.queue = wiring.queue
        self.allocator = Allocator(Reservations(), lambda: self.now)

    def setup_host(self) -> Host:
        return Host.from_sysfs(self.root)

    def event(self, type: EventType, reason: str, message: str) -> None:  # noqa: A002
        self.events.append((reason, message))

    def _tell(self, level: Level, text: str, **fields: object) -> None:
        """The log isn't looked at: what matters is an Event, too."""

    def turn(self, usage: Usage | None = None, seconds: float = 0.0) -> None:
        """One turn of the daemon, so much later; waits until all is done that it has begun."""
        self.now += seconds
        self.usage = self.usage if usage is None else usage
        asyncio.run(self._turn())

    async def _turn(self) -> None:
        usage = self.allocator.observe(self.usage, self.now)
        facts = read_node(Host.from_sysfs(self.root), self.setup.wants, vgpu=False)
        for reconciler in self.setup.reconcilers:
            await asyncio.gather(*reconciler.reconcile(facts, usage, self.now))
        self.advertise()

    def advertise(self) -> None:
        facts = read_node(Host.from_sysfs(self.root), self.setup.wants, vgpu=False)
        listed = advertise(self.setup, self.allocator, facts, self.now)
        self.seen: dict[str, Device] = {key: device for each in listed.values() for key, device in each.devices.items()}

    def allocate(self, vf: str) -> Grant:
        """A pod gets a VF."""

        async def take() -> Grant:
            (grant,) = await self.allocator.allocate(NAME, [[vf]])
            return grant

        return asyncio.run(take())

    @property
    def healthy(self) -> list[str]:
        return [key for key, device in self.seen.items() if device.healthy]

    @property
    def vfs(self) -> list[str]:
        return self.kernel.vfs(NIC)

    @property
    def drivers(self) -> list[str | None]:
        return [self.kernel.driver(vf) for vf in self.vfs]

    @property
    def autoprobe(self) -> str:
        return (self.tree.path(NIC) / "sriov_drivers_autoprobe").read_text().strip()

    @property
    def records(self) -> VfRecords:
        return VfRecords(f"{self.root}/ledger/vfs", "first")

    def record(self) -> VfRecord | None:
        return self.records.read()[0].get(PciAddress.parse(NIC))


def held(*vfs: str) -> Usage:
    """A pod has some."""
    return Usage("pod-resources", {NAME: {vf: Holder("vms/launcher", "compute") for vf in vfs}})
