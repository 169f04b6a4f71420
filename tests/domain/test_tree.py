"""What a domain document says of the guest's PCI tree."""

from __future__ import annotations

from lxml import etree

from launcherkit.domain.reader import read_facts, read_tree
from launcherkit.domain.xml import read_document
from launcherkit.model.address import GuestAddress
from launcherkit.model.domain import GuestTree

EXPANDER = """
<controller type='pci' index='3' model='pcie-expander-bus'><target busNr='0xf0'><node>1</node></target></controller>
"""
SWITCH = """
<controller type='pci' index='4' model='pcie-root-port'><address type='pci' bus='0x03' slot='0x02'/></controller>
<controller type='pci' index='5' model='pcie-switch-upstream-port'><address type='pci' bus='0x04'/></controller>
<controller type='pci' index='6' model='pcie-switch-downstream-port'><address type='pci' bus='5' slot='1'/></controller>
"""


def domain(controllers: str) -> etree._Element:
    return read_document(f"<domain type='kvm'><devices>{controllers}</devices></domain>").root


def tree(controllers: str) -> GuestTree:
    return read_tree(domain(controllers))


def test_the_path_to_a_device_begins_at_its_root_complex() -> None:
    path = tree(EXPANDER + SWITCH).path(GuestAddress(0, 6, 0, 0))
    assert [(bridge.number, bridge.model) for bridge in path] == [
        (3, "pcie-expander-bus"),
        (4, "pcie-root-port"),
        (5, "pcie-switch-upstream-port"),
        (6, "pcie-switch-downstream-port"),
    ]
    assert (path[0].bus_number, path[0].cell) == (0xF0, 1)
    assert path[3].guest == GuestAddress(0, 5, 1, 0)


def test_the_machines_own_root_need_not_be_written_down() -> None:
    own = tree("<controller type='pci' index='1' model='pcie-root-port'><address type='pci' slot='0x10'/></controller>")
    assert [bridge.model for bridge in own.path(GuestAddress(0, 1, 0, 0))] == ["pcie-root", "pcie-root-port"]
    assert own.controllers[0].bus_number == 0
    assert tree("<controller type='pci' index='0' model='pcie-root'/>").controllers[0].bus_number == 0


def test_a_port_without_an_address_is_libvirts_to_place() -> None:
    path = tree("<controller type='pci' index='1' model='pcie-root-port'/>").path(GuestAddress(0, 1, 0, 0))
    assert [bridge.is_root for bridge in path] == [False]


def test_a_bus_that_is_not_in_the_document_has_no_path() -> None:
    assert tree("").path(GuestAddress(0, 7, 0, 0)) == ()


def test_ports_that_are_behind_each_other_end_the_path() -> None:
    loop = "".join(
        f"<controller type='pci' index='{own}' model='pcie-root-port'><address type='pci' bus='{up}'/></controller>"
        for own, up in ((1, 2), (2, 1))
    )
    assert len(tree(loop).path(GuestAddress(0, 1, 0, 0))) == 2


def test_an_address_belongs_to_the_numa_cell_of_the_expander_at_the_top_of_its_path() -> None:
    guest = tree(EXPANDER + SWITCH)
    expander = guest.expander_above(GuestAddress(0, 6, 0, 0))
    assert expander is not None
    assert (expander.number, expander.cell) == (3, 1)
    assert guest.expander_above(GuestAddress(0, 0, 5, 0)) is None


def test_an_expander_without_a_node_ties_nothing_to_a_cell() -> None:
    free = EXPANDER.replace("<node>1</node>", "")
    assert tree(free + SWITCH).expander_above(GuestAddress(0, 6, 0, 0)) is None


def test_only_root_buses_have_a_bus_number_and_a_cell() -> None:
    port = SWITCH.replace("'pcie-root-port'>", "'pcie-root-port'><target busNr='7'><node>0</node></target>")
    (bridge,) = [bridge for bridge in tree(port).controllers.values() if bridge.model == "pcie-root-port"]
    assert (bridge.bus_number, bridge.cell) == (None, None)


def test_the_rules_and_the_pictures_see_the_same_tree() -> None:
    root = domain(EXPANDER + SWITCH)
    assert read_facts(root).tree.controllers == read_tree(root).controllers
