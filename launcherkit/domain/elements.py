"""The text of the elements that are written: hostdevs, their parts, PCI controllers (X1). Values are escaped (T3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from launcherkit.domain.hostdev import PCI_PATTERN, SOURCE_PATTERNS, cpuset_text, hostdev_attributes
from launcherkit.domain.xml import Style, escaped
from launcherkit.model.domain import Controller
from launcherkit.model.plan import PlannedFunction, Shown
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
    return quoted(f"{tag}>{target}{lead}{_ADDRESS % controller.guest}{style.indent or ''}</controller>", style)


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
    source, guest = function.attachment.source, function.guest
    kind = kind_of(source)
    pattern = _pattern(
        style,
        kind,
        function.managed,
        function.shown,
        (function.iommufd, function.driver),
        function.nodeset,
        (function.rom, function.boot_order),
        _address_pattern(function),
    )
    place = () if guest is None else guest.address
    parts = source if kind == "pci" else [escaped(str(part)) for part in source]
    return pattern % (*parts, escaped(function.alias), *place)


@lru_cache(maxsize=16)
def _pattern(
    style: Style,
    kind: Kind,
    managed: bool,
    shown: Shown | None,
    backend: tuple[bool | None, str | None],
    nodeset: frozenset[int] | None,
    options: tuple[str | None, int | None],
    address: str,
) -> str:
    """The text of a hostdev, to be filled with source, alias and guest address by ``%``; that of most is the same."""
    lead = "" if style.indent is None else style.indent + style.step
    deeper = lead + style.step if lead else ""
    head = attributes(hostdev_attributes(kind, managed, shown).items())
    # Directly before the source: elsewhere libvirt's schema refuses it.
    values = driver_attributes(*backend)
    way = lead + driver(values) if values else ""
    choice, order = options
    option = ("" if choice is None else lead + rom(choice)) + ("" if order is None else lead + boot(order))
    cells = "" if nodeset is None else lead + acpi(nodeset)
    place = lead + address if address else ""
    return quoted(
        f"<hostdev{_literal(head)}>{_literal(way)}{lead}<source>{deeper}<address {SOURCE_PATTERNS[kind]}/>{lead}"
        f"</source>{lead}{alias('%s')}{cells}{_literal(option)}{place}{style.indent or ''}</hostdev>",
        style,
    )


def _literal(text: str) -> str:
    """A text as part of a pattern."""
    return text.replace("%", "%%")


def driver_attributes(iommufd: bool | None, model: str | None) -> dict[str, str]:
    """The attributes of ``<driver>`` by the plan; empty if the hostdev needs none."""
    values = {} if model is None else {"model": model}
    return values if iommufd is None else values | {"iommufd": "yes" if iommufd else "no"}


def driver(values: Mapping[str, str]) -> str:
    return f"<driver{attributes(values.items())}/>"


def rom(choice: str) -> str:
    """``<rom>`` for ``on``, ``off`` or the path of a file."""
    return f"<rom{attributes([('file' if choice.startswith('/') else 'bar', choice)])}/>"


def boot(order: int) -> str:
    """Its place in the order in which firmware tries devices (Q5)."""
    return f"<boot order='{order}'/>"


def acpi(nodeset: frozenset[int]) -> str:
    """The cells of a generic initiator (P7)."""
    return f"<acpi nodeset='{cpuset_text(nodeset)}'/>"


def address(function: PlannedFunction) -> str:
    """``<address>`` by the plan: a slot of the guest, or none (S1); empty if libvirt is to place the function."""
    pattern = _address_pattern(function)
    return pattern if function.guest is None else pattern % function.guest.address


def _address_pattern(function: PlannedFunction) -> str:
    if function.guest is not None:
        return _FUNCTION_0 if function.guest.multifunction else _ADDRESS
    return "<address type='unassigned'/>" if function.attachment.role == "reserved" else ""


_ADDRESS = f"<address type='pci' {PCI_PATTERN}/>"
_FUNCTION_0 = f"<address type='pci' {PCI_PATTERN} multifunction='on'/>"


def alias(name: str) -> str:
    return f"<alias name='{escaped(name)}'/>"
