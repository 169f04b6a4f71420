"""Groups are bound whole or not at all, what was there comes back, and a kill at any moment loses nothing (K8)."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcherkit.errors import UNWRITABLE_FILE, LauncherkitError
from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit_plugin.binding.binder import Binder, Changed, Settled
from launcherkit_plugin.binding.in_use import holders_of
from launcherkit_plugin.binding.ledger import Entry, Ledger, Record
from launcherkit_plugin.host.drivers import Power, Sysfs
from launcherkit_plugin.host.processes import OpenNodes
from launcherkit_plugin.model.device import Holder, Usage
from launcherkit_plugin.model.errors import BAD_RECORD, DEVICE_HELD, STEP_FAILED, STEP_HANGS
from tests.support.errors import raises_code
from tests.support.facts import USB, facts, function
from tests.support.hosttree import HostTree
from tests.support.kernel import VFIO, AskedHolders, FakeKernel, Killed

GPU, AUDIO, SERIAL = "0000:01:00.0", "0000:01:00.1", "0000:01:00.3"
CARD = [PciAddress.parse(text) for text in (GPU, AUDIO, SERIAL)]


class KillableLedger(Ledger):
    """Writing a record is a step too, at which a process may be killed."""

    kernel: FakeKernel

    def write(self, record: Record) -> None:
        self.kernel.moment()
        super().write(record)
        self.kernel.moment()

    def remove(self, record: Record) -> None:
        self.kernel.moment()
        super().remove(record)
        self.kernel.moment()


class Machine:
    """A card of three functions, one of them with no driver, in one group; nouveau is loaded beside nvidia."""

    def __init__(self, root: Path, variant: str | None = None) -> None:
        tree = HostTree(root)
        self.variant = variant
        """The VFIO driver of the GPU alone."""
        self.kernel = FakeKernel(
            tree, {"nouveau": {(0x10DE, 0x2204)}, "nvidia": {(0x10DE, 0x2204)}, "snd_hda_intel": {(0x10DE, 0x1AEF)}}
        )
        power = {"d3cold_allowed": "1\n", "power/control": "auto\n"}
        tree.function(GPU, driver="nvidia", group=44, files=power)
        tree.function(AUDIO, device=0x1AEF, class_code=0x040300, driver="snd_hda_intel", group=44)
        tree.function(SERIAL, device=0x1AD9, class_code=0x0C8000, group=44, files={"driver_override": "i2c_none\n"})
        if variant is not None:
            self.kernel.load(variant)
        self.folder = str(root / "ledger")
        self.boot = "boot-1"
        self.before = self.state()
        self.held = False

    @property
    def ledger(self) -> KillableLedger:
        ledger = KillableLedger(self.folder, self.boot)
        ledger.kernel = self.kernel
        return ledger

    def state(self) -> list[tuple[str | None, str]]:
        """Driver and override of each function."""
        return [(self.kernel.driver(address), self.kernel.override(address)) for address in (GPU, AUDIO, SERIAL)]

    def power(self) -> list[str]:
        """``d3cold_allowed`` and ``power/control`` of the GPU."""
        device = self.kernel.tree.root / "sys/bus/pci/devices" / GPU
        return [(device / name).read_text().strip() for name in ("d3cold_allowed", "power/control")]

    @property
    def all_bound(self) -> bool:
        drivers = [driver for driver, _ in self.state()]
        return drivers == [self.variant or VFIO, VFIO, VFIO] and self.power() == ["0", "on"]

    @property
    def all_as_before(self) -> bool:
        return self.state() == self.before and self.power() == ["1", "auto"]

    def binder(self) -> Binder:
        """That of a new process."""

        def ask() -> None:
            if self.held:
                raise DEVICE_HELD("held", "wait")

        sysfs = Sysfs(str(self.kernel.tree.root), make_worker=self.kernel.hand)
        return Binder(Host.from_sysfs(self.kernel.tree.root), sysfs, self.ledger, AskedHolders(ask))

    def bind(self) -> list[Changed]:
        variants = {} if self.variant is None else {CARD[0]: self.variant}
        return self.binder().bind(CARD, CARD, VFIO, variants=variants, asked=CARD[:1])

    def restore(self) -> list[Changed]:
        record = self.ledger.find(CARD)
        return [] if record is None else self.binder().restore(record)

    def recover(self) -> list[Settled]:
        return self.binder().recover()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_all_members_are_bound_and_each_goes_back_to_what_it_had(machine: Machine) -> None:
    assert machine.bind() == [
        Changed(CARD[0], "nvidia", VFIO),
        Changed(CARD[1], "snd_hda_intel", VFIO),
        Changed(CARD[2], None, VFIO),
    ]
    assert machine.state() == [(VFIO, VFIO)] * 3
    assert machine.power() == ["0", "on"], "though vfio-pci lets it sleep"
    machine.restore()
    assert machine.power() == ["1", "auto"]
    assert machine.state() == machine.before, "not nouveau, which was loaded first, and no driver where none was"
    assert machine.ledger.records() == []


def test_binding_what_is_bound_does_nothing(machine: Machine) -> None:
    machine.bind()
    records = machine.ledger.records()
    assert machine.bind() == []
    assert machine.ledger.records() == records


def test_what_is_bound_again_goes_back_to_what_it_had_at_first(machine: Machine) -> None:
    """Not to what somebody has bound it to in between."""
    machine.bind()
    kernel = machine.kernel
    kernel.write(f"{kernel.tree.path(GPU)}/driver_override", "nouveau")
    kernel.write(f"{kernel.tree.root}/sys/bus/pci/drivers/{VFIO}/unbind", GPU)
    kernel.write(f"{kernel.tree.root}/sys/bus/pci/drivers_probe", GPU)
    assert kernel.driver(GPU) == "nouveau"
    assert machine.bind() == [Changed(CARD[0], "nouveau", VFIO)]
    machine.restore()
    assert machine.all_as_before


def test_a_member_that_was_on_vfio_before_is_not_given_back(machine: Machine) -> None:
    machine.kernel.write(f"{machine.kernel.tree.path(AUDIO)}/driver_override", VFIO)
    machine.kernel.write(f"{machine.kernel.tree.root}/sys/bus/pci/drivers/snd_hda_intel/unbind", AUDIO)
    machine.kernel.write(f"{machine.kernel.tree.root}/sys/bus/pci/drivers_probe", AUDIO)
    before = machine.state()
    machine.bind()
    assert machine.all_bound
    machine.restore()
    assert machine.state() == before


def _vfio_refuses(machine: Machine, address: str) -> None:
    machine.kernel.probe_fails.add((VFIO, address))


def _unbind_is_refused(machine: Machine, address: str) -> None:
    machine.kernel.refuses["unbind", address] = errno.EBUSY


def _override_is_refused(machine: Machine, address: str) -> None:
    machine.kernel.refuses["driver_override", address] = errno.EACCES


@pytest.mark.parametrize(
    ("spoil", "address"),
    [
        *((spoil, address) for spoil in (_vfio_refuses, _override_is_refused) for address in (GPU, AUDIO, SERIAL)),
        (_unbind_is_refused, GPU),
        (_unbind_is_refused, AUDIO),
    ],
)
def test_where_one_member_can_not_be_bound_none_is(
    machine: Machine, spoil: Callable[[Machine, str], None], address: str
) -> None:
    spoil(machine, address)
    with raises_code(STEP_FAILED, match=address):
        machine.bind()
    assert machine.state() == machine.before
    assert machine.ledger.records() == []


def test_where_one_member_vanishes_none_is_bound(machine: Machine) -> None:
    machine.kernel.unplug(SERIAL)
    with raises_code(STEP_FAILED, match=SERIAL):
        machine.bind()
    assert [machine.kernel.driver(address) for address in (GPU, AUDIO)] == ["nvidia", "snd_hda_intel"]
    assert machine.ledger.records() == []


def test_a_driver_that_does_not_let_go_is_reported_and_the_rest_goes_back(machine: Machine) -> None:
    machine.kernel.busy.add(AUDIO)
    with raises_code(STEP_HANGS, match=r"snd_hda_intel/unbind has not returned within 30 s; process 4711"):
        machine.bind()
    assert machine.state()[0] == machine.before[0]
    record = machine.ledger.find(CARD)
    assert record is not None
    assert [(entry.address, entry.state) for entry in record.entries] == [(CARD[1], "restoring")]
    assert [settled.end for settled in machine.recover()] == ["restoring"], "it hangs still"
    machine.kernel.let_go(AUDIO)
    assert [settled.end for settled in machine.recover()] == [None]
    assert machine.state() == machine.before
    assert machine.ledger.records() == []


def test_a_function_that_had_no_driver_and_keeps_ours_is_reported_without_one(machine: Machine) -> None:
    machine.bind()
    (record,) = machine.ledger.records()
    machine.kernel.clinging.add(SERIAL)
    only = record._replace(entries=tuple(entry for entry in record.entries if str(entry.address) == SERIAL))
    with raises_code(STEP_FAILED) as raised:
        machine.binder().restore(only)
    assert str(raised.value) == f"{SERIAL} is bound to vfio-pci and should be bound to no driver again"


def test_what_can_not_be_given_back_stays_on_record_and_is_tried_again(machine: Machine) -> None:
    machine.bind()
    machine.kernel.probe_fails.add(("nvidia", GPU))
    machine.kernel.drivers["nouveau"] = ()
    with raises_code(STEP_FAILED, match="no driver and should be bound to nvidia again"):
        machine.restore()
    assert machine.state()[1:] == machine.before[1:]
    machine.kernel.probe_fails.clear()
    assert machine.restore()
    assert machine.state() == machine.before


def test_what_others_have_bound_since_stays_theirs(machine: Machine) -> None:
    machine.bind()
    root = machine.kernel.tree.root
    machine.kernel.write(f"{machine.kernel.tree.path(GPU)}/driver_override", "nouveau")
    machine.kernel.write(f"{root}/sys/bus/pci/drivers/vfio-pci/unbind", GPU)
    machine.kernel.write(f"{root}/sys/bus/pci/drivers_probe", GPU)
    machine.restore()
    assert machine.state() == [("nouveau", "nouveau"), *machine.before[1:]]


def test_what_is_gone_needs_not_be_given_back(machine: Machine) -> None:
    machine.bind()
    machine.kernel.unplug(GPU)
    machine.restore()
    assert machine.ledger.records() == []


def test_a_record_of_another_boot_is_void(machine: Machine) -> None:
    machine.bind()
    later = Ledger(machine.folder, "boot-2")
    assert later.records() == []
    later.remove_void()
    assert machine.ledger.records() == []


def test_what_is_held_is_neither_bound_nor_given_back(machine: Machine) -> None:
    machine.held = True
    with raises_code(DEVICE_HELD):
        machine.bind()
    assert machine.state() == machine.before
    machine.held = False
    machine.bind()
    machine.held = True
    with raises_code(DEVICE_HELD):
        machine.restore()
    assert machine.all_bound


def test_who_has_a_usb_device_has_its_controller() -> None:
    """K8: between Allocate and QEMU's start no process has the device open, either."""
    controller = PciAddress.parse("0000:00:14.0")
    both = "usb-0000:00:14.0-2-2+usb-0000:00:14.0-3-1.3"
    used = Usage("pod-resources", {"a/KEY": {both: Holder("vms/launcher", "compute")}})
    others = function("0000:00:15.0", USB, group=6, driver="xhci_hcd")
    host = facts(function("0000:00:14.0", USB, group=5, driver="xhci_hcd"), others)
    held = [*holders_of([controller], host, used, OpenNodes({}))]
    assert held[0].startswith("usb-0000:00:14.0-2-2 is held by pod vms/launcher")
    assert not [*holders_of([PciAddress.parse("0000:00:15.0")], host, used, OpenNodes({}))]


def test_a_guest_that_has_the_group_open_is_never_unbound_even_where_nobody_saw_it(machine: Machine) -> None:
    machine.bind()
    machine.kernel.open_groups.add(44)
    with raises_code(STEP_HANGS):
        machine.restore()
    assert machine.all_bound, "the kernel waits for the guest"


def _count_moments(machine: Machine, do: Callable[[], object]) -> int:
    machine.kernel.new_process()
    do()
    return machine.kernel.moments


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_killed_at_any_moment_it_ends_all_bound_or_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    variant = data.draw(st.sampled_from([None, "x_vfio_pci"]), label="variant")
    machine = Machine(tmp_path_factory.mktemp("host"), variant)
    if data.draw(st.booleans(), label="one member can't be bound"):
        refused = data.draw(st.sampled_from([GPU, AUDIO, SERIAL]))
        machine.kernel.probe_fails.update({(VFIO, refused), ("x_vfio_pci", refused)})
    if data.draw(st.booleans(), label="bound at first") and not machine.kernel.probe_fails:
        machine.bind()
    for _ in range(data.draw(st.integers(1, 4), label="processes")):
        do = data.draw(st.sampled_from([machine.bind, machine.restore, machine.recover]))
        machine.kernel.new_process(die_at=data.draw(st.integers(1, 75), label="dies at"))
        with suppress(Killed, LauncherkitError):
            do()
    machine.kernel.new_process()
    for settled in machine.recover():
        assert settled.error is None
    assert machine.all_as_before or machine.all_bound
    assert bool(machine.ledger.records()) == machine.all_bound
    machine.restore()
    assert machine.all_as_before
    assert machine.ledger.records() == []


@pytest.mark.parametrize("variant", [None, "x_vfio_pci"])
@pytest.mark.parametrize("what", ["bind", "restore"])
def test_at_each_single_moment_of_a_change(tmp_path: Path, what: str, variant: str | None) -> None:
    first = Machine(tmp_path / "first", variant)
    if what == "restore":
        first.bind()
    moments = _count_moments(first, getattr(first, what))
    ends = set()
    for moment in range(1, moments + 1):
        machine = Machine(tmp_path / str(moment), variant)
        if what == "restore":
            machine.bind()
        machine.kernel.new_process(die_at=moment)
        with pytest.raises(Killed):
            getattr(machine, what)()
        machine.kernel.new_process()
        machine.recover()
        assert machine.all_as_before or machine.all_bound
        assert bool(machine.ledger.records()) == machine.all_bound
        ends.add(machine.all_bound)
    assert ends == {True, False}


def test_what_was_killed_half_way_and_is_held_by_now_is_left_alone(machine: Machine) -> None:
    moments = _count_moments(machine, machine.bind)
    machine.restore()
    machine.kernel.new_process(die_at=moments - 1)  # all is bound, and the record doesn't say so yet
    with pytest.raises(Killed):
        machine.bind()
    machine.kernel.new_process()
    machine.held = True
    assert [settled.end for settled in machine.recover()] == ["bound"]
    assert machine.all_bound


def test_who_comes_second_waits_and_then_gives_up(machine: Machine) -> None:
    with machine.ledger.locked(CARD[:1]):
        with raises_code(STEP_HANGS, match="by another process"), machine.ledger.locked(CARD, seconds=0.05):
            pass
        with machine.ledger.locked(CARD[1:], seconds=0):
            pass


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "file" / "folder"
    folder.parent.write_text("")
    with raises_code(UNWRITABLE_FILE, match=f"{folder}: Not a directory"), Ledger(str(folder), "").locked(CARD):
        pass


def test_a_folder_that_others_can_write_to_is_refused(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with raises_code(BAD_RECORD, match="can be written to by others"), Ledger(str(folder), "").locked(CARD):
        pass


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 2},
        {"driver": "../nvidia"},
        {"driver": None},
        {"entries": []},
        {"entries": [{"address": GPU, "driver": "..", "override": None, "state": "bound"}]},
        {"entries": [{"address": "x", "driver": None, "override": None, "state": "bound"}]},
        {"entries": [{"address": GPU, "driver": None, "override": None, "state": "lost"}]},
        {"entries": [{"address": GPU}]},
        {"by": "somebody"},
        {"leader": "../0000:01:00.0"},
    ],
)
def test_a_record_that_is_none_of_ours_is_an_error_that_names_the_file(
    machine: Machine, changed: dict[str, object]
) -> None:
    machine.bind()
    path = Path(machine.folder) / f"{GPU}.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({"version": 1, "boot": stored["boot"], **stored["content"], **changed}))
    with raises_code(BAD_RECORD, match=r"0000:01:00\.0\.json is not a valid record"):
        machine.ledger.find([PciAddress.parse(GPU)])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[]", "a list is not an object"),
        ("{}", "boot: nothing is not the ID of a boot"),
        ('{"boot": ""}', "it has no entries"),
        ('{"boot": "", "entries": 7}', "entries: 7 is not a list"),
        ('{"boot": "", "entries": ["a"]}', "entries[0]: 'a' is not an object"),
        ('{"boot": "", "entries": [{"address": 5}]}', "entries[0].address: 5 is not an address"),
        ('{"boot": "", "entries": [{"address": "0000:01:00.0"}]}', "entries[0] has no driver"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
    ids=lambda value: value[:40],
)
def test_a_record_of_a_wrong_shape_says_what_is_wrong_and_where(machine: Machine, content: str, why: str) -> None:
    machine.bind()
    path = Path(machine.folder) / f"{GPU}.json"
    path.write_text(content)
    with raises_code(BAD_RECORD) as caught:
        machine.ledger.find([PciAddress.parse(GPU)])
    assert caught.value.message.startswith(f"{path} is not a valid record of what was bound: ")
    assert why in caught.value.message


def test_a_record_of_before_checksums_is_read(machine: Machine) -> None:
    machine.bind()
    written = machine.ledger.records()
    path = Path(machine.folder) / f"{GPU}.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({"version": 1, "boot": stored["boot"], **stored["content"]}, indent=1))
    assert machine.ledger.records() == written


_addresses = st.builds(
    PciAddress, st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7)
)
_letters = st.characters(exclude_characters="/\0\n", exclude_categories=["Cs"])
_drivers = st.none() | st.text(_letters, min_size=1).filter(lambda name: name not in (".", ".."))
_powers = st.builds(Power, st.sampled_from(["0", "1", None]), st.sampled_from(["auto", "on", None]))
_states = st.sampled_from(["binding", "bound", "restoring"])
_entries = st.builds(Entry, _addresses, _drivers, _drivers, _states, _powers, _drivers)
_records = st.builds(
    Record,
    _addresses,
    _drivers.filter(bool),
    st.sampled_from(["command", "configuration"]),
    st.lists(_addresses).map(tuple),
    st.lists(_entries, min_size=1).map(tuple),
)


@settings(deadline=None)
@given(record=_records)
def test_a_record_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, record: Record) -> None:
    ledger = Ledger(str(tmp_path_factory.mktemp("ledger") / "folder"), "boot-1")
    ledger.write(record)
    assert ledger.records() == [record]
    ledger.remove(record)
    assert ledger.records() == []
