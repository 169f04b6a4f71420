"""One guest slot a physical device (P1-P3, P6)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from launcherkit.errors import NO_ROOM, SLOT_TAKEN, Collector, LauncherkitError
from launcherkit.model.address import GuestAddress, HostAddress, MdevAddress
from launcherkit.model.domain import Controller, DomainFacts, ExistingHostdev, PciRoot, Unplaced
from launcherkit.model.plan import Attachment, GuestDevice, Note
from launcherkit.place.slots import Placement, place_devices
from tests.support.errors import raises_code
from tests.support.facts import UUID, at

CARD = "0000:e1:00.0", "0000:e1:00.1"
OTHER = "0000:01:00.0", "0000:01:00.1"


def guest(text: str) -> GuestAddress:
    address = at(text)
    return GuestAddress(*address)


def device(*sources: str, hostdevs: dict[str, int] | None = None) -> GuestDevice:
    there = hostdevs or {}
    return GuestDevice(
        "pci", tuple(Attachment(at(source), "primary", "", None, there.get(source)) for source in sources)
    )


def hostdev(source: HostAddress, place: str | None, *, placed: bool | None = None) -> ExistingHostdev:
    address = None if place is None else guest(place)
    return ExistingHostdev(
        "pci", source, None, address, address is not None if placed is None else placed, "no", None, None
    )


def domain(
    topology: PciRoot = "pcie",
    *,
    controllers: Iterable[Controller] = (),
    used: Iterable[str] = (),
    hostdevs: Iterable[ExistingHostdev] = (),
    unplaced: Iterable[Unplaced] = (),
) -> DomainFacts:
    there = tuple(hostdevs)
    addresses = {guest(text) for text in used} | {each.guest for each in there if each.guest is not None}
    return DomainFacts(
        topology,
        "x86_64/m",
        tuple(controllers),
        frozenset(addresses),
        True,
        False,
        frozenset(),
        there,
        frozenset(),
        False,
        tuple(unplaced),
    )


def root_port(index: int, place: str | None = None) -> Controller:
    return Controller(index, "pcie-root-port", None if place is None else guest(place))


def place(devices: Iterable[GuestDevice], facts: DomainFacts, notes: list[Note] | None = None) -> Placement:
    placement = place_devices(list(devices), facts)
    Collector(placement.errors).raise_if_any()
    if notes is not None:
        notes += placement.notes
    return placement


def ports(placement: Placement) -> tuple[int | None, ...]:
    return tuple(controller.number for controller in placement.controllers if controller.model == "pcie-root-port")


def shown(placement: Placement) -> dict[str, str]:
    """Host address to guest address; ``+`` where multifunction stands."""
    return {
        str(source): f"{where.address}{'+' if where.multifunction else ''}"
        for source, where in placement.guests.items()
    }


def test_a_card_takes_one_slot_behind_a_root_port_of_its_own() -> None:
    """P1, P2."""
    placement = place([device(*CARD), device(*OTHER)], domain())
    assert shown(placement) == {
        CARD[0]: "0000:01:00.0+",
        CARD[1]: "0000:01:00.1",
        OTHER[0]: "0000:02:00.0+",
        OTHER[1]: "0000:02:00.1",
    }
    assert ports(placement) == (1, 2)


def test_guest_functions_are_the_hosts_numbers_where_the_lowest_is_0() -> None:
    """P1."""
    placement = place([device("0000:e1:00.0", "0000:e1:00.3", "0000:e1:00.7")], domain())
    assert list(shown(placement).values()) == ["0000:01:00.0+", "0000:01:00.3", "0000:01:00.7"]


def test_guest_functions_are_counted_from_0_where_the_lowest_is_another() -> None:
    """P1, whatever the order of the functions."""
    placement = place([device("0000:e1:00.5", "0000:e1:00.2", "0000:e1:00.3")], domain())
    assert shown(placement) == {
        "0000:e1:00.2": "0000:01:00.0+",
        "0000:e1:00.3": "0000:01:00.1",
        "0000:e1:00.5": "0000:01:00.2",
    }


def test_a_single_function_is_left_to_libvirt() -> None:
    """P3."""
    placement = place(
        [device(CARD[0]), GuestDevice("mdev", (Attachment(MdevAddress(UUID), "primary", "", None, None),))], domain()
    )
    assert placement == Placement({}, ())


NIC, WATCHDOG = Unplaced("pcie"), Unplaced("pci", after_hostdevs=True)
BALLOON = Unplaced("pcie", after_hostdevs=True)


def test_a_root_port_comes_after_those_that_libvirt_makes() -> None:
    """P2: two NICs and a memory balloon are at 1, 2 and 3, with us or without."""
    placement = place([device(*CARD), device(*OTHER)], domain(unplaced=[NIC, NIC, BALLOON]))
    assert placement.controllers == (
        Controller(4, "pcie-root-port", guest("0000:00:10.0")),
        Controller(5, "pcie-root-port", guest("0000:00:10.1")),
    )


def test_a_bridge_that_libvirt_would_make_is_written_down() -> None:
    """P2: else libvirt would make it after our root port."""
    placement = place([device(*CARD)], domain(unplaced=[NIC, WATCHDOG]))
    assert placement.controllers == (
        Controller(3, "pcie-to-pci-bridge", None),
        Controller(4, "pcie-root-port", guest("0000:00:10.0")),
    )


def test_root_ports_that_are_free_are_left_to_what_libvirt_places() -> None:
    """P2: ports kept for hot-plug, say."""
    free = [root_port(index, f"0000:00:02.{index}") for index in (1, 2, 3)]
    assert ports(place([device(*CARD)], domain(controllers=free, unplaced=[NIC, NIC]))) == (4,)
    assert ports(place([device(*CARD)], domain(controllers=free, unplaced=[NIC] * 5))) == (6,)


def test_a_hostdev_of_the_document_stays_where_libvirt_would_put_it() -> None:
    """P2: its siblings come to it, and no root port is added."""
    facts = domain(hostdevs=[hostdev(at(CARD[0]), None)], unplaced=[NIC, NIC, Unplaced("pcie", 0), BALLOON])
    placement = place([device(*CARD, hostdevs={CARD[0]: 0})], facts)
    assert shown(placement) == {CARD[0]: "0000:03:00.0+", CARD[1]: "0000:03:00.1"}
    assert placement.controllers == ()


def test_two_hostdevs_of_one_card_leave_no_port_empty() -> None:
    """P2: the second comes to the first, and the next card to the port that the second would have had."""
    there = [hostdev(at(source), None) for source in (*CARD, OTHER[0])]
    facts = domain(hostdevs=there, unplaced=[NIC, *(Unplaced("pcie", number) for number in range(3))])
    devices = [device(*CARD, hostdevs={CARD[0]: 0, CARD[1]: 1}), device(*OTHER, hostdevs={OTHER[0]: 2})]
    assert [where.rstrip("+") for where in shown(place(devices, facts)).values()] == [
        "0000:02:00.0",
        "0000:02:00.1",
        "0000:03:00.0",
        "0000:03:00.1",
    ]


def test_a_function_that_would_move_what_libvirt_places_after_it_has_a_root_port() -> None:
    """P3, P2: hostdevs are placed before the memory balloon."""
    facts = domain(unplaced=[NIC, BALLOON])
    assert shown(place([device(CARD[0])], facts)) == {CARD[0]: "0000:03:00.0"}
    assert shown(place([device(CARD[0])], domain(unplaced=[NIC]))) == {}
    there = domain(hostdevs=[hostdev(at(CARD[0]), None)], unplaced=[NIC, Unplaced("pcie", 0), BALLOON])
    assert shown(place([device(CARD[0], hostdevs={CARD[0]: 0})], there)) == {}


@pytest.mark.parametrize(
    ("facts", "bus"),
    [
        (domain(), 1),
        (domain(controllers=[Controller(0, "pcie-root", None)]), 1),
        (domain(controllers=[root_port(4), root_port(2)]), 5),
        (domain(controllers=[root_port(2)], used=["0000:07:00.0"]), 8),
        (domain(controllers=[Controller(0, "pcie-root", None), Controller(None, "pcie-root-port", None)]), 2),
        (domain(controllers=[root_port(254)]), 255),
    ],
)
def test_the_root_ports_index_is_above_every_index_and_bus_in_use(facts: DomainFacts, bus: int) -> None:
    """P2."""
    placement = place([device(*CARD)], facts)
    assert ports(placement) == (bus,)
    assert {where.address.bus for where in placement.guests.values()} == {bus}


def test_there_are_255_buses_and_no_more() -> None:
    """P2."""
    with raises_code(NO_ROOM, match="no bus for another pcie-root-port"):
        place([device(*CARD)], domain(controllers=[root_port(255)]))


def test_a_full_root_bus_has_no_place_for_a_root_port() -> None:
    """P2: eight ports to a slot, in free slots or beside other ports."""
    full = [f"0000:00:{slot:02x}.0" for slot in range(1, 0x1F)]
    with raises_code(NO_ROOM):
        place([device(*CARD)], domain(used=full))
    seven = [root_port(number + 1, f"0000:00:02.{number}") for number in range(7)]
    assert ports(place([device(*CARD)], domain(used=full, controllers=seven))) == (8,)
    with raises_code(NO_ROOM):
        place([device(*CARD), device(*OTHER)], domain(used=full, controllers=seven))


def test_on_pc_a_card_takes_a_free_slot_of_bus_0() -> None:
    """P2."""
    used = ["0000:00:1f.0", "0000:00:1d.2", "0001:00:1e.0", "0000:01:1c.0"]
    placement = place([device(*CARD), device(*OTHER)], domain("pci", used=used))
    assert shown(placement) == {
        CARD[0]: "0000:00:1e.0+",
        CARD[1]: "0000:00:1e.1",
        OTHER[0]: "0000:00:1c.0+",
        OTHER[1]: "0000:00:1c.1",
    }
    assert ports(placement) == ()


def test_on_pc_a_full_bus_0_is_an_error_and_slots_0_to_2_are_the_machines() -> None:
    """P2."""
    almost = [f"0000:00:{slot:02x}.0" for slot in range(4, 32)]
    assert set(shown(place([device(*CARD)], domain("pci", used=almost))).values()) == {"0000:00:03.0+", "0000:00:03.1"}
    with raises_code(NO_ROOM, match="no free slot on PCI bus 0"):
        place([device(*CARD)], domain("pci", used=[*almost, "0000:00:03.0"]))


def test_elsewhere_libvirt_places_and_a_note_says_so() -> None:
    """P6."""
    notes: list[Note] = []
    assert place([device(*CARD)], domain("other"), notes) == Placement({}, (), tuple(notes))
    assert [note.topic for note in notes] == ["not-placed"]
    notes.clear()
    place([device(CARD[0])], domain("other"), notes)
    assert notes == []


def test_siblings_join_a_hostdev_that_has_a_guest_address() -> None:
    """P2."""
    facts = domain(hostdevs=[hostdev(at(CARD[0]), "0000:05:00.0")])
    placement = place([device(*CARD, hostdevs={CARD[0]: 0})], facts)
    assert shown(placement) == {CARD[0]: "0000:05:00.0+", CARD[1]: "0000:05:00.1"}
    assert ports(placement) == ()


def test_multifunction_stands_again_where_a_second_pass_has_lost_it() -> None:
    """X2, P1: on function 0 of the slot that is shared, and said to be off of the others."""
    facts = domain(hostdevs=[hostdev(at(CARD[1]), "0000:05:00.1"), hostdev(at(CARD[0]), "0000:05:00.0")])
    placement = place([device(*CARD, hostdevs={CARD[0]: 1, CARD[1]: 0})], facts)
    assert {str(source): where.multifunction for source, where in placement.guests.items()} == {
        CARD[0]: True,
        CARD[1]: False,
    }


def test_a_function_that_is_alone_in_its_slot_keeps_its_address_and_shares_nothing() -> None:
    """P2, P3."""
    facts = domain(hostdevs=[hostdev(at(CARD[0]), "0000:05:00.0")])
    (where,) = place([device(CARD[0], hostdevs={CARD[0]: 0})], facts).guests.values()
    assert (str(where.address), where.multifunction) == ("0000:05:00.0", None)


def test_a_slot_in_which_a_siblings_function_is_in_use_is_an_error() -> None:
    """P2."""
    facts = domain(hostdevs=[hostdev(at(CARD[0]), "0000:00:05.0")], used=["0000:00:05.1"])
    with raises_code(SLOT_TAKEN, match=r"slot 0000:00:05 can't take 0000:e1:00.1 .* 0000:00:05.1 is in use"):
        place([device(*CARD, hostdevs={CARD[0]: 0})], facts)


def test_a_slot_that_would_have_no_function_0_is_an_error() -> None:
    """P1: guests look there first."""
    facts = domain(hostdevs=[hostdev(at(CARD[0]), "0000:00:05.3")])
    with raises_code(SLOT_TAKEN, match="function 0"):
        place([device(*CARD, hostdevs={CARD[0]: 0})], facts)


def test_two_cards_never_get_one_guest_address() -> None:
    """P2, where the document has put one function of each into one slot."""
    first = [f"0000:e1:00.{number}" for number in (0, 1, 2)]
    second = [f"0000:01:00.{number}" for number in (0, 1, 3)]
    facts = domain(hostdevs=[hostdev(at(first[2]), "0000:05:00.2"), hostdev(at(second[2]), "0000:05:00.3")])
    with pytest.raises(LauncherkitError, match="in use"):
        place([device(*first, hostdevs={first[2]: 0}), device(*second, hostdevs={second[2]: 1})], facts)


def test_functions_of_two_cards_in_one_device_get_a_slot_a_card() -> None:
    """P1, with siblings: group."""
    placement = place([device(*CARD, *OTHER)], domain())
    assert list(shown(placement).values()) == ["0000:01:00.0+", "0000:01:00.1", "0000:02:00.0+", "0000:02:00.1"]


def test_a_hostdev_that_says_it_is_nowhere_is_left_alone() -> None:
    facts = domain(hostdevs=[hostdev(at(CARD[0]), None, placed=True)])
    placement = place([device(*CARD, hostdevs={CARD[0]: 0})], facts)
    assert placement == Placement({}, (), placement.notes)


def test_a_new_card_keeps_clear_of_where_an_old_one_is() -> None:
    facts = domain(hostdevs=[hostdev(at(CARD[0]), "0000:05:00.0")])
    placement = place([device(*OTHER), device(*CARD, hostdevs={CARD[0]: 0})], facts)
    assert ports(placement) == (6,)
    assert len({where.address for where in placement.guests.values()}) == 4
