"""Looks at the node: everything a little, what may be advertised closely; a stalled device holds up nobody else."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from launcherkit.host.snapshot import dump
from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import NO_FACTS, HostFacts, PciFunction
from launcherkit_plugin.devices.nodes import fingerprint_of, is_unchanged, plan_of
from launcherkit_plugin.host.progress import Progress
from launcherkit_plugin.host.scan import NodeReader, Scanner, read_bound, read_node, with_hanging
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import PciRule, Selector
from launcherkit_plugin.model.device import NO_USAGE, Device, Holder, Problem, Resource, Usage
from tests.plugin.resources import rebind, regroup
from tests.support.faults import Stall, failing
from tests.support.hosttree import HostTree
from tests.support.looping import PATIENCE, TimedLoop, WorkThreads, run_timed

UUID = "11111111-2222-3333-4444-555555555555"


def built(root: Path) -> HostTree:
    tree = HostTree(root)
    tree.card("0000:e1:00", group=44)
    tree.function("0000:02:00.0", class_code=0x010802, driver="nvme", group=12)
    tree.function("0000:03:00.0", device=0x1EB8, class_code=0x030200, driver="nvidia", group=13)
    tree.mdev_type("0000:03:00.0", "nvidia-222", name="GRID T4-1Q", available_instances="15", device_api="vfio-pci")
    tree.mdev("0000:03:00.0", "nvidia-222", UUID, group=90)
    return tree


def test_all_functions_are_known_and_the_wanted_ones_closely(tmp_path: Path) -> None:
    host = Host.from_sysfs(built(tmp_path).root)
    facts = read_node(host, lambda function: function.driver == "vfio-pci", vgpu=False)
    assert [str(address) for address in facts.functions] == [
        "0000:02:00.0",
        "0000:03:00.0",
        "0000:e1:00.0",
        "0000:e1:00.1",
    ]
    assert sorted(map(str, facts.details)) == ["0000:e1:00.0", "0000:e1:00.1"]
    assert facts.details[PciAddress.parse("0000:e1:00.0")].parents == ("pci0000:00", "0000:00:01.0")
    assert facts.groups[12] == (PciAddress.parse("0000:02:00.0"),)
    assert facts.nodes == frozenset({"/dev/vfio/vfio", "/dev/vfio/44"})
    assert (facts.mdevs, facts.mdev_parents) == ({}, {})


def test_what_vfio_drivers_have_is_read_as_by_a_whole_look_and_nothing_else_is(tmp_path: Path) -> None:
    tree = built(tmp_path)
    tree.function("0000:04:00.0", class_code=0x020000, driver="mlx5_core", group=44)
    whole = read_node(Host.from_sysfs(tree.root), lambda function: function.driver == "vfio-pci", vgpu=False)
    facts = read_bound(Host.from_sysfs(tree.root))
    near = ["0000:04:00.0", "0000:e1:00.0", "0000:e1:00.1"]
    assert sorted(map(str, facts.functions)) == near
    assert facts.functions == {address: whole.functions[address] for address in facts.functions}
    assert any(detail.resources for detail in whole.details.values()), "which only the whole scan has"
    assert facts.details == {address: detail._replace(resources=()) for address, detail in whole.details.items()}
    assert (facts.groups, facts.nodes) == ({44: whole.groups[44]}, whole.nodes)
    snapshot = tmp_path / "snapshot.json"
    snapshot.write_text(dump(Host.from_sysfs(tree.root).scan()))
    assert Host.from_snapshot(snapshot).bound_to_vfio() == Host.from_sysfs(tree.root).bound_to_vfio()


def test_mediated_devices_come_with_their_nodes(tmp_path: Path) -> None:
    facts = read_node(Host.from_sysfs(built(tmp_path).root), lambda _: False, vgpu=True)
    assert list(facts.mdevs) == [UUID]
    assert list(facts.mdev_parents) == ["0000:03:00.0"]
    assert facts.nodes == frozenset({"/dev/vfio/vfio", "/dev/vfio/90"})


def test_a_snapshot_can_be_looked_at_like_a_machine(tmp_path: Path) -> None:
    tree, file = built(tmp_path / "host"), tmp_path / "host.json"
    file.write_text(dump(Host.from_sysfs(tree.root).scan()))
    live = read_node(Host.from_sysfs(tree.root), lambda _: True, vgpu=True)
    kept = read_node(Host.from_snapshot(file), lambda _: True, vgpu=True)
    assert kept.functions == live.functions
    assert kept.mdevs == live.mdevs
    assert {address: detail.parents for address, detail in kept.details.items()} == {
        address: detail.parents for address, detail in live.details.items()
    }


def is_display(function: PciFunction) -> bool:
    return function.class_code >> 16 == 0x03


def test_a_second_look_reads_nothing_of_what_is_of_no_interest(tmp_path: Path) -> None:
    tree = built(tmp_path)
    host, reader = Host.from_sysfs(tree.root), NodeReader()
    first = reader.read(host, is_display, vgpu=False)
    with failing(tmp_path / "sys/bus/pci/devices/0000:02:00.0", errno.EIO):
        assert reader.read(host, is_display, vgpu=False) == first
    with failing(tmp_path / "sys/bus/pci/devices/0000:e1:00.0", errno.EIO):
        assert list(map(str, reader.read(host, is_display, vgpu=False).unknown)) == ["0000:e1:00.0"]


def test_a_second_look_sees_what_has_come_gone_and_changed(tmp_path: Path) -> None:
    tree = built(tmp_path)
    host, reader = Host.from_sysfs(tree.root), NodeReader()

    def agrees() -> bool:
        """With a first look."""
        return reader.read(host, is_display, vgpu=True) == NodeReader().read(host, is_display, vgpu=True)

    assert agrees()
    tree.card("0000:e2:00", group=45)
    assert agrees()
    rebind(tree, "0000:03:00.0", None)
    assert agrees()
    regroup(tree, "0000:e2:00", 45, 46)
    assert agrees()
    (tmp_path / "sys/bus/pci/devices/0000:02:00.0").unlink()
    assert agrees()


def test_nothing_is_listed_until_the_kernel_sends_an_event(tmp_path: Path) -> None:
    tree = built(tmp_path)
    events = tmp_path / "sys/kernel/uevent_seqnum"
    events.write_text("2711\n")
    host, reader = Host.from_sysfs(tree.root), NodeReader()

    def functions() -> list[str]:
        return list(map(str, reader.read(host, is_display, vgpu=False).functions))

    first = functions()
    tree.card("0000:e2:00", group=45)
    assert functions() == first
    events.write_text("2712\n")
    assert functions() == [*first, "0000:e2:00.0", "0000:e2:00.1"]
    assert functions() == [*first, "0000:e2:00.0", "0000:e2:00.1"]


def test_what_could_not_be_read_is_tried_again_without_an_event(tmp_path: Path) -> None:
    tree = built(tmp_path)
    (tmp_path / "sys/kernel/uevent_seqnum").write_text("2711\n")
    host, reader, disk = Host.from_sysfs(tree.root), NodeReader(), PciAddress.parse("0000:02:00.0")
    with failing(tmp_path / f"sys/bus/pci/devices/{disk}", errno.EIO):
        assert disk in reader.read(host, is_display, vgpu=False).unknown
    assert disk in reader.read(host, is_display, vgpu=False).functions


def test_the_first_look_reads_nothing_again_that_was_read_while_it_was_prepared(tmp_path: Path) -> None:
    host, reader, disk = Host.from_sysfs(built(tmp_path).root), NodeReader(), PciAddress.parse("0000:02:00.0")
    reader.prepare(host)
    with failing(tmp_path / f"sys/bus/pci/devices/{disk}", errno.EIO):
        facts = reader.read(host, is_display, vgpu=False)
    assert (facts.functions[disk].driver, facts.unknown) == ("nvme", {})


def test_a_second_look_sees_whom_a_vfio_driver_has(tmp_path: Path) -> None:
    tree = built(tmp_path)
    host, reader = Host.from_sysfs(tree.root), NodeReader()
    disk = PciAddress.parse("0000:02:00.0")
    assert reader.read(host, is_display, vgpu=False).functions[disk].driver == "nvme"
    rebind(tree, str(disk), "vfio-pci")
    assert reader.read(host, is_display, vgpu=False).functions[disk].driver == "vfio-pci"


def test_what_a_device_that_did_not_answer_seemed_to_be_is_not_remembered(tmp_path: Path) -> None:
    tree = built(tmp_path)
    host, reader, progress = Host.from_sysfs(tree.root), NodeReader(), Progress({"0000:e1:00.0"})
    gpu = PciAddress.parse("0000:e1:00.0")
    stalled = reader.read(host.followed(progress.open_tree), is_display, vgpu=False, without=progress.without)
    assert gpu in stalled.unknown
    assert reader.read(host, is_display, vgpu=False).functions[gpu].driver == "vfio-pci"


def test_other_rules_look_at_other_functions(tmp_path: Path) -> None:
    host, reader = Host.from_sysfs(built(tmp_path).root), NodeReader()
    assert PciAddress.parse("0000:02:00.0") not in reader.read(host, is_display, vgpu=False).details
    assert PciAddress.parse("0000:02:00.0") in reader.read(host, lambda _: True, vgpu=False).details


class LookedUp(dict[PciAddress, PciFunction]):
    """Thousands of functions, which nobody may go through."""

    def __iter__(self) -> Iterator[PciAddress]:
        raise AssertionError("gone through")

    values = items = keys = __iter__  # type: ignore[assignment]


def test_the_plan_of_a_device_takes_a_few_functions_of_thousands(tmp_path: Path) -> None:
    facts = NodeReader().read(Host.from_sysfs(built(tmp_path).root), is_display, vgpu=False)
    gpu = PciAddress.parse("0000:e1:00.0")
    others = [PciAddress(domain, bus, 0, 0) for domain in range(1, 11) for bus in range(256)]
    thousands = {other: facts.functions[gpu]._replace(address=other) for other in others}
    facts = facts._replace(functions=LookedUp({**thousands, **facts.functions}))
    plan = plan_of(gpu, PciRule(select=(Selector(),)), facts, str(tmp_path))
    assert list(map(str, plan.functions)) == ["0000:e1:00.0", "0000:e1:00.1"]


def test_a_fingerprint_holds_until_a_driver_or_a_member_changes(tmp_path: Path) -> None:
    tree = built(tmp_path)
    host = Host.from_sysfs(tree.root)
    address = PciAddress.parse("0000:e1:00.0")
    fingerprint = fingerprint_of([address], host.facts([address]), str(tree.root))
    assert is_unchanged([fingerprint], str(tree.root), Progress())
    rebind(tree, "0000:02:00.0", "vfio-pci")
    assert is_unchanged([fingerprint], str(tree.root), Progress()), "another group's business"
    rebind(tree, "0000:e1:00.1", None)
    assert not is_unchanged([fingerprint], str(tree.root), Progress())
    rebind(tree, "0000:e1:00.1", "vfio-pci")
    assert is_unchanged([fingerprint], str(tree.root), Progress())
    tree.function("0000:e1:00.2", device=0x1AD8, class_code=0x0C0330, driver="vfio-pci", group=44)
    assert not is_unchanged([fingerprint], str(tree.root), Progress())


def test_a_new_member_of_a_group_is_looked_for_once_the_kernel_has_sent_an_event(tmp_path: Path) -> None:
    tree = built(tmp_path)
    (tmp_path / "sys/kernel/uevent_seqnum").write_text("2711\n")
    facts = NodeReader().read(Host.from_sysfs(tree.root), is_display, vgpu=False)
    seen = fingerprint_of([PciAddress.parse("0000:e1:00.0")], facts, str(tree.root))
    tree.function("0000:e1:00.2", device=0x1AD8, class_code=0x0C0330, group=44)
    assert is_unchanged([seen], str(tree.root), Progress()), "it has been added, and the kernel hasn't said so yet"
    (tmp_path / "sys/kernel/uevent_seqnum").write_text("2712\n")
    assert not is_unchanged([seen], str(tree.root), Progress())


def test_a_driver_that_is_about_to_be_bound_is_seen_before_its_event(tmp_path: Path) -> None:
    tree = built(tmp_path)
    (tmp_path / "sys/kernel/uevent_seqnum").write_text("2711\n")
    facts = NodeReader().read(Host.from_sysfs(tree.root), is_display, vgpu=False)
    seen = fingerprint_of([PciAddress.parse("0000:e1:00.0")], facts, str(tree.root))
    rebind(tree, "0000:e1:00.1", "snd_hda_intel")
    assert not is_unchanged([seen], str(tree.root), Progress())


SICK, WELL = PciAddress.parse("0000:01:00.0"), PciAddress.parse("0000:02:00.0")
AUDIO = PciAddress.parse("0000:01:00.1")


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    tree = HostTree(tmp_path)
    tree.card("0000:01:00", group=10)
    tree.card("0000:02:00", group=11)
    tree.mdev_type("0000:02:00.0", "nvidia-222", available_instances="4")
    return tree


class Node:
    def __init__(self, tree: HostTree, stall: Stall, loop: TimedLoop) -> None:
        self.host = Host.from_sysfs(tree.root)
        self.queue = WorkQueue(stall=PATIENCE)
        self.scanner = Scanner(self.queue, self._scan, stall=PATIENCE)
        self._stall = stall
        self._loop = loop

    async def look(self) -> HostFacts:
        """A scan, in which time passes while a read that the scanner does not know of yet does not come back."""
        scan = asyncio.create_task(self.scanner.scan(lambda function: function.class_code >> 16 == 3, True))
        while not scan.done():
            if len(self._stall.waiting) > len(self.scanner.stalled):
                self._loop.skip(PATIENCE)
            await asyncio.sleep(0.001)
        return scan.result()

    def _scan(self, wanted: Callable[[PciFunction], bool], vgpu: bool, progress: Progress) -> HostFacts:
        return read_node(self.host.followed(progress.open_tree), wanted, vgpu=vgpu)


@pytest.mark.parametrize("file", ["uevent", "config", "numa_node"])
def test_what_one_device_makes_wait_for_is_as_it_was_and_the_others_are_as_they_are(
    tree: HostTree, stall: Stall, file: str
) -> None:
    async def scene(loop: TimedLoop) -> None:
        node = Node(tree, stall, loop)
        before = await node.look()
        stall.words = (f"0000:01:00.0/{file}",)
        rebind(tree, str(WELL), "nvidia")
        found = await node.look()
        assert found.functions[WELL].driver == "nvidia"
        for kind in ("functions", "details"):
            assert getattr(found, kind)[SICK] == getattr(before, kind)[SICK]
        assert found.groups == before.groups
        assert found.nodes == before.nodes
        assert node.scanner.stalled == {str(SICK)}

    run_timed(scene)


@pytest.mark.parametrize(
    ("call", "word", "blamed"),
    [
        ("pread", f"{SICK}/uevent", {str(SICK)}),
        ("readlink", f"{SICK}/iommu_group", {str(SICK)}),
        ("readlink", f"devices/{SICK}$", {str(SICK)}),
        ("open", f"devices/{WELL}$", {str(WELL)}),
        ("access", f"{WELL}/sriov_numvfs", {str(WELL)}),
        ("access", "devices/0000:02:00.3$", {"0000:02:00.3"}),
        ("readlink", f"{UUID}/mdev_type", {UUID}),
        ("listdir", "iommu_groups/10/devices", {str(SICK), str(AUDIO)}),
        ("open", "iommu_groups/10/name", {str(SICK), str(AUDIO)}),
    ],
)
def test_whatever_call_does_not_return_the_device_is_blamed_whose_file_it_is(
    tree: HostTree, stall: Stall, call: str, word: str, blamed: set[str]
) -> None:
    """Also if the call is the first for its device: the one before was for another."""
    tree.mdev(str(WELL), "nvidia-222", UUID, group=90)

    async def scene(loop: TimedLoop) -> None:
        node = Node(tree, stall, loop)
        before = await node.look()
        stall.calls, stall.words = (call,), (word,)
        for _ in range(2):
            found = await node.look()
            assert node.scanner.stalled == blamed
            assert (found.functions, found.groups, found.mdevs) == (before.functions, before.groups, before.mdevs)
            assert not found.unknown.keys() & found.functions.keys()
        stall.ends()
        while node.scanner.stalled:
            await asyncio.sleep(0.001)
        assert await node.look() == before

    run_timed(scene)


def test_a_card_at_which_other_work_hangs_is_stalled_too(tree: HostTree, stall: Stall) -> None:
    async def scene(loop: TimedLoop) -> None:
        node = Node(tree, stall, loop)
        work = node.queue.begin(str(WELL), "resetting it", partial(stall.free.wait, 60), 60)
        node.queue.give_up(str(WELL))
        assert node.scanner.hanging == {str(WELL): "resetting it has not returned"}
        assert WELL in (await node.look()).functions, "it is read all the same"
        stall.ends()
        assert work is not None
        await work

    run_timed(scene)


def test_a_device_that_stalls_costs_one_thread_however_often_is_looked(
    tree: HostTree, stall: Stall, work: WorkThreads
) -> None:
    async def scene(loop: TimedLoop) -> None:
        node = Node(tree, stall, loop)
        await node.look()
        stall.words = ("0000:01:00.0/config", "0000:01:00.0/uevent")
        for _ in range(10):
            await node.look()
            await work.number_is(1)
        stall.ends()
        while node.scanner.stalled:
            await asyncio.sleep(0.001)
        rebind(tree, str(SICK), "nvidia")
        assert (await node.look()).functions[SICK].driver == "nvidia"
        await work.number_is(0)

    run_timed(scene)


def test_two_that_stall_are_both_left_out(tree: HostTree, stall: Stall, work: WorkThreads) -> None:
    async def scene(loop: TimedLoop) -> None:
        node = Node(tree, stall, loop)
        before = await node.look()
        stall.words = ("0000:01:00.0/uevent", "available_instances")
        found = await node.look()
        assert node.scanner.stalled == {str(SICK), str(WELL)}
        assert (found.functions, found.mdev_parents) == (before.functions, before.mdev_parents)
        await work.number_is(2)

    run_timed(scene)


def test_a_device_that_stalls_is_given_to_nobody_else(tree: HostTree) -> None:
    hangs, facts = {str(SICK): "it hangs"}, Host.from_sysfs(tree.root).scan()
    devices = {str(each): Device(str(each), functions=(each,)) for each in (SICK, WELL)}
    resource = Resource("gpu", "X", devices)
    stalled = with_hanging(resource, hangs, facts, NO_USAGE).devices
    assert {key: device.problem for key, device in stalled.items()} == {
        str(SICK): Problem("failed", "0000:01:00.0: it hangs"),
        str(WELL): None,
    }
    held = Usage("pod-resources", {"gpu": {str(SICK): Holder("default/vm")}})
    assert with_hanging(resource, hangs, facts, held) == resource
    shared = Usage("pod-resources", {"gpu": {f"{SICK}::s-1": Holder("default/train")}})
    assert with_hanging(resource, hangs, facts, shared) == resource


def test_with_a_device_that_stalls_its_group_is_given_to_no_guest_and_none_of_its_vgpus_to_anybody(
    tree: HostTree,
) -> None:
    hangs, facts = {str(AUDIO): "it hangs"}, Host.from_sysfs(tree.root).scan()
    card = Device(str(SICK), functions=(SICK,), groups=frozenset({10}))
    for use, well in (("vm", False), ("kata", False), ("container", True)):
        resource = Resource("gpu", "X", {card.id: card}, use=use)  # type: ignore[arg-type]
        assert with_hanging(resource, hangs, facts, NO_USAGE).devices[card.id].healthy is well
    vgpus = Resource("vgpu", "X", {UUID: Device(UUID, card=str(AUDIO))})
    assert not with_hanging(vgpus, hangs, facts, NO_USAGE).devices[UUID].healthy


def test_one_that_never_answered_is_not_taken_for_free(tree: HostTree, stall: Stall) -> None:
    """With it in the group nothing of the group can be handed out (V1)."""

    async def scene(loop: TimedLoop) -> None:
        node = Node(tree, stall, loop)
        stall.words = (f"{AUDIO}/uevent",)
        found = await node.look()
        assert found.functions[SICK].driver == "vfio-pci"
        assert found.groups[10] == (SICK, AUDIO)
        assert AUDIO in found.unknown
        again = await node.look()
        assert (again.groups, again.unknown) == (found.groups, found.unknown)

    run_timed(scene)


def test_a_scan_that_goes_on_while_it_is_given_up_is_stalled_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    devices, gate = iter(["0000:01:00.0"]), threading.Event()
    ours: list[Progress] = []  # what other tests have left behind may go on meanwhile

    def scan(wanted: object, vgpu: bool, progress: Progress) -> HostFacts:
        ours.append(progress)
        if not progress.without:
            gate.wait(60)
        return NO_FACTS

    async def scene(loop: TimedLoop) -> None:
        scanner = Scanner(WorkQueue(stall=PATIENCE), scan, None, stall=PATIENCE)
        scanning = asyncio.create_task(scanner.scan(lambda _: True, vgpu=False))
        while not ours:
            await asyncio.sleep(0.001)
        while not scanner.stalled:
            loop.skip(PATIENCE)
            await asyncio.sleep(0)
        await scanning
        assert set(scanner.stalled) == {"0000:01:00.0"}

    monkeypatch.setattr(Progress, "device", property(lambda each: next(devices, None) if each in ours else None))
    try:
        run_timed(scene)
    finally:
        gate.set()
