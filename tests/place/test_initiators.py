"""GPUs whose memory the host's CPUs share have cells of the guest, and an expander each (P7)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from launcherkit.errors import NO_INITIATORS
from launcherkit.model.address import GuestAddress, PciAddress
from launcherkit.model.domain import Controller, DomainFacts, ExistingHostdev, GuestCell
from launcherkit.model.host import HostFacts
from launcherkit.place.initiators import is_coherent_gpu
from launcherkit.place.slots import Placement, place_devices, topology_for
from tests.place.test_topology import CELLS, devices, domain, host
from tests.support.facts import at, function

VIRT = "aarch64/virt"
GPUS = ("0008:01:00.0", "0009:01:00.0")
EMPTY = tuple(GuestCell(number, frozenset(), frozenset(), empty=True) for number in range(2, 10))
EXPANDER = Controller(1, "pcie-expander-bus", None, 250, 0)
PORTS = tuple(Controller(number, "pcie-root-port", GuestAddress(0, 1, slot, 0)) for slot, number in enumerate((2, 3)))


def grace(*others: str, node: int = 0) -> HostFacts:
    """GPUs on one node, below one root complex."""
    addresses = (*GPUS, *others)
    known = host(dict.fromkeys(addresses, node), dict.fromkeys(addresses, ("pci0008:00", "port")))
    gpus = {at(each): known.functions[at(each)]._replace(vendor=0x10DE, device=0x2941) for each in GPUS}
    return known._replace(functions={**known.functions, **gpus})


def place(guest: DomainFacts, *addresses: str, there: Mapping[str, int] | None = None, node: int = 0) -> Placement:
    known = grace(*(each for each in addresses if each not in GPUS), node=node)
    return place_devices(devices(addresses, there), guest, known, topology_for(guest, "auto"), generic_initiators=True)


def hostdev(source: str, bus: int | None, nodeset: frozenset[int] | None = None) -> ExistingHostdev:
    guest = None if bus is None else GuestAddress(0, bus, 0, 0)
    return ExistingHostdev("pci", at(source), None, guest, bus is not None, None, None, None, nodeset=nodeset)


def why(placed: Placement) -> list[str]:
    assert all(error.code == NO_INITIATORS.code for error in placed.errors)
    return [error.message.rpartition("wants it: ")[2] for error in placed.errors]


def test_each_gpu_has_eight_cells_and_an_expander_though_the_root_complex_is_one() -> None:
    placed = place(domain(machine=VIRT), *GPUS, "000a:01:00.0")
    first, second = (placed.nodesets[at(each)] for each in GPUS)
    assert (sorted(first), sorted(second)) == ([*range(2, 10)], [*range(10, 18)])
    assert placed.cells == (*range(2, 18),)
    assert [each.cell for each in placed.controllers if each.model == "pcie-expander-bus"] == [0, 0, 0]
    assert not placed.errors


def test_no_other_gpu_is_a_generic_initiator() -> None:
    placed = place(domain(machine=VIRT), "000a:01:00.0")
    assert (placed.nodesets, placed.cells) == ({}, ())


def test_without_the_policy_nothing_changes() -> None:
    placed = place_devices(devices(GPUS), domain(machine=VIRT), grace(), "auto")
    assert (placed.nodesets, placed.cells) == ({}, ())


def test_empty_cells_that_nobody_has_are_used_first() -> None:
    placed = place(domain((*CELLS, *EMPTY), machine=VIRT), *GPUS)
    assert placed.cells == (*range(10, 18),)


def test_a_cell_that_an_expander_stands_for_is_not_free() -> None:
    expander = Controller(1, "pcie-expander-bus", None, 250, 2)
    placed = place(domain((*CELLS, *EMPTY), [expander], machine=VIRT), GPUS[0])
    assert placed.nodesets[at(GPUS[0])] == frozenset(range(3, 11))


def test_a_gpu_behind_an_expander_of_its_own_stays_there_and_gets_cells() -> None:
    guest = domain(controllers=(EXPANDER, PORTS[0]), hostdevs=[hostdev(GPUS[0], 2)], machine=VIRT)
    placed = place(guest, GPUS[0], there={GPUS[0]: 0})
    assert placed.guests[at(GPUS[0])].address == GuestAddress(0, 2, 0, 0)
    assert (placed.cells, placed.errors) == ((*range(2, 10),), ())


def test_a_gpu_that_shares_its_expander_is_refused_unless_the_document_gave_it_cells() -> None:
    two = [hostdev(GPUS[0], 2), hostdev(GPUS[1], 3)]
    placed = place(domain(controllers=(EXPANDER, *PORTS), hostdevs=two, machine=VIRT), GPUS[0], there={GPUS[0]: 0})
    assert why(placed) == ["another hostdev is behind its expander 1"]
    two[0] = two[0]._replace(nodeset=frozenset(range(2, 10)))
    guest = domain((*CELLS, *EMPTY), (EXPANDER, *PORTS), two, VIRT)
    kept = place(guest, GPUS[0], there={GPUS[0]: 0})
    assert (kept.nodesets[at(GPUS[0])], kept.cells, kept.errors) == (two[0].nodeset, (), ())


@pytest.mark.parametrize(
    ("guest", "node", "message"),
    [
        (domain(), 0, "Grace's guests are of aarch64's virt, and this one is x86_64/q35"),
        (domain((), machine=VIRT), 0, "the domain has no NUMA cells, to which the GPU's could be added"),
        (domain(CELLS[:1], machine=VIRT), 1, "no cell of the guest is on its host node 1 (cell 0: host node 0)"),
        (
            domain(hostdevs=[hostdev(GPUS[0], None)._replace(placed=True)], machine=VIRT),
            0,
            "it is at no PCI address in the guest, which is not behind an expander of cell 0",
        ),
        (
            domain(controllers=[EXPANDER._replace(bus_number=2)], machine=VIRT),
            0,
            "the guest has no room for another pcie-expander-bus",
        ),
    ],
    ids=["machine", "no cells", "other node", "unassigned", "no room"],
)
def test_what_cannot_be_is_an_error_that_says_why(guest: DomainFacts, node: int, message: str) -> None:
    there = {GPUS[0]: 0} if guest.hostdevs else None
    placed = place(guest, GPUS[0], there=there, node=node)
    assert why(placed) == [message]
    assert [note for note in placed.notes if note.topic == "not-aligned"] == []


def test_a_gpu_is_told_by_its_driver_or_its_device_id_and_a_vf_is_none() -> None:
    card = function(GPUS[0])
    assert not is_coherent_gpu(card)
    assert is_coherent_gpu(card._replace(driver="nvgrace-gpu-vfio-pci"))
    assert is_coherent_gpu(card._replace(driver="nvgrace_gpu_vfio_pci"))
    gb300 = card._replace(vendor=0x10DE, device=0x31C2, driver=None)
    assert is_coherent_gpu(gb300)
    assert not is_coherent_gpu(gb300._replace(physfn=PciAddress(8, 1, 0, 0)))
