"""The text of the elements that are written: hostdevs, their parts, PCI controllers (X1). Values are escaped (T3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from launcherkit.domain.escape import escaped
from launcherkit.domain.hostdev import cpuset_text, hostdev_attributes, pci_text, source_text
from launcherkit.domain.style import Style
from launcherkit.model.domain import Controller
from launcherkit.model.plan import GuestPlace, PlannedFunction, Shown
from launcherkit.model.request import Kind, kind_of

# Texts are made with single quotes, and `quoted` replaces these: escaped values contain neither kind.


def attributes(pairs: Iterable[tuple[str, str]]) -> str:
    """Attributes for a tag, each after a space."""
    return "".join([f" {name}='{escaped(value)}'" for name, value in pairs])


def quoted(text: str, style: Style) -> str:
    """With the document's own quotes."""
    return text if style.quote == "'" else text.replace("'", style.quote)


def pci_controller(controller: Controller, style: Style) -> str:
    """A PCI controller to be added, with its address if it has one."""
    tag = f"<controller type='pci' index='{controller.number}' model='{controller.model}'"
    if controller.guest is None:
        return quoted(f"{tag}/>", style)
    lead = "" if style.indent is None else style.indent + style.step
    target = ""
    if controller.bus_number is not None:
        deeper = lead + style.step if lead else ""
        node = f"{deeper}<node>{controller.cell}</node>{lead}"
        target = f"{lead}<target busNr='{controller.bus_number}'>{node}</target>"
    address = guest_address(GuestPlace(controller.guest))
    return quoted(f"{tag}>{target}{lead}{address}{style.indent or ''}</controller>", style)


def pci_hole(size: int) -> str:
    """The size of the 64-bit window; ``size`` is in bytes."""
    return f"<pcihole64 unit='KiB'>{size >> 10}</pcihole64>"


def pci_root(model: str, hole: int, style: Style) -> str:
    """The root controller, for a document that leaves it to libvirt; ``hole`` is in bytes."""
    lead = "" if style.indent is None else style.indent + style.step
    end = style.indent or ""
    return quoted(f"<controller type='pci' index='0' model='{model}'>{lead}{pci_hole(hole)}{end}</controller>", style)


def hostdev(function: PlannedFunction, style: Style) -> str:
    """A whole hostdev."""
    lead = "" if style.indent is None else style.indent + style.step
    deeper = lead + style.step if lead else ""
    head = _head(kind_of(function.source), function.managed, function.shown)
    # Directly before the source: elsewhere libvirt's schema refuses it.
    plain = function.iommufd is None and function.driver is None
    backend = "" if plain else lead + driver(driver_attributes(function))
    option = "" if function.rom is None else lead + rom(function.rom)
    cells = "" if function.nodeset is None else lead + acpi(function.nodeset)
    place = lead + address(function) if has_address(function) else ""
    text = (
        f"<hostdev{head}>{backend}{lead}<source>{deeper}<address {source_text(function.source)}/>{lead}</source>"
        f"{lead}{alias(function.alias)}{cells}{option}{place}{style.indent or ''}</hostdev>"
    )
    return quoted(text, style)


@lru_cache(maxsize=16)
def _head(kind: Kind, managed: bool, shown: Shown | None) -> str:
    """The attributes of a hostdev's tag; those of most hostdevs are the same."""
    return attributes(hostdev_attributes(kind, managed, shown).items())


def driver_attributes(function: PlannedFunction) -> dict[str, str]:
    """The attributes of ``<driver>`` by the plan; empty if the hostdev needs none."""
    wanted = {} if function.driver is None else {"model": function.driver}
    return wanted if function.iommufd is None else wanted | {"iommufd": "yes" if function.iommufd else "no"}


def driver(wanted: Mapping[str, str]) -> str:
    return f"<driver{attributes(wanted.items())}/>"


def rom(choice: str) -> str:
    """``<rom>`` for ``on``, ``off`` or the path of a file."""
    return f"<rom{attributes([('file' if choice.startswith('/') else 'bar', choice)])}/>"


def acpi(nodeset: frozenset[int]) -> str:
    """The cells of a generic initiator (P7)."""
    return f"<acpi nodeset='{cpuset_text(nodeset)}'/>"


def has_address(function: PlannedFunction) -> bool:
    """Whether the plan gives it an address: a slot of the guest, or none (S1)."""
    return function.guest is not None or function.attachment.role == "reserved"


def address(function: PlannedFunction) -> str:
    """``<address>`` of a function that `has_address`."""
    return "<address type='unassigned'/>" if function.guest is None else guest_address(function.guest)


def alias(name: str) -> str:
    return f"<alias name='{escaped(name)}'/>"


def guest_address(place: GuestPlace) -> str:
    multifunction = " multifunction='on'" if place.multifunction else ""
    return f"<address type='pci' {pci_text(place.address)}{multifunction}/>"
