"""Between two pods a real kernel erases a disk, and resets a function (K11)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcherkit_lab import sysfs
from launcherkit_lab.devices import DISK
from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.daemon.wiring import Wiring, assemble
from launcherkit_plugin.host.files import node_host
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import Config, PciRule, ReleaseProgram, Selector
from launcherkit_plugin.model.device import Holder, Usage
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped
from tests.support.pages import ROOT, blocks
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.kernel

NAME = "example.com/NVME"
NOBODY = Usage("pod-resources", {})
SECRET = b"what a tenant has left"


@pytest.fixture
def disk() -> Iterator[str]:
    """An NVMe controller with a namespace, with the host's driver."""
    sysfs.modprobe("nvme")
    (address,) = sysfs.having(DISK)
    sysfs.until(lambda: sysfs.driver(address) == "nvme" and node_of(address).exists(), "the disk")
    yield address
    sysfs.unbind(address)
    sysfs.bind(address, "nvme")
    (sysfs.DEVICES / address / "driver_override").write_text("\n")


def node_of(address: str) -> Path:
    """The block device of a controller's only namespace."""
    found = [path.name for path in (sysfs.DEVICES / address).glob("nvme/nvme*/nvme*n*")]
    return Path("/dev", found[0] if found else "none")


class Daemon:
    """A daemon with one rule, whose pods end as soon as somebody says so."""

    def __init__(self, folder: Path, rule: PciRule) -> None:
        places = {"ledger": str(folder / "ledger"), "state": str(folder / "state")}
        self.events: list[tuple[str, str]] = []
        self.allocator = Allocator(Reservations(), time.monotonic)
        reporter = Reporter(events=self)
        queue = WorkQueue(stall=PATIENCE)
        wiring = Wiring(node_host("/"), "/", reporter, queue, Stopped(), usage=self.allocator.usage, **places)  # type: ignore[arg-type]
        self.host = wiring.host
        self.setup = assemble(Config(pci=(rule,)), wiring)

    def event(self, type: str, reason: str, message: str) -> None:  # noqa: A002
        self.events.append((reason, message))

    async def turn(self, usage: Usage) -> dict[str, str]:
        """A turn, with all that it begins; returns the reasons of devices that are Unhealthy."""
        self.allocator.observe(usage, time.monotonic() + 1000)
        facts = read_node(self.host, self.setup.wants, vgpu=False)
        for reconciler in self.setup.reconcilers:
            await asyncio.gather(*reconciler.reconcile(facts, usage, time.monotonic()))
        facts = read_node(self.host, self.setup.wants, vgpu=False)
        found = [
            Offer(resource, provider)
            for provider in self.setup.providers
            for resource in provider.resources(facts, usage, time.monotonic())
        ]
        self.allocator.advertise({offer.resource.name: offer for offer in found}, facts)
        devices = {key: device for offer in found for key, device in offer.resource.devices.items()}
        return {key: device.problem.text for key, device in devices.items() if device.problem is not None}


def rule_for(address: str, **keys: object) -> PciRule:
    return PciRule(select=(Selector(addresses=(address,)),), name=NAME, **keys)  # type: ignore[arg-type]


def of_pod(address: str) -> Usage:
    return Usage("pod-resources", {NAME: {address: Holder("vms/launcher", "compute")}})


def test_a_disk_is_erased_between_two_pods_by_the_program_of_the_page(disk: str, tmp_path: Path) -> None:
    (script, *_) = (
        block.text for block in blocks(ROOT / "docs/how-to/clean-devices.md") if "nvme format" in block.text
    )
    program = tmp_path / "nvme"
    program.write_text(script)
    program.chmod(0o700)
    release = ReleaseProgram((str(program), "--ses=1"), 120)
    with open(node_of(disk), "r+b", buffering=0) as file:
        file.write(SECRET.ljust(4096, b"\0"))

    async def scene() -> None:
        daemon = Daemon(tmp_path, rule_for(disk, bind="on-demand", release=release))
        assert await daemon.turn(NOBODY) == {}
        await daemon.allocator.allocate(NAME, [[disk]])
        assert sysfs.driver(disk) == "vfio-pci"
        assert await daemon.turn(of_pod(disk)) == {}
        assert await daemon.turn(NOBODY) == {}, daemon.events
        assert ("DeviceCleaned", f"{NAME}: {disk} is clean again after a pod had it") in daemon.events
        assert sysfs.driver(disk) == "nvme"
        await asyncio.to_thread(sysfs.until, node_of(disk).exists, "the disk again")
        assert SECRET not in node_of(disk).read_bytes()
        await daemon.allocator.allocate(NAME, [[disk]])
        assert sysfs.driver(disk) == "vfio-pci"

    asyncio.run(scene())


def test_a_function_that_stays_bound_to_vfio_is_reset_between_two_pods(disk: str, tmp_path: Path) -> None:
    sysfs.bind(disk, "vfio-pci")
    assert (sysfs.DEVICES / disk / "reset_method").read_text().split() != []

    async def scene() -> None:
        daemon = Daemon(tmp_path, rule_for(disk, release="reset"))
        assert await daemon.turn(NOBODY) == {}
        await daemon.allocator.allocate(NAME, [[disk]])
        assert await daemon.turn(of_pod(disk)) == {}
        assert await daemon.turn(NOBODY) == {}, daemon.events
        assert daemon.events[-1][0] == "DeviceCleaned"
        assert sysfs.driver(disk) == "vfio-pci"

    asyncio.run(scene())
