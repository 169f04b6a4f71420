"""The power may fail, or the process be killed, after any change that a file system is asked for (T5): nothing is given
twice, nothing that anybody was told of is lost, and all heals without hands."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from launcherkit.atomic import Disk
from launcherkit.model.address import PciAddress
from launcherkit_plugin.binding.ledger import Entry, Ledger, Record
from launcherkit_plugin.devices.cdi import CdiFiles
from launcherkit_plugin.devices.container_card import CardUuids
from launcherkit_plugin.model.device import ClaimRef
from launcherkit_plugin.model.errors import DEVICE_TAKEN
from launcherkit_plugin.telemetry.node_features import FeatureFile
from tests.plugin.binding.test_binder import Machine
from tests.plugin.dra.desk import CARDS, REF, ClaimDesk
from tests.plugin.vgpu.node import Node as VgpuNode
from tests.plugin.vgpu.test_mdev import ONE as VGPU
from tests.plugin.vgpu.test_mdev import kernel, node
from tests.support.errors import raises_code
from tests.support.power import Change, State, kills, power_cuts, recording, restore, snapshot

__all__ = ["kernel", "node"]

ONE, TWO = f"{CARDS[0]}.0", f"{CARDS[1]}.0"
MINE, OTHERS = "ResourceClaim vms/gpu", "ResourceClaim vms/other"
OTHER = ClaimRef("vms", "other", "u-9")


class Node:
    """A desk whose disk loses what wasn't synced: ``disk`` has all that the driver writes."""

    def __init__(self, folder: Path) -> None:
        self.disk = folder / "disk"
        self.disk.mkdir()
        (folder / "kubelet").symlink_to("disk/kubelet")
        (folder / "cdi").symlink_to("disk/cdi")
        for name in ("kubelet", "cdi"):
            (self.disk / name).mkdir()
        self.desk = ClaimDesk(folder)
        self.desk.places = self.desk.places._replace(kubelet_dir=str(self.disk / "kubelet"), cdi=str(self.disk / "cdi"))
        self.desk.restart()
        self.desk.allocate()
        self.desk.allocate(OTHER, CARDS[1])

    def start(self, state: State, boot: str) -> ClaimDesk:
        """The driver starts with this on its disk."""
        restore(self.disk, state)
        self.desk.lock.close()
        self.desk.boot = boot
        self.desk.claims.clear()
        self.desk.allocate()
        self.desk.allocate(OTHER, CARDS[1])
        self.desk.restart()
        return self.desk


@pytest.fixture
def place(tmp_path: Path) -> Node:
    return Node(tmp_path)


def prepare(desk: ClaimDesk) -> None:
    desk.prepare()


def unprepare(desk: ClaimDesk) -> None:
    desk.unprepare()


def nothing(desk: ClaimDesk) -> None:
    """Nothing has happened before."""


def both(desk: ClaimDesk) -> None:
    desk.prepare()
    desk.prepare(OTHER)


def before_the_boot(desk: ClaimDesk) -> None:
    desk.boot = "boot-0"
    desk.restart()
    both(desk)
    desk.boot = "boot-1"
    desk.restart()


def with_a_broken_record(desk: ClaimDesk) -> None:
    both(desk)
    Path(desk.places.records, "u-1.json").write_text("")
    desk.restart()


@pytest.mark.parametrize(
    ("past", "call"),
    [
        (nothing, prepare),
        (both, unprepare),
        (before_the_boot, prepare),
        (with_a_broken_record, prepare),
        (with_a_broken_record, unprepare),
    ],
)
@pytest.mark.parametrize("boot", ["boot-1", "boot-2"], ids=["killed", "power"])
def test_a_claim_after_any_end(
    place: Node,
    monkeypatch: pytest.MonkeyPatch,
    past: Callable[[ClaimDesk], None],
    call: Callable[[ClaimDesk], None],
    boot: str,
) -> None:
    past(place.desk)
    with monkeypatch.context() as patch:
        recorder = recording(patch, place.disk)
        call(place.desk)
    assert snapshot(place.disk).keys() >= {change.to for change in recorder.changes if change.to}
    ends = power_cuts if boot == "boot-2" else kills
    for number, state in list(ends(recorder.before, recorder.changes)):
        desk = place.start(state, boot)
        heard = number == len(recorder.changes)
        why = f"after {number} of {len(recorder.changes)} changes: {recorder.changes[number - 1][:3]}"
        assert desk.allocator.usage().known, why
        held = desk.held()
        _check_held(held, past, call, heard=heard, boot=boot, why=why)
        if past != nothing:
            assert held[TWO] == OTHERS, why
        _heals(desk, why)


def _check_held(
    held: dict[str, str],
    past: Callable[[ClaimDesk], None],
    call: Callable[[ClaimDesk], None],
    *,
    heard: bool,
    boot: str,
    why: str,
) -> None:
    """What the kubelet was told of holds; before that, what was or what will be."""
    mine = held.get(ONE)
    if heard:
        assert mine == (MINE if call == prepare else None), why
    elif past != with_a_broken_record:
        assert mine == MINE or past == nothing or call == unprepare, why
    elif boot == "boot-1":  # the pods of the broken record run, until all of its files were removed
        assert mine is not None or call == unprepare, why


def _heals(desk: ClaimDesk, why: str) -> None:
    """Whatever the kubelet does next, it gets what it must get."""
    third = ClaimRef("vms", "third", "u-3")
    assert len(desk.prepare()) == 1, why
    desk.prepare(OTHER)
    assert desk.held() == {ONE: MINE, TWO: OTHERS}, why
    desk.allocate(third)
    with raises_code(DEVICE_TAKEN):
        desk.prepare(third)
    for ref in (REF, OTHER):
        desk.unprepare(ref)
    desk.prepare(third)
    desk.unprepare(third)
    desk.restart()
    assert (desk.held(), desk.files()) == ({}, []), why


@pytest.mark.parametrize("claims", [1, 2])
def test_no_end_of_an_unprepare_brings_a_claim_back(place: Node, monkeypatch: pytest.MonkeyPatch, claims: int) -> None:
    """The claim is gone, and its card is another's before the machine is up again."""
    (prepare if claims == 1 else both)(place.desk)
    recorder = recording(monkeypatch, place.disk)
    place.desk.unprepare()
    monkeypatch.undo()
    third = ClaimRef("vms", "third", "u-3")
    for number, state in list(power_cuts(recorder.before, recorder.changes)):
        desk = place.start(state, "boot-2")
        desk.allocate(third)
        del desk.claims[str(REF)]
        desk.prepare(third)
        assert desk.held()[ONE] == "ResourceClaim vms/third", number


def test_a_record_of_what_was_bound_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the folder isn't in /run. What was bound isn't any more."""
    disk = tmp_path / "disk"
    disk.mkdir()
    address = PciAddress.parse(ONE)
    entry = Entry(address, "nvidia", None, "bound")
    record = Record(address, "vfio-pci", "configuration", (), (entry,))
    with monkeypatch.context() as patch:
        recorder = recording(patch, disk)
        ledger = Ledger(str(disk / "binding"), "boot-1")
        ledger.write(record._replace(entries=(entry._replace(state="binding"),)))
        marks = [len(recorder.changes)]
        ledger.write(record)
        marks.append(len(recorder.changes))
        ledger.remove(record)
        marks.append(len(recorder.changes))
    for number, state in list(power_cuts(recorder.before, recorder.changes)):
        restore(disk, state)
        after = Ledger(str(disk / "binding"), "boot-2")
        assert (after.records(), after.unreadable()) == ([], {}), number
        same = Ledger(str(disk / "binding"), "boot-1")  # the disk had all of it, and the machine is up again by kexec
        assert same.unreadable() == {}, number
        if marks[0] <= number < marks[1] or number == marks[2]:
            assert len(same.records()) == (number < marks[2]), number
        after.write(record)
        assert Ledger(str(disk / "binding"), "boot-2").records() == [record], number


@pytest.mark.parametrize("call", [Machine.bind, Machine.restore])
@pytest.mark.parametrize("boot", ["boot-1", "boot-2"], ids=["killed", "power"])
def test_a_group_after_any_end_of_its_binding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Machine], object], boot: str
) -> None:
    """Whatever was written to sysfs by then is as it was after a kill, and gone with the power; of the record there is
    what the disk kept."""
    disk = tmp_path / "disk"
    disk.mkdir()
    writes: list[Change] = []
    first = writing(Machine(tmp_path / "first"), disk, writes)
    if call == Machine.restore:
        first.bind()
    past = writes.copy()
    with monkeypatch.context() as patch:
        recorder = recording(patch, disk)
        writing(first, disk, recorder.changes)
        call(first)
    ends = power_cuts if boot == "boot-2" else kills
    for number, (made, state) in enumerate(list(ends(recorder.before, recorder.changes))):
        machine = writing(Machine(tmp_path / str(number)), disk, [])
        machine.boot = boot
        restore(disk, state)
        for change in [*past, *recorder.changes[:made]] if boot == "boot-1" else []:
            if change.what == "elsewhere":
                machine.kernel.write(str(tmp_path / str(number) / change.path), change.data.decode())
        why = f"after {made} of {len(recorder.changes)} changes: {recorder.changes[made - 1]}"
        assert boot == "boot-1" or machine.ledger.records() == [], why
        assert [settled.error for settled in machine.recover() if settled.error] == [], why
        assert machine.all_as_before or (machine.all_bound and boot == "boot-1"), why
        assert (bool(machine.ledger.records()), machine.ledger.unreadable()) == (machine.all_bound, {}), why
        if made == len(recorder.changes) and boot == "boot-1":
            assert machine.all_bound == (call == Machine.bind), why
        machine.bind()
        assert machine.all_bound, why
        machine.restore()
        assert machine.all_as_before, why
        assert machine.ledger.records() == [], why


def writing(machine: Machine, disk: Path, changes: list[Change]) -> Machine:
    """Let a machine have its records on a disk, and remember what is written to its sysfs."""
    write, root = type(machine.kernel).write, machine.kernel.tree.root

    def remembered(path: str, text: str, seconds: float = 1) -> None:
        write(machine.kernel, path, text, seconds)
        changes.append(Change("elsewhere", os.path.relpath(path, root), data=text.encode()))

    machine.folder = str(disk / "binding")
    machine.kernel.write = remembered  # type: ignore[method-assign]
    return machine


def test_what_a_process_recorded_is_there_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The UUIDs of cards, CDI files, the labels of the node: once written they stay, and are written again if not."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "features").mkdir()

    def write() -> None:
        CardUuids(str(disk / "binding"), "boot-1").update(ONE, "GPU-1")
        CdiFiles(str(disk / "cdi"), "pci").replace({"x.io/GPU": {ONE: ["/dev/vfio/1"]}})
        FeatureFile(str(disk / "features")).write({"launcherkit.io/iommu": "true"})

    with monkeypatch.context() as patch:
        recorder = recording(patch, disk)
        write()
    after = snapshot(disk)
    for number, state in list(power_cuts(recorder.before, recorder.changes)):
        restore(disk, state)
        uuids = CardUuids(str(disk / "binding"), "boot-1")
        assert uuids.problem is None, number
        if number == len(recorder.changes):
            assert state == after
        write()
        assert {path: data for path, data in snapshot(disk).items() if "/." not in path} == after, number


def test_a_vgpu_is_made_without_any_record(node: VgpuNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its UUID is derived from its place (G2): a power cut has nothing to take."""
    monkeypatch.setattr("launcherkit.atomic.os", None)
    (slot,) = node.healthy(VGPU)[:1]
    node.allocate(VGPU, slot)
    assert slot in node.kernel.mdevs


def test_a_disk_that_loses_what_was_not_synced_is_noticed(place: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model itself: without syncing, a record of a claim is empty or gone after the power failed."""
    recorder = recording(monkeypatch, place.disk)
    monkeypatch.setattr(recorder, "fsync", lambda _: None)
    Disk().replace(str(place.disk / "file"), b"content")
    states = [state.get("file") for _, state in power_cuts(recorder.before, recorder.changes)]
    assert {None, b"", b"con", b"content"} <= set(states)
