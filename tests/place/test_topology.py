"""The guest's PCIe tree follows the host's: by NUMA cell, root complex and switch (P4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcherkit.errors import NOT_ALIGNED
from launcherkit.model.address import GuestAddress, HostAddress, PciAddress
from launcherkit.model.domain import Controller, DomainFacts, ExistingHostdev, GuestCell
from launcherkit.model.host import HostFacts, NumaNode
from launcherkit.model.plan import Attachment, GuestDevice
from launcherkit.model.policy import Topology
from launcherkit.place.slots import Placement, place_devices, topology_for
from tests.support.facts import at, detail, facts, function

CELLS = (GuestCell(0, frozenset({0}), frozenset()), GuestCell(1, frozenset({1}), frozenset()))
NUMA = {0: NumaNode(frozenset(range(8)), {0: 10, 1: 21}), 1: NumaNode(frozenset(range(8, 16)), {0: 21, 1: 10})}


def host(nodes: Mapping[str, int | None], paths: Mapping[str, Sequence[str]] | None = None) -> HostFacts:
    """Functions by address, with their nodes; each node is one root complex where no path says otherwise."""
    said = paths or {}
    functions = [function(address)._replace(numa_node=node) for address, node in nodes.items()]
    details = {
        address: detail(parents=tuple(said.get(address, (f"pci{node}", "port")))) for address, node in nodes.items()
    }
    return facts(*functions, details=details)._replace(numa=NUMA)


def domain(
    cells: Sequence[GuestCell] = CELLS,
    controllers: Iterable[Controller] = (),
    hostdevs: Sequence[ExistingHostdev] = (),
    machine: str = "x86_64/q35",
) -> DomainFacts:
    there = tuple(controllers)
    used = {each.guest for each in there if each.guest} | {each.guest for each in hostdevs if each.guest}
    nothing = frozenset[str]()
    return DomainFacts(
        "pcie",
        machine,
        there,
        frozenset(used),
        False,
        False,
        nothing,
        tuple(hostdevs),
        frozenset(),
        None,
        cells=tuple(cells),
    )


def devices(addresses: Iterable[str], hostdevs: Mapping[str, int] | None = None) -> list[GuestDevice]:
    there = hostdevs or {}
    return [GuestDevice("pci", (Attachment(at(each), "primary", "", None, there.get(each)),)) for each in addresses]


def place(
    nodes: Mapping[str, int | None],
    guest: DomainFacts,
    topology: Topology = "auto",
    **paths: Mapping[str, Sequence[str]],
) -> Placement:
    return place_devices(devices(nodes), guest, host(nodes, **paths), topology_for(guest, topology))


def tree(placement: Placement) -> dict[str, tuple[int | None, ...]]:
    """The cell of each device, then the slots on the way down to it."""
    behind = {controller.number: controller for controller in placement.controllers}
    found = {}
    for source, where in placement.guests.items():
        way: list[int] = []
        bus = where.address.bus
        while (controller := behind.get(bus)) is not None and controller.cell is None and controller.guest is not None:
            way.append(controller.guest.slot)
            bus = controller.guest.bus
        cell = None if controller is None else controller.cell
        found[str(source)] = (cell, *reversed(way))
    return found


def test_each_device_is_below_the_cell_of_its_node_in_the_order_of_the_host() -> None:
    placed = place({"0000:af:00.0": 1, "0000:3c:00.0": 0, "0000:3b:00.0": 0}, domain())
    assert tree(placed) == {"0000:3b:00.0": (0, 0), "0000:3c:00.0": (0, 1), "0000:af:00.0": (1, 0)}


def test_bus_numbers_are_counted_from_the_top_and_leave_room_for_each_port() -> None:
    placed = place({"0000:af:00.0": 1, "0000:3c:00.0": 0, "0000:3b:00.0": 0}, domain())
    expanders = {each.cell: each.bus_number for each in placed.controllers if each.bus_number}
    assert expanders == {0: 253, 1: 251}


def test_root_complexes_of_one_node_stay_apart() -> None:
    nodes = dict.fromkeys(("0000:1b:00.0", "0000:3d:00.0", "0000:5d:00.0", "0000:7d:00.0"), 0)
    paths = {address: (f"pci{address[:7]}", "port") for address in nodes}
    placed = place(nodes, domain(), paths=paths)
    assert [each.cell for each in placed.controllers if each.bus_number] == [0, 0, 0, 0]
    assert [each.bus_number for each in placed.controllers if each.bus_number] == [254, 252, 250, 248]


@pytest.mark.parametrize("topology", ["auto", "switches"])
def test_one_cell_or_none_bound_needs_no_expander(topology: Topology) -> None:
    for cells in (CELLS[:1], (), tuple(cell._replace(nodes=frozenset()) for cell in CELLS)):
        placed = place({"0000:3b:00.0": 0}, domain(cells), topology)
        assert placed == place_devices(devices(["0000:3b:00.0"]), domain(cells))


def test_numa_takes_one_cell_too() -> None:
    assert tree(place({"0000:3b:00.0": 0}, domain(CELLS[:1]), "numa")) == {"0000:3b:00.0": (0, 0)}


def test_pins_count_where_no_memory_is_bound() -> None:
    cells = tuple(GuestCell(1 - cell, frozenset(), frozenset({cell * 8, cell * 8 + 1})) for cell in (0, 1))
    assert tree(place({"0000:3b:00.0": 0, "0000:af:00.0": 1}, domain(cells))) == {
        "0000:3b:00.0": (1, 0),
        "0000:af:00.0": (0, 0),
    }


def test_a_node_that_two_cells_have_memory_of_is_told_by_the_pins() -> None:
    cells = (GuestCell(0, frozenset({0}), frozenset({9})), GuestCell(1, frozenset({0, 1}), frozenset({1})))
    assert tree(place({"0000:3b:00.0": 0}, domain(cells)))["0000:3b:00.0"] == (1, 0)


def test_a_node_without_cpus_has_the_nearest_cell() -> None:
    numa = {0: NumaNode(frozenset({0}), {0: 10, 1: 40, 2: 80}), 1: NumaNode(frozenset({8}), {0: 40, 1: 10, 2: 20})}
    numa[2] = NumaNode(frozenset(), {0: 80, 1: 20, 2: 10})
    known = host({"0000:3b:00.0": 2})._replace(numa=numa)
    placed = place_devices(devices(["0000:3b:00.0"]), domain(), known, "strict")
    assert tree(placed) == {"0000:3b:00.0": (1, 0)}
    assert [note.topic for note in placed.notes] == ["nearest-cell"]
    bound = domain((*CELLS, GuestCell(2, frozenset({2}), frozenset())))
    assert tree(place_devices(devices(["0000:3b:00.0"]), bound, known, "auto")) == {"0000:3b:00.0": (2, 0)}


def test_strict_names_device_node_and_cells() -> None:
    placed = place({"0000:3b:00.0": 5, "0000:af:00.0": 1}, domain(), "strict")
    (error,) = placed.errors
    assert error.code == NOT_ALIGNED.code
    assert error.device == "0000:3b:00.0"
    assert "host node 5" in error.message
    assert "cell 1: host node 1" in error.message


def test_a_device_without_a_cell_is_placed_as_before_with_a_note() -> None:
    placed = place({"0000:3b:00.0": 5, "0000:af:00.0": 1}, domain(), "numa")
    assert not placed.errors
    assert [note.topic for note in placed.notes] == ["not-aligned"]
    assert "0000:3b:00.0" not in tree(placed)


def test_nothing_is_said_where_no_node_is_known() -> None:
    placed = place({"0000:3b:00.0": None}, domain())
    assert placed == place_devices(devices(["0000:3b:00.0"]), domain())


@pytest.mark.parametrize(("machine", "expanders"), [("x86_64/pc-q35-9.2", 1), ("aarch64/virt", 1), ("riscv64/virt", 0)])
def test_machines_that_take_expanders(machine: str, expanders: int) -> None:
    placed = place({"0000:3b:00.0": 0}, domain(machine=machine))
    assert sum(each.model == "pcie-expander-bus" for each in placed.controllers) == expanders


def test_cards_of_one_host_switch_are_below_one_switch() -> None:
    below = {
        f"0000:{bus}:00.0": ("pci0", "0000:15:01.0", "0000:16:00.0", f"0000:17:{slot}.0")
        for bus, slot in (("18", "00"), ("1a", "02"))
    }
    alone = {"0000:9a:00.0": ("pci0", "0000:15:02.0", "0000:98:00.0", "0000:99:00.0")}
    nodes = dict.fromkeys([*below, *alone], 0)
    placed = place(nodes, domain(), "switches", paths=below | alone)
    assert tree(placed) == {"0000:18:00.0": (0, 0, 0, 0), "0000:1a:00.0": (0, 0, 0, 1), "0000:9a:00.0": (0, 1)}
    assert [each.bus_number for each in placed.controllers if each.bus_number] == [256 - 6]
    # without cells the same switch is on the root bus
    models = [each.model for each in place(nodes, domain(()), "switches", paths=below | alone).controllers]
    assert models == ["pcie-root-port", "pcie-switch-upstream-port", *["pcie-switch-downstream-port"] * 2]


def test_more_cards_than_slots_share_the_slots_of_the_expander() -> None:
    nodes = {f"0000:{bus:02x}:00.0": 0 for bus in range(1, 41)}
    placed = place(nodes, domain())
    ports = [each.guest for each in placed.controllers if each.model == "pcie-root-port"]
    assert len(set(ports)) == 40
    assert {port.function for port in ports if port is not None} == {0, 1}


@pytest.mark.parametrize(("topology", "errors"), [("auto", 0), ("strict", 2)])
def test_too_few_bus_numbers(topology: Topology, errors: int) -> None:
    """Indices of the document reach up to where the expanders' bus numbers would be."""
    guest = domain(controllers=[Controller(250, "pcie-root-port", None)])
    placed = place({"0000:3b:00.0": 0, "0000:af:00.0": 1}, guest, topology)
    assert len(placed.errors) == errors
    assert all(each.bus_number is None for each in placed.controllers)
    assert topology == "strict" or [note.topic for note in placed.notes] == ["not-aligned"]


def existing(source: HostAddress, guest: GuestAddress | None) -> ExistingHostdev:
    return ExistingHostdev("pci", source, None, guest, guest is not None, "no", None, None)


def test_a_device_with_an_address_stays_and_strict_looks_where() -> None:
    expander = Controller(1, "pcie-expander-bus", None, 254, 1)
    port = Controller(2, "pcie-root-port", GuestAddress(0, 1, 0, 0))
    there = existing(at("0000:3b:00.0"), GuestAddress(0, 2, 0, 0))
    guest = domain(controllers=[expander, port], hostdevs=[there])
    for node, errors in ((1, 0), (0, 1)):
        known = host({"0000:3b:00.0": node})
        placed = place_devices(devices(["0000:3b:00.0"], {"0000:3b:00.0": 0}), guest, known, "strict")
        assert len(placed.errors) == errors
        assert placed.controllers == ()


def test_a_hostdev_of_the_document_moves_to_its_cell() -> None:
    guest = domain(hostdevs=[existing(at("0000:3b:00.0"), None)])
    placed = place_devices(devices(["0000:3b:00.0"], {"0000:3b:00.0": 0}), guest, host({"0000:3b:00.0": 1}), "auto")
    assert tree(placed) == {"0000:3b:00.0": (1, 0)}


slots = st.integers(1, 0xFE).map(lambda bus: f"0000:{bus:02x}:00.0")


@given(st.dictionaries(slots, st.integers(0, 3), min_size=1, max_size=20), st.permutations(range(4)))
def test_as_kubevirt_places_on_hosts_with_one_root_complex_a_node(nodes: dict[str, int], cells: list[int]) -> None:
    """KubeVirt: devices sorted by address, an expander a cell in order of cells, a port a device in slots 0, 1, ..."""
    bound = [GuestCell(cell, frozenset({node}), frozenset()) for cell, node in enumerate(cells)]
    expected: dict[int, list[str]] = {}
    for address in sorted(nodes):
        expected.setdefault(cells.index(nodes[address]), []).append(address)
    top, numbers = 256, {}
    for cell in sorted(expected):
        top -= 1 + len(expected[cell])
        numbers[cell] = top
    placed = place(dict(reversed(nodes.items())), domain(bound))
    assert {each.cell: each.bus_number for each in placed.controllers if each.bus_number} == numbers
    found: dict[int | None, list[tuple[int | None, str]]] = {}
    for address, (below, *way) in tree(placed).items():
        found.setdefault(below, []).append((way[0], address))
    assert {cell: [address for _, address in sorted(those)] for cell, those in found.items()} == expected


def test_the_functions_of_a_card_share_the_slot() -> None:
    nodes = {"0000:3b:00.0": 0, "0000:3b:00.1": 0}
    card = GuestDevice("pci", tuple(Attachment(PciAddress.parse(each), "primary", "", None, None) for each in nodes))
    placed = place_devices([card], domain(), host(nodes), "auto")
    assert {str(where.address)[5:] for where in placed.guests.values()} == {"02:00.0", "02:00.1"}
