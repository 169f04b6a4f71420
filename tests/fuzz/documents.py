"""Documents of any bytes: refused in an orderly way, or completed so that a second run changes nothing (X2, X5)."""

from __future__ import annotations

from lxml import etree

from launcherkit import LauncherkitError, translate
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciFunction
from tests.fuzz.hosts import FactsHost

GPU, SOUND = PciAddress(0, 0xE1, 0, 0), PciAddress(0, 0xE1, 0, 1)
FUNCTIONS = {
    GPU: PciFunction(GPU, 0x10DE, 0x2204, 0, 0, 0x030000, "vfio-pci", 44, None, None),
    SOUND: PciFunction(SOUND, 0x10DE, 0x1AEF, 0, 0, 0x040300, "vfio-pci", 44, None, None),
}
NODES = frozenset({"/dev/vfio/vfio", "/dev/vfio/44"})
HOST = FactsHost(HostFacts(True, FUNCTIONS, {}, {44: (GPU, SOUND)}, {}, {}, NODES))
ENV = {"PCI_RESOURCE_X": "0000:e1:00.0"}


def run(data: bytes) -> None:
    """Translate the bytes."""
    try:
        first = translate(data, env=ENV, host=HOST)
    except LauncherkitError as error:
        for leaf in error.leaves():
            assert all((leaf.code, leaf.message, leaf.remedy)), repr(leaf)
        return
    root = etree.fromstring(first.domain_xml, etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=True))
    assert root.tag == "domain"
    assert root.find("devices") is not None
    again = translate(first.domain_xml, env=ENV, host=HOST)
    assert again.domain_xml == first.domain_xml
