"""Virtual functions are made where a rule asks for them, and taken away where none does, all of it or nothing (K12)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from launcherkit.atomic import Disk
from launcherkit.model.address import PciAddress
from launcherkit_plugin.binding.binder import Binder
from launcherkit_plugin.binding.ledger import Ledger
from launcherkit_plugin.binding.vf_maker import VfMaker
from launcherkit_plugin.binding.vf_plan import macs_for
from launcherkit_plugin.binding.vf_reconciler import FIRST_PAUSE_SECONDS
from launcherkit_plugin.binding.vf_records import VfRecord
from launcherkit_plugin.config.reading import read_config
from launcherkit_plugin.host.drivers import Sysfs
from launcherkit_plugin.host.processes import HolderProcess
from launcherkit_plugin.host.vf_network import NetworkRefused, VfNetwork
from launcherkit_plugin.model.config import LayoutEntry, PciRule, ReleaseProgram, Selector, VfSettings
from launcherkit_plugin.model.device import NO_USAGE, Holder, Usage
from launcherkit_plugin.model.errors import DEVICE_UNHEALTHY, VFS_NOT_MADE, VFS_REFUSED
from launcherkit_plugin.page.drawing import drawn
from launcherkit_plugin.page.view import dump_view
from launcherkit_plugin.vgpu.layout import vfs_needed
from tests.plugin.binding.made import FOUR, NIC, NOBODY, OFFER, VFS, Node, held
from tests.plugin.page.test_drawing import view
from tests.support.errors import raises_code
from tests.support.kernel import VFIO, AskedHolders, Killed
from tests.support.provoked import provoked

PHYSFN = PciAddress.parse(NIC)
QEMU = (HolderProcess(812, "qemu-system-x86"),)
TWO = FOUR._replace(number=2)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def nothing_is_left(node: Node) -> bool:
    return (node.vfs, node.autoprobe, node.record()) == ([], "1", None)


def test_as_many_as_the_rule_says_are_made_with_their_driver_and_offered(node: Node) -> None:
    node.turn()
    assert (node.vfs, node.drivers, node.healthy) == (list(VFS), [VFIO] * 4, list(VFS))
    assert node.events == [("VirtualFunctionsMade", f"{NIC} has 4 VFs now: {', '.join(VFS)}")]
    record = node.record()
    assert record is not None
    assert (record.number, record.autoprobe, record.state, node.autoprobe) == (4, True, "made", "0")
    assert NIC not in node.seen, "the physical function is no device"


def test_what_is_as_it_should_be_is_not_touched(node: Node) -> None:
    node.turn()
    node.kernel.new_process()
    node.turn(seconds=1000)
    node.restart()
    node.kernel.new_process()
    node.turn(seconds=1000)
    assert (node.kernel.moments, len(node.events)) == (0, 1)


def test_without_a_number_it_gets_all_that_it_can_have(tmp_path: Path) -> None:
    node = Node(tmp_path, VfSettings(driver=VFIO))
    node.turn()
    assert len(node.vfs) == 8


def test_without_a_driver_they_have_none_and_with_autoprobe_the_kernels(tmp_path: Path) -> None:
    node = Node(tmp_path, VfSettings(2))
    node.turn()
    assert node.drivers == [None, None]
    node.wish(VfSettings(2, autoprobe=True))
    node.turn(seconds=100)
    node.turn()
    assert (node.drivers, node.autoprobe) == (["igbvf", "igbvf"], "1")


def test_they_are_taken_away_when_no_rule_wants_them_any_more(node: Node) -> None:
    node.turn()
    node.wish(None)
    node.turn()
    assert nothing_is_left(node)
    assert node.events[-1] == ("VirtualFunctionsTakenAway", f"{NIC} has no VFs of ours any more")


def test_another_number_is_made_once_nobody_has_one(node: Node) -> None:
    node.turn()
    node.wish(TWO)
    node.turn(held(VFS[3]), 100)
    assert (len(node.vfs), node.healthy) == (4, list(VFS))
    assert (
        node.events[-1][1] == f"the virtual functions of {NIC} stay as they are: {VFS[3]} is held by pod vms/launcher"
    )
    node.turn(NOBODY, 100)
    node.turn()
    assert (node.vfs, node.healthy) == (list(VFS[:2]), list(VFS[:2]))


def test_none_is_taken_away_while_it_is_unknown_who_has_what(node: Node) -> None:
    node.turn()
    node.wish(None)
    node.turn(NO_USAGE, 100)
    assert (len(node.vfs), [reason for reason, _ in node.events]) == (4, ["VirtualFunctionsMade"])
    node.turn(NOBODY, 100)
    assert nothing_is_left(node)


def test_one_that_was_just_allocated_keeps_all_of_them(node: Node) -> None:
    node.turn()
    node.allocate(VFS[1])
    node.wish(None)
    node.turn(held(VFS[1]), 1)
    node.turn(seconds=100)
    assert len(node.vfs) == 4


def test_one_that_a_process_has_open_keeps_all_of_them(node: Node) -> None:
    node.turn()
    node.open = {"/dev/vfio/32": QEMU}
    node.wish(None)
    node.turn()
    assert (len(node.vfs), node.record() is not None) == (4, True)
    assert node.events[-1] == ("VirtualFunctionsFailed", "/dev/vfio/32 is open in qemu-system-x86 (PID 812)")
    node.open = {}
    node.turn(seconds=1000)
    assert nothing_is_left(node)


def test_where_not_all_processes_can_be_seen_none_is_taken_away(node: Node) -> None:
    node.turn()
    node.unseen = "/proc does not show all processes of the host"
    node.wish(None)
    node.turn()
    assert len(node.vfs) == 4


def test_a_vf_that_is_lost_between_look_and_allocate_is_refused(node: Node) -> None:
    node.turn()
    node.kernel.write(f"{node.root}/sys/bus/pci/devices/{NIC}/sriov_numvfs", "0")
    with raises_code(DEVICE_UNHEALTHY):
        node.allocate(VFS[0])


def test_if_somebody_else_takes_them_away_they_are_made_again(node: Node) -> None:
    node.turn()
    node.kernel.write(f"{node.root}/sys/bus/pci/devices/{NIC}/sriov_numvfs", "0")
    node.turn(seconds=1000)
    assert node.drivers == [VFIO] * 4


# What is not ours, or not possible


def others_make(node: Node, number: int) -> None:
    node.kernel.write(f"{node.root}/sys/bus/pci/devices/{NIC}/sriov_numvfs", str(number))


def test_what_something_else_has_made_is_never_taken_away(node: Node) -> None:
    others_make(node, 3)
    node.turn()
    assert (len(node.vfs), node.drivers, node.record()) == (3, ["igbvf"] * 3, None)
    text = f"{NIC} network controller 8086:10c9 has 3 virtual functions that something else has made; 4 are wanted"
    assert node.events == [("VirtualFunctionsFailed", text)]
    node.wish(None)
    node.turn(seconds=1000)
    assert len(node.vfs) == 3


def test_as_many_as_wanted_by_something_else_are_left_as_they_are(node: Node) -> None:
    others_make(node, 4)
    node.turn()
    assert (node.drivers, node.record(), node.events) == (["igbvf"] * 4, None, [])


def test_what_somebody_has_made_in_their_place_is_not_taken_away_either(node: Node) -> None:
    node.turn()
    others_make(node, 0)
    others_make(node, 2)
    node.wish(None)
    node.turn()
    assert (len(node.vfs), node.record(), node.autoprobe) == (2, None, "1")


def without_sriov(node: Node) -> None:
    (node.tree.path(NIC) / "sriov_numvfs").unlink()


def without_driver(node: Node) -> None:
    node.kernel.set_driver(NIC, None)


def with_vfio(node: Node) -> None:
    node.kernel.set_driver(NIC, VFIO)


def too_many(node: Node) -> None:
    (node.tree.path(NIC) / "sriov_totalvfs").write_text("3\n")


IMPOSSIBLE = [
    (without_sriov, "can't have virtual functions: it has no SR-IOV, or the firmware has switched it off"),
    (without_driver, "has no driver, which would have to make its virtual functions"),
    (with_vfio, "is bound to vfio-pci, and a guest may have it: virtual functions need the host's driver"),
    (too_many, "can have 3 virtual functions; 4 are wanted"),
]


@pytest.mark.parametrize(("happens", "why"), IMPOSSIBLE)
def test_what_is_not_possible_is_said_and_nothing_is_tried(
    node: Node, happens: Callable[[Node], None], why: str
) -> None:
    happens(node)
    node.kernel.new_process()
    node.turn()
    node.turn(seconds=1000)
    assert node.kernel.moments == 0
    assert node.events == [("VirtualFunctionsFailed", f"{NIC} network controller 8086:10c9 {why}")]


# The host


@pytest.mark.parametrize("top", ["eth0", "bond0", "br0", "eth0.5"])
def test_the_nic_of_the_default_route_gets_none_nor_one_below_a_bond_bridge_or_vlan(node: Node, top: str) -> None:
    if top != "eth0":
        (node.tree.path(NIC) / "net/eth0" / f"upper_{top}").touch()
        (node.root / "sys/class/net" / top).mkdir()
    node.route_by(top)
    node.turn()
    assert nothing_is_left(node)
    within = "eth0" if top == "eth0" else f"eth0, in {top},"
    assert node.events[-1][1] == f"{NIC} is in use by this host: network interface {within} has the default route"
    node.routes()
    node.turn(seconds=1000)
    assert len(node.vfs) == 4


def test_nor_does_the_route_lose_them(node: Node) -> None:
    node.turn()
    node.route_by("eth0")
    node.wish(None)
    node.turn()
    assert len(node.vfs) == 4
    assert node.events[-1][1].endswith("has the default route")


def test_a_vf_whose_interface_the_host_uses_keeps_all_of_them(tmp_path: Path) -> None:
    node = Node(tmp_path, VfSettings(2, autoprobe=True))
    node.turn()
    folder = node.tree.path(VFS[1]) / "net/eth1"
    folder.mkdir(parents=True)
    (folder / "flags").write_text("0x1003\n")
    node.tree.link("sys/class/net/eth1", folder)
    node.wish(None)
    node.turn()
    assert len(node.vfs) == 2
    assert node.events[-1][1] == f"{VFS[1]} is in use by this host: network interface eth1 is up"


def test_where_the_routes_can_not_be_read_nothing_is_changed(node: Node) -> None:
    (node.root / "proc/1/net/route").unlink()
    node.turn()
    assert nothing_is_left(node)


def test_where_its_interface_is_in_another_network_namespace_nothing_is_changed(node: Node) -> None:
    (node.root / "sys/class/net/eth0").unlink()
    (node.tree.path(NIC) / "net/eth0").rename(node.root / "elsewhere")
    (node.root / "proc/sys/net/core/dev_weight").unlink()
    node.turn()
    assert nothing_is_left(node)
    assert node.events[-1][1].startswith(f"{NIC} may be in use by this host")


def test_a_function_that_a_pod_has_gets_none(node: Node) -> None:
    node.turn(Usage("pod-resources", {"a/NIC": {NIC: Holder("vms/other", "compute")}}))
    assert nothing_is_left(node)
    assert node.events[-1][1] == f"the virtual functions of {NIC} stay as they are: {NIC} is held by pod vms/other"


def test_a_function_that_a_process_has_open_gets_none_and_loses_none(node: Node) -> None:
    control = node.tree.path(NIC) / "ptp/ptp0"
    control.mkdir(parents=True)
    (control / "dev").write_text("249:0\n")
    (control / "uevent").write_text("DEVNAME=ptp0\n")
    node.open = {"/dev/ptp0": QEMU}
    node.turn()
    assert nothing_is_left(node)
    assert node.events[-1][1] == "/dev/ptp0 is open in qemu-system-x86 (PID 812)"
    node.open = {}
    node.turn(seconds=1000)
    node.open = {"/dev/ptp0": QEMU}
    node.wish(None)
    node.turn()
    assert len(node.vfs) == 4


# Failures


def test_fewer_than_were_asked_for_are_none(node: Node) -> None:
    node.kernel.enables = 3
    node.turn()
    assert nothing_is_left(node)
    assert node.events[-1][1] == f"{NIC} gets no virtual functions: 4 were requested, and there are 3"


def test_a_step_that_the_kernel_refuses_undoes_all_and_is_tried_again(node: Node) -> None:
    node.kernel.probe_fails.add((VFIO, VFS[2]))
    node.turn()
    assert nothing_is_left(node)
    assert node.events[-1][1] == f"{VFS[2]} is bound to no driver after it was offered to vfio-pci"
    node.kernel.probe_fails.clear()
    node.turn(seconds=FIRST_PAUSE_SECONDS - 1)
    assert node.vfs == []
    node.turn(seconds=2)
    assert node.drivers == [VFIO] * 4


def test_a_driver_without_sriov_is_said_in_the_kernels_words(node: Node) -> None:
    node.kernel.without_sriov.add("igb")
    node.turn()
    assert nothing_is_left(node)
    assert node.events[-1][1].startswith("writing 4 to ")
    assert node.events[-1][1].endswith("/sriov_numvfs: No such file or directory")


def test_what_can_not_be_recorded_is_not_made(node: Node) -> None:
    (node.root / "ledger").mkdir(mode=0o700)
    (node.root / "ledger/vfs").write_text("no folder")
    node.turn()
    assert (node.vfs, node.autoprobe) == ([], "1")


def test_a_step_that_hangs_leaves_the_record_and_nothing_is_offered(node: Node) -> None:
    node.turn()
    node.wish(TWO)
    node.kernel.locked.add(NIC)
    node.turn()
    record = node.record()
    assert record is not None
    assert record.state == "removing"
    assert {device.problem.text for device in node.seen.values() if device.problem} == {
        f"{vf} is being taken away, with all virtual functions of {NIC}" for vf in VFS
    }
    node.kernel.locked.clear()
    node.turn(seconds=1000)
    node.turn()
    assert node.vfs == list(VFS[:2])


# Records


@pytest.mark.parametrize("content", ["", "{}", '{"version": 2, "boot": "first", "content": 1, "crc32": "0"}'])
def test_a_broken_record_keeps_what_is_there_and_goes_with_it(node: Node, content: str) -> None:
    node.turn()
    path = node.root / f"ledger/vfs/{NIC}.json"
    path.write_text(content)
    node.wish(TWO)
    node.turn(seconds=100)
    assert (len(node.vfs), path.exists()) == (4, True)
    assert "is not a valid record of virtual functions that were made" in node.events[-1][1]
    others_make(node, 0)
    node.turn(seconds=100)
    node.turn(seconds=1000)
    assert node.vfs == list(VFS[:2])


def test_a_record_of_another_boot_means_nothing(node: Node) -> None:
    node.turn()
    others_make(node, 0)
    node.write("proc/sys/kernel/random/boot_id", "second")
    others_make(node, 4)
    node.wish(None)
    node.turn()
    assert len(node.vfs) == 4


def test_a_function_that_is_gone_leaves_no_record(node: Node) -> None:
    node.turn()
    others_make(node, 0)
    node.kernel.unplug(NIC)
    node.turn()
    assert node.record() is None


def test_a_record_says_what_it_was_given(node: Node) -> None:
    for record in (
        VfRecord(PHYSFN, 3, None, "{}", "making"),
        VfRecord(PHYSFN, 1, False, "x", "removing"),
    ):
        node.records.write(record)
        assert node.records.find(PHYSFN) == record


# Kills


def moments_of(root: Path, before: VfSettings | None, after: VfSettings | None) -> int:
    node = Node(root, before)
    node.turn()
    node.wish(after)
    node.kernel.new_process()
    node.turn()
    return node.kernel.moments


def killed_at_each(
    moments: int, folder: Path, before: VfSettings | None, after: VfSettings | None
) -> Iterator[tuple[int, Node]]:
    """A node whose plugin was killed at each moment of a change, from the first to the last."""
    for die_at in range(1, moments + 1):
        node = Node(folder / str(die_at), before)
        node.turn()
        node.wish(after)
        node.kernel.new_process(die_at)
        with pytest.raises(Killed):
            node.turn()
        yield die_at, node


ONE = FOUR._replace(number=1)
CHANGES = [(None, TWO), (TWO, None), (TWO, ONE)]


@pytest.mark.parametrize(("before", "after"), CHANGES, ids=["make", "take away", "fewer"])
def test_whenever_it_is_killed_the_next_one_ends_with_what_is_wanted(
    tmp_path: Path, before: VfSettings | None, after: VfSettings | None
) -> None:
    moments = moments_of(tmp_path / "whole", before, after)
    assert moments > 4
    for die_at, node in killed_at_each(moments, tmp_path, before, after):
        node.restart()
        node.advertise()
        ready = node.record() is None or node.record().state == "made"  # type: ignore[union-attr]
        assert ready or not node.healthy, f"what is half done is offered after {die_at} of {moments}"
        for _ in range(3):
            node.turn(seconds=1000)
        if after is None:
            assert nothing_is_left(node), die_at
        else:
            assert (len(node.vfs), set(node.drivers)) == (after.number, {VFIO}), die_at
            assert (node.record().state, node.autoprobe) == ("made", "0"), die_at  # type: ignore[union-attr]


@pytest.mark.parametrize(("before", "after"), CHANGES, ids=["make", "take away", "fewer"])
def test_whenever_it_is_killed_the_next_one_undoes_it_if_nothing_is_wanted_any_more(
    tmp_path: Path, before: VfSettings | None, after: VfSettings | None
) -> None:
    moments = moments_of(tmp_path / "whole", before, after)
    for die_at, node in killed_at_each(moments, tmp_path, before, after):
        node.wish(None)
        node.turn(seconds=1000)
        assert nothing_is_left(node), die_at


def test_what_is_half_done_is_not_gone_on_with_while_a_process_has_a_part_of_it(tmp_path: Path) -> None:
    node = Node(tmp_path, TWO)
    node.kernel.new_process(moments_of(tmp_path / "whole", None, TWO) - 2)
    with pytest.raises(Killed):
        node.turn()
    assert node.drivers[0] == VFIO
    node.open = {"/dev/vfio/30": QEMU}
    node.restart()
    node.turn(seconds=1000)
    assert (node.record().state, node.healthy) == ("making", [])  # type: ignore[union-attr]
    assert node.events[-1][1] == "/dev/vfio/30 is open in qemu-system-x86 (PID 812)"
    node.open = {}
    node.turn(seconds=1000)
    assert node.healthy == list(VFS[:2])


class DyingDisk(Disk):
    """The process is killed before the change of a record with this number, from 1."""

    def __init__(self, die_at: int) -> None:
        super().__init__()
        self.left = die_at

    def _live(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed

    def replace(self, path: str, *args: object, **more: object) -> None:
        self._live()
        super().replace(path, *args, **more)  # type: ignore[arg-type]

    def remove(self, path: str) -> None:
        self._live()
        super().remove(path)


@pytest.mark.parametrize("die_at", range(1, 7))
def test_so_it_is_if_it_is_killed_before_a_record_is_written(
    tmp_path: Path, die_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    disk = DyingDisk(die_at)
    with monkeypatch.context() as patch:
        patch.setattr("launcherkit_plugin.binding.vf_records.Disk", lambda: disk)
        node.restart()
        try:
            node.turn()
            node.wish(None)
            node.turn()
        except Killed:
            pass
        assert disk.left <= 0, "there are so many"
    node.wish(FOUR)
    for _ in range(3):
        node.turn(seconds=1000)
    assert (node.drivers, node.record().state) == ([VFIO] * 4, "made")  # type: ignore[union-attr]
    node.wish(None)
    node.turn(seconds=1000)
    assert nothing_is_left(node)


# What is set before they are bound


class Network:
    """Stands for the kernel's network: remembers what it was told, and what drivers the VFs had then."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.told: list[tuple[str, list[VfNetwork]]] = []
        self.drivers: list[str | None] = []
        self.refuses = ""

    def __call__(self, interface: str, vfs: object) -> None:
        if self.refuses:
            raise NetworkRefused(self.refuses)
        self.told.append((interface, list(vfs)))  # type: ignore[call-overload]
        self.drivers = self.node.drivers


def maker_of(node: Node) -> tuple[VfMaker, Network]:
    network = Network(node)
    sysfs = Sysfs(str(node.root), make_worker=node.kernel.hand)
    ledger = Ledger(f"{node.root}/ledger", "first")
    binder = Binder(node.setup_host(), sysfs, ledger, AskedHolders(), f"{node.root}/proc")
    maker = VfMaker(binder.host, sysfs, ledger, node.records, Free(), f"{node.root}/proc", network)
    return maker, network


class Free(AskedHolders):
    """Nobody has anything."""

    def users(self, addresses: object) -> None:  # type: ignore[override]
        pass


def test_the_network_settings_are_set_before_they_are_bound(node: Node) -> None:
    maker, network = maker_of(node)
    wish = FOUR._replace(number=2, mac="02:00:00:00:10:fe", trust=True, spoofcheck=False)
    maker.make(PHYSFN, 2, wish)
    macs = ["02:00:00:00:10:fe", "02:00:00:00:10:ff"]
    assert network.told == [("eth0", [VfNetwork(mac, trust=True, spoofcheck=False) for mac in macs])]
    assert (network.drivers, node.drivers) == ([None, None], [VFIO, VFIO])


def test_a_setting_that_is_refused_undoes_all(node: Node) -> None:
    maker, network = maker_of(node)
    network.refuses = "eth0 refuses trust of VF 0: Operation not supported"
    with raises_code(VFS_NOT_MADE, match="eth0 refuses trust of VF 0") as caught:
        maker.make(PHYSFN, 4, FOUR._replace(trust=True))
    assert nothing_is_left(node)
    assert provoked("binding", VFS_NOT_MADE.code) == [f"{VFS_NOT_MADE.code}: {caught.value.message}"]


def test_without_an_interface_or_with_several_it_is_said(node: Node) -> None:
    maker, _ = maker_of(node)
    representor = node.tree.path(NIC) / "net/eth0_0"
    representor.mkdir()
    (representor / "phys_port_name").write_text("pf0vf3\n")
    maker.make(PHYSFN, 4, FOUR._replace(mac="stable"))
    maker.remove(PHYSFN)
    (representor / "phys_port_name").write_text("p1\n")
    with raises_code(VFS_NOT_MADE, match="need its network interface, and it has eth0, eth0_0"):
        maker.make(PHYSFN, 4, FOUR._replace(mac="stable"))
    assert nothing_is_left(node)


def test_a_driver_that_knows_no_names_of_ports_has_its_interface(node: Node) -> None:
    maker, network = maker_of(node)
    (node.tree.path(NIC) / "net/eth0/phys_port_name").mkdir()  # to open it is an error, as to read it with those
    maker.make(PHYSFN, 1, ONE._replace(mac="stable"))
    assert network.told[0][0] == "eth0"


def test_stable_addresses_are_derived_from_that_of_the_nic() -> None:
    macs = macs_for("stable", "A0:36:9F:00:00:01", 3)
    for index, mac in enumerate(macs):
        digest = sha256(f"a0:36:9f:00:00:01 {index}".encode()).hexdigest()
        assert mac.replace(":", "")[2:] == digest[2:12]
        assert int(mac[:2], 16) & 3 == 2, "local, of one interface"
        assert int(mac[:2], 16) >> 2 == int(digest[:2], 16) >> 2
    assert len(set(macs)) == 3
    assert macs_for("stable", "a0:36:9f:00:00:02", 1)[0] not in macs


def test_addresses_that_are_counted_keep_their_first_three_bytes() -> None:
    assert macs_for("02:00:00:00:00:ff", "", 2) == ["02:00:00:00:00:ff", "02:00:00:00:01:00"]
    assert macs_for("02:00:00:ff:ff:ff", "", 1) == ["02:00:00:ff:ff:ff"]
    with pytest.raises(ValueError, match="no 2 addresses from 02:00:00:ff:ff:ff on"):
        macs_for("02:00:00:ff:ff:ff", "", 2)


def program(node: Node, text: str, wish: VfSettings = FOUR) -> None:
    path = node.root / "prepare"
    path.write_text(f"#!/bin/sh -eu\n{text}\n")
    path.chmod(0o700)
    node.wish(wish._replace(program=ReleaseProgram((str(path), str(node.root)), 60)))


def test_a_program_prepares_them_before_they_are_bound(node: Node) -> None:
    program(node, 'for vf in $LAUNCHERKIT_ADDRESSES; do ls "$1/sys/bus/pci/devices/$vf/driver" 2>/dev/null || '
            'echo "$LAUNCHERKIT_PHYSFN $vf" >>"$1/log"; done')  # fmt: skip
    node.turn()
    assert (node.root / "log").read_text().splitlines() == [f"{NIC} {vf}" for vf in VFS]
    assert node.drivers == [VFIO] * 4


def test_a_program_that_fails_undoes_all(node: Node) -> None:
    program(node, "echo no resources left >&2; exit 3")
    node.turn()
    assert nothing_is_left(node)
    said = f"{node.root}/prepare: it ended with exit code 3: no resources left"
    assert node.events[-1][1] == f"{NIC} gets no virtual functions: {said}"


# The configuration


def test_a_rule_that_makes_them_does_not_offer_them_nor_hides_them_from_others(tmp_path: Path) -> None:
    node = Node(tmp_path)
    everything = Selector(vendors=frozenset({0x8086}))
    node.rules = (PciRule(select=(everything,), virtual_functions=FOUR), OFFER._replace(select=(everything,)))
    node.restart()
    node.turn()
    assert list(node.seen) == list(VFS)


def test_a_card_gets_as_many_as_its_vgpu_layout_needs() -> None:
    layout = [LayoutEntry("0000:41:00.0", "A", 3), LayoutEntry("0000:41:*", "B", 2), LayoutEntry("#0", "C", 9)]
    count = partial(vfs_needed, layout)
    assert (count(PciAddress.parse("0000:41:00.0")), count(PciAddress.parse("0000:42:00.0"))) == (5, 0)
    assert vfs_needed([*layout, LayoutEntry("*", "D")], PciAddress.parse("0000:41:00.0")) == 0


def test_the_errors_are_those_of_their_pages(node: Node) -> None:
    others_make(node, 3)
    maker, _ = maker_of(node)
    with raises_code(VFS_REFUSED) as caught:
        maker.make(PHYSFN, 4, FOUR)
    assert provoked("binding", VFS_REFUSED.code) == [f"{VFS_REFUSED.code}: {caught.value.message}"]


# Who knows them


def on_the_page(node: Node) -> str:
    """What the page shows of the host."""
    return drawn(dump_view(view()._replace(host=str(node.root)))).decode()


def test_the_page_shows_them_on_their_card_as_long_as_they_are_there(node: Node) -> None:
    assert NIC not in on_the_page(node)
    node.turn()
    shown = on_the_page(node)
    assert "4 of 8 VFs" in shown
    assert NIC in shown
    node.wish(None)
    node.turn()
    assert NIC not in on_the_page(node)


def test_the_component_give_back_has_them_taken_away_once_no_pod_has_one(node: Node) -> None:
    node.turn()
    manifest = Path(__file__).parents[3] / "deploy/plugin/components/give-back/configmap.yaml"
    node.write("plugin.yaml", yaml.safe_load(manifest.read_text())["data"]["plugin.yaml"])
    node.rules = read_config(str(node.root / "plugin.yaml")).config.pci
    node.restart()
    node.turn(held(VFS[1]), 100)
    assert node.vfs == list(VFS)
    node.turn(NOBODY, 100)
    assert nothing_is_left(node)


def test_what_there_is_stays_while_another_number_can_not_be_had(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.turn()
    node.wish(FOUR._replace(number=16))
    node.turn(seconds=100)
    assert len(node.vfs) == 4


def test_what_there_is_stays_while_nobody_knows_how_many_there_can_be(tmp_path: Path) -> None:
    node = Node(tmp_path, VfSettings(driver=VFIO))
    node.turn()
    (node.tree.path(NIC) / "sriov_totalvfs").unlink()
    node.turn(seconds=100)
    assert len(node.vfs) == 8
