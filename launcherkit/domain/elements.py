"""The text of the elements that are written: hostdevs, their parts, PCI controllers (X1). Values are escaped (T3)."""

from __future__ import annotations

from collections.abc import Iterable

from launcherkit.domain.escape import escaped
from launcherkit.domain.style import Style
from launcherkit.model.address import GuestAddress, HostAddress, PciAddress, UsbAddress
from launcherkit.model.domain import Controller
from launcherkit.model.plan import GuestPlace, PlannedFunction, Shown
from launcherkit.model.request import kind_of

# Texts are made with ' around values and get the document's own quotes at the end: no value has either kind in it.


def attributes(pairs: Iterable[tuple[str, str]]) -> str:
    """Attributes as they stand in a tag, with a blank before each."""
    return "".join([f" {name}='{escaped(value)}'" for name, value in pairs])


def quoted(text: str, style: Style) -> str:
    """With the document's own quotes."""
    return text if style.quote == "'" else text.replace("'", style.quote)


def pci_controller(controller: Controller, style: Style) -> str:
    """A PCI controller that is added, with its address where it has one."""
    tag = f"<controller type='pci' index='{controller.number}' model='{controller.model}'"
    if controller.guest is None:
        return quoted(f"{tag}/>", style)
    lead = "" if style.indent is None else style.indent + style.step
    return quoted(f"{tag}>{lead}{guest_address(GuestPlace(controller.guest))}{style.indent or ''}</controller>", style)


def hostdev(function: PlannedFunction, style: Style) -> str:
    """A whole hostdev."""
    lead = "" if style.indent is None else style.indent + style.step
    deeper = lead + style.step if lead else ""
    source = function.source
    managed = "yes" if function.managed else "no"
    head = f" mode='subsystem' type='{kind_of(source)}' managed='{managed}'"
    if function.shown is not None:
        head += attributes(shown_attributes(function.shown))
    # Directly before the source: elsewhere libvirt's schema refuses it.
    backend = "" if function.iommufd is None else lead + driver(function.iommufd)
    place = "" if function.guest is None else lead + guest_address(function.guest)
    text = (
        f"<hostdev{head}>{backend}{lead}<source>{deeper}<address {_source_attributes(source)}/>{lead}</source>"
        f"{lead}{alias(function.alias)}{place}{style.indent or ''}</hostdev>"
    )
    return quoted(text, style)


def driver(iommufd: bool) -> str:
    return f"<driver iommufd='{iommufd_value(iommufd)}'/>"


def iommufd_value(iommufd: bool) -> str:
    return "yes" if iommufd else "no"


def alias(name: str) -> str:
    return f"<alias{attributes([('name', name)])}/>"


def guest_address(place: GuestPlace) -> str:
    multifunction = " multifunction='on'" if place.multifunction else ""
    return f"<address type='pci' {_pci_attributes(place.address)}{multifunction}/>"


def shown_attributes(shown: Shown) -> list[tuple[str, str]]:
    """``model``, ``display`` and ``ramfb``, as far as they are decided (X3)."""
    return [(name, value) for name, value in zip(Shown._fields, shown, strict=True) if value]


def _source_attributes(source: HostAddress) -> str:
    if isinstance(source, PciAddress):
        return _pci_attributes(source)
    if isinstance(source, UsbAddress):
        return f"bus='{source.bus}' device='{source.device}'"
    return f"uuid='{escaped(str(source))}'"


def _pci_attributes(address: PciAddress | GuestAddress) -> str:
    domain, bus, slot, function = address
    return f"domain='0x{domain:04x}' bus='0x{bus:02x}' slot='0x{slot:02x}' function='0x{function:x}'"
