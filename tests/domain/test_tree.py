"""What a domain document says of the guest's PCI tree."""

from __future__ import annotations

from launcherkit.domain.reader import read_tree
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


def tree(controllers: str) -> GuestTree:
    return read_tree(read_document(f"<domain type='kvm'><devices>{controllers}</devices></domain>").root)


def test_the_way_to_a_device_begins_at_its_root_complex() -> None:
    way = tree(EXPANDER + SWITCH).way(GuestAddress(0, 6, 0, 0))
    assert [(bridge.number, bridge.model) for bridge in way] == [
        (3, "pcie-expander-bus"),
        (4, "pcie-root-port"),
        (5, "pcie-switch-upstream-port"),
        (6, "pcie-switch-downstream-port"),
    ]
    assert (way[0].bus_number, way[0].node) == (0xF0, 1)
    assert way[3].guest == GuestAddress(0, 5, 1, 0)


def test_the_machines_own_root_need_not_be_written_down() -> None:
    way = tree("<controller type='pci' index='1' model='pcie-root-port'><address type='pci' slot='0x10'/></controller>")
    assert [bridge.model for bridge in way.way(GuestAddress(0, 1, 0, 0))] == ["pcie-root", "pcie-root-port"]
    assert way.bridges[0].bus_number == 0


def test_a_port_without_an_address_is_libvirts_to_place() -> None:
    way = tree("<controller type='pci' index='1' model='pcie-root-port'/>").way(GuestAddress(0, 1, 0, 0))
    assert [bridge.is_root for bridge in way] == [False]


def test_a_bus_that_is_not_in_the_document_has_no_way() -> None:
    assert tree("").way(GuestAddress(0, 7, 0, 0)) == ()


def test_ports_that_are_behind_each_other_end_the_way() -> None:
    loop = "".join(
        f"<controller type='pci' index='{own}' model='pcie-root-port'><address type='pci' bus='{up}'/></controller>"
        for own, up in ((1, 2), (2, 1))
    )
    assert len(tree(loop).way(GuestAddress(0, 1, 0, 0))) == 2
