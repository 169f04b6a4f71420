"""The virtual IOMMUs of a domain document, and an SMMUv3 for a root complex (P9)."""

from lxml import etree

from launcherkit.domain.xml import Style
from launcherkit.model.address import number


def read_smmus(root: etree._Element) -> frozenset[int] | None:
    """The indices of the controllers that have an IOMMU; None if one is there for the whole machine."""
    buses: set[int] = set()
    for element in root.iterfind("devices/iommu"):
        driver = element.find("driver")
        bus = None if driver is None else number(driver.get("pciBus"))
        if bus is None:
            return None
        buses.add(bus)
    return frozenset(buses)


def smmu(bus: int, style: Style) -> str:
    """The element for the expander with this index.

    What else QEMU's device can, ATS and the sizes of addresses and of PASIDs, follows the host's SMMU by itself.
    """
    end = style.indent or ""
    lead = end + style.step if end else ""
    return style.quoted(f"<iommu model='smmuv3'>{lead}<driver pciBus='{bus}' accel='on'/>{end}</iommu>")
