"""Virtual functions on a real kernel: made, one each to two VMs, and taken away, whoever is killed when (K12)."""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeAlias

import pytest

from launcherkit_lab import sysfs
from launcherkit_lab.devices import IGB, IGB_VF, NVME
from launcherkit_plugin.__main__ import run
from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.binding.vf_records import VfRecords
from launcherkit_plugin.daemon.wiring import Wiring, assemble
from launcherkit_plugin.host.drivers import SpareProcess
from launcherkit_plugin.host.files import node_host
from launcherkit_plugin.host.processes import boot_id
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import Config, PciRule, ReleaseProgram, Selector, VfSettings
from launcherkit_plugin.model.device import Holder, Usage
from launcherkit_plugin.model.errors import BIND_REFUSED
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped
from tests.kernel.guests import Guests
from tests.support.dying import Change, Life, live, rounds
from tests.support.errors import raises_code
from tests.support.pages import ROOT, blocks
from tests.support.waiting import PATIENCE
from tests.tiers import KILLS

pytestmark = pytest.mark.kernel

NAME = "example.com/VF"
PAGE = ROOT / "docs/how-to/virtual-functions.md"
NOBODY = Usage("pod-resources", {})
TWO = VfSettings(2, driver="vfio-pci")
PRELOADED = ("launcherkit_plugin.binding.vf_reconciler", "launcherkit_plugin.binding.vf_maker")


@pytest.fixture
def controller() -> Iterator[str]:
    """The NVMe controller that can have two VFs and has its group to itself."""
    sysfs.modprobe("nvme")
    (physical,) = (address for address in sysfs.having(NVME) if len(sysfs.members(address)) == 1)
    sysfs.until(lambda: sysfs.driver(physical) == "nvme", "the controller")
    yield physical
    (sysfs.DEVICES / physical / "sriov_numvfs").write_text("0")
    (sysfs.DEVICES / physical / "sriov_drivers_autoprobe").write_text("1")


@pytest.fixture
def nic() -> Iterator[str]:
    """A NIC whose VFs have MAC addresses."""
    found = sysfs.having(IGB)
    if not found:
        pytest.skip("this QEMU emulates no NIC with SR-IOV: igb comes with QEMU 8.0")
    sysfs.modprobe("igb")
    sysfs.until(lambda: list((sysfs.DEVICES / found[0]).glob("net/*")), "the NIC's interface")
    yield found[0]
    (sysfs.DEVICES / found[0] / "sriov_numvfs").write_text("0")


def vfs_of(address: str) -> list[str]:
    """Its virtual functions, in order."""
    number = int((sysfs.DEVICES / address / "sriov_numvfs").read_text())
    return [sysfs.link(sysfs.DEVICES / address / f"virtfn{at}") or "" for at in range(number)]


def autoprobe(address: str) -> str:
    return (sysfs.DEVICES / address / "sriov_drivers_autoprobe").read_text().strip()


def shown_by_ip(nic: str) -> list[tuple[str, ...]]:
    """MAC address, spoof checking and trust of a NIC's VFs, as `ip link` shows them."""
    (interface,) = (path.name for path in (sysfs.DEVICES / nic).glob("net/*"))
    text = subprocess.run(["ip", "link", "show", "dev", interface], capture_output=True, text=True, check=True).stdout
    return re.findall(r"vf \d+ +link/ether ([0-9a-f:]{17}) .*spoof checking (\w+),.*trust (\w+)", text)


class Daemon:
    """A daemon that makes VFs of a function, or takes them away."""

    def __init__(self, folder: Path, address: str, wish: VfSettings | None) -> None:
        self.events: list[tuple[str, str]] = []
        self.allocator = Allocator(Reservations(), time.monotonic)
        self.spare = SpareProcess()
        self.host = node_host("/")
        making = PciRule(select=(Selector(addresses=(address,)),), virtual_functions=wish)
        offer = PciRule(select=(Selector(virtual=True, classes=("01", "02")),), name=NAME)
        wiring = Wiring(
            self.host,
            "/",
            Reporter(events=self),
            WorkQueue(stall=PATIENCE),
            Stopped(),
            ledger=str(folder / "ledger"),
            usage=self.allocator.usage,
            make_worker=self.spare.worker,
        )
        self.setup = assemble(Config(pci=(offer,) if wish is None else (making, offer)), wiring)

    def event(self, type: str, reason: str, message: str) -> None:  # noqa: A002
        self.events.append((reason, message))

    def close(self) -> None:
        self.spare.close()

    async def turn(self, usage: Usage = NOBODY) -> list[str]:
        """A turn, with all that it begins; returns the devices that are Healthy."""
        self.allocator.observe(usage, time.monotonic() + 1000)
        facts = read_node(self.host, self.setup.wants, vgpu=False)
        for reconciler in self.setup.reconcilers:
            await asyncio.gather(*reconciler.reconcile(facts, usage, time.monotonic()))
        return self.offered()

    def offered(self) -> list[str]:
        facts = read_node(self.host, self.setup.wants, vgpu=False)
        found = [
            Offer(resource, provider)
            for provider in self.setup.providers
            for resource in provider.resources(facts, NOBODY, time.monotonic())
        ]
        self.allocator.advertise({offer.resource.name: offer for offer in found}, facts)
        return [key for offer in found for key, device in offer.resource.devices.items() if device.healthy]


Daemons: TypeAlias = Callable[[str, VfSettings | None], Daemon]


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    """Daemons of one node, which are closed in the end."""
    with ExitStack() as stack:
        yield lambda address, wish: stack.enter_context(closing(Daemon(tmp_path, address, wish)))


def turned(folder: Path, address: str, wish: VfSettings | None) -> list[str]:
    """What is Healthy after the turn of a daemon that ends then."""
    with closing(Daemon(folder, address, wish)) as daemon:
        return asyncio.run(daemon.turn())


def of_pods(*vfs: str) -> Usage:
    return Usage("pod-resources", {NAME: {vf: Holder(f"vms/launcher-{vf}", "compute") for vf in vfs}})


@pytest.mark.parametrize("kind", ["controller", "nic"])
def test_vfs_go_one_each_to_two_vms_and_are_taken_away_after_both(
    request: pytest.FixtureRequest, daemons: Daemons, guests: Guests, tmp_path: Path, kind: str
) -> None:
    physical: str = request.getfixturevalue(kind)
    own = sysfs.driver(physical)

    async def scene() -> None:
        daemon = daemons(physical, TWO)
        vfs = await daemon.turn()
        assert (vfs, autoprobe(physical)) == (vfs_of(physical), "0"), daemon.events
        assert [sysfs.driver(vf) for vf in vfs] == ["vfio-pci"] * 2
        env = {}
        for vf in vfs:
            (grant,) = await daemon.allocator.allocate(NAME, [[vf]])
            env[vf] = dict(grant.env)
            assert f"/dev/vfio/{sysfs.group(vf)}" in grant.nodes
        first, second = vfs
        for vf, name in ((first, "vm"), (second, "other")):
            variables = {"PCI_RESOURCE_X": vf, **env[vf]}
            await asyncio.to_thread(guests.start, variables, name=name, does="wait", unrehearsed="VFs of a daemon")
        with raises_code(BIND_REFUSED, match=f"{physical}.* has VFs"):
            run(["bind", physical, "--ledger", str(tmp_path / "ledger"), "--kubelet-dir", str(tmp_path / "no")], {})
        assert sysfs.driver(physical) == own
        # The configuration wants none any more, while both VMs run, and then one of them.
        gone = daemons(physical, None)
        assert await gone.turn(of_pods(first, second)) == vfs
        await asyncio.to_thread(guests.pod.libvirt, "destroy", "vm")
        await gone.turn(of_pods(second))
        assert vfs_of(physical) == vfs
        unnoticed = daemons(physical, None)
        await unnoticed.turn(NOBODY)  # the kubelet has forgotten the pod, but the VM runs
        assert vfs_of(physical) == vfs
        assert "is open in" in unnoticed.events[-1][1]
        await asyncio.to_thread(guests.pod.libvirt, "destroy", "other")
        last = daemons(physical, None)
        for _ in range(5):  # on a busy machine a step may take longer than it may; the next turn goes on with the next
            await last.turn(NOBODY)
            if autoprobe(physical) == "1":
                break
        assert (vfs_of(physical), autoprobe(physical)) == ([], "1"), last.events

    asyncio.run(scene())


def make_and_take_away(folder: Path, address: str, times: int) -> None:
    """Be daemons whose configurations want VFs, and want none, in turn."""
    null = os.open(os.devnull, os.O_WRONLY)
    for file in (1, 2):
        os.dup2(null, file)

    async def turns() -> None:
        for _ in range(times):
            for wish in (TWO, None):
                daemon = Daemon(folder, address, wish)
                await daemon.turn()
                await daemon.turn()
                daemon.close()

    asyncio.run(turns())


@pytest.mark.parametrize("kind", ["controller", "nic"])
def test_whoever_is_killed_when_the_next_daemon_makes_them_or_takes_them_away(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    physical: str = request.getfixturevalue(kind)

    def lived(times: int, die_at: int = 0) -> Life:
        below: list[str | Path] = ["/sys", tmp_path]
        work = make_and_take_away, tmp_path, physical, times
        return live(*work, below=below, die_at=die_at, whom="first", imported=[__name__, *PRELOADED])

    most = lived(times=1).changes
    assert (vfs_of(physical), autoprobe(physical)) == ([], "1")
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    records = VfRecords(str(tmp_path / "ledger/vfs"), boot_id("/proc"))
    kills, last = int(os.environ.get(KILLS, "10")), list[Change]()
    # In the middle of what is done to the function, too, and not by its records alone.
    for round_ in rounds(kills, lambda: any(change.path.startswith("/sys/") for change in last)):
        found = lived(1000, chance.randint(1, most))
        where = f"seed {seed}, round {round_}: {found.last}"
        assert found.last is not None, f"{where}: the daemon has ended with {found.code}"
        last.append(found.last)
        ours, broken = records.read()
        assert not broken, where
        assert ours or not vfs_of(physical), f"{where}: VFs that are on no record"
        with closing(Daemon(tmp_path, physical, TWO)) as daemon:
            offered = daemon.offered()
        assert not offered or [record.state for record in ours.values()] == ["made"], where
        if round_ % 5 == 4:  # nobody is killed any more
            vfs = turned(tmp_path, physical, TWO) or turned(tmp_path, physical, TWO)
            assert [sysfs.driver(vf) for vf in vfs] == ["vfio-pci"] * 2, where
            turned(tmp_path, physical, None)
            assert (vfs_of(physical), autoprobe(physical), records.read()[0]) == ([], "1", {}), where


def test_a_disks_vfs_work_once_the_program_of_the_page_has_set_them_online(
    controller: str, daemons: Daemons, tmp_path: Path
) -> None:
    (script,) = (block.text for block in blocks(PAGE) if "nvme virt-mgmt" in block.text and block.language == "text")
    program = tmp_path / "nvme"
    program.write_text(script)
    program.chmod(0o700)
    prepared = VfSettings(2, driver="nvme", program=ReleaseProgram((str(program),), 60))
    daemon = daemons(controller, prepared)
    asyncio.run(daemon.turn())
    vfs = vfs_of(controller)
    states = [path for vf in vfs for path in (sysfs.DEVICES / vf).glob("nvme/nvme*/state")]
    assert len(states) == 2, daemon.events
    sysfs.until(lambda: [path.read_text() for path in states] == ["live\n"] * 2, "controllers that work")


def test_the_vfs_of_a_nic_have_their_addresses_before_they_are_bound(nic: str, daemons: Daemons) -> None:
    async def scene() -> None:
        wish = TWO._replace(mac="stable", trust=True, spoofcheck=False)
        daemon = daemons(nic, wish)
        vfs = await daemon.turn()
        assert [sysfs.driver(vf) for vf in vfs] == ["vfio-pci"] * 2, daemon.events
        assert {(sysfs.number(vf, "vendor"), sysfs.number(vf, "device")) for vf in vfs} == {IGB_VF}
        shown = [shown_by_ip(nic)]
        await daemons(nic, None).turn()
        await daemons(nic, wish).turn()
        shown.append(shown_by_ip(nic))
        macs = [mac for mac, _, _ in shown[0]]
        assert shown == [[(mac, "off", "on") for mac in macs]] * 2, "the same again"
        assert (len({*macs}), {int(mac[:2], 16) & 3 for mac in macs}) == (2, {2})

    asyncio.run(scene())


@pytest.mark.parametrize("up", ["down", "up"])
def test_a_driver_of_the_host_learns_them_only_while_the_interface_of_the_nic_is_up(
    nic: str, daemons: Daemons, tmp_path: Path, up: str
) -> None:
    sysfs.modprobe("igbvf")
    (interface,) = (path.name for path in (sysfs.DEVICES / nic).glob("net/*"))
    subprocess.run(["ip", "link", "set", interface, up], check=True)
    try:
        daemon = daemons(nic, TWO._replace(driver="igbvf", mac="stable"))
        asyncio.run(daemon.turn())
        vfs = vfs_of(nic)
        own = [path.read_text().strip() for vf in vfs for path in (sysfs.DEVICES / vf).glob("net/*/address")]
        assert len(own) == 2, daemon.events
        assert (own == [mac for mac, _, _ in shown_by_ip(nic)]) is (up == "up")
        turned(tmp_path, nic, None)
    finally:
        subprocess.run(["ip", "link", "set", interface, "down"], check=True)


def test_a_nic_with_the_default_route_gets_none(nic: str, daemons: Daemons) -> None:
    (interface,) = (path.name for path in (sysfs.DEVICES / nic).glob("net/*"))
    for words in (f"address add 192.0.2.2/24 dev {interface}", f"link set {interface} up"):
        subprocess.run(["ip", *words.split()], check=True)
    subprocess.run(["ip", "route", "add", "default", "via", "192.0.2.1", "dev", interface, "onlink"], check=True)
    try:
        daemon = daemons(nic, TWO)
        assert (asyncio.run(daemon.turn()), vfs_of(nic)) == ([], [])
    finally:
        subprocess.run(["ip", "address", "flush", "dev", interface], check=True)
        subprocess.run(["ip", "link", "set", interface, "down"], check=True)
    assert daemon.events[-1][1].endswith(f"network interface {interface} has the default route")
