"""Writes the plan into a domain document, as edits of its bytes (X1-X4): new hostdevs, and what existing ones lack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from lxml import etree

from launcherkit.domain.reader import (
    PCI_ATTRIBUTES,
    USB_ATTRIBUTES,
    hostdev_elements,
    kind_of_element,
    read_guest_address,
)
from launcherkit.domain.xml import (
    MAX_BYTES,
    Document,
    Edit,
    Style,
    append_children,
    apply_edits,
    attribute_value,
    escaped,
    indentation_of,
    remove,
    style_of,
)
from launcherkit.errors import DOMAIN_TOO_LARGE
from launcherkit.model.address import GuestAddress, HostAddress, PciAddress, UsbAddress, format_cpuset, number
from launcherkit.model.domain import Controller
from launcherkit.model.plan import GuestPlace, Plan, PlannedFunction, Shown
from launcherkit.model.request import Kind, kind_of


def write_plan(document: Document, plan: Plan, *, hook: bool = False) -> bytes:
    """The document with the plan's hostdevs and controllers; all other bytes stay as they are (X4).

    Args:
        document: from `read_document`.
        plan: from the pipeline, for this document.
        hook: as for `translate`.

    Raises:
        DOMAIN_TOO_LARGE: the result would be larger than `read_document` accepts (X5).
    """
    style = style_of(document)
    edits: list[Edit] = []
    added = [_pci_controller(controller, style) for controller in plan.controllers]
    completion = _Completion(document, style)
    hostdevs = hostdev_elements(document.root)
    cpu: list[str] = []
    for device in plan.devices:
        for function in device.functions:
            if function.attachment.hostdev is None:
                added.append(_hostdev(function, style))
            elif device.kept and not hook:
                continue
            elif device.kept:
                edits += completion.essentials(hostdevs[function.attachment.hostdev], device.kind)
            else:
                edits += completion.edits(hostdevs[function.attachment.hostdev], function)
    edits += [remove(document.data, document.span(hostdevs[index])) for index, _ in plan.removed]
    if plan.window is not None:
        from launcherkit.domain.window import cpu_with_bits, window_edits  # few guests need a larger window

        cpu = cpu_with_bits(document.root, style, plan.window)
        more, roots = window_edits(document, style, plan.window)
        edits += more
        added = [*roots, *added]
    added += _smmus(plan, style)
    if plan.cells or plan.distances:
        from launcherkit.domain.cells import cells_edits  # few guests get any

        edits += cells_edits(document, style, plan)
    edits += _of_domain(document, plan, style, [*cpu, _wrap(added, style)] if document.devices is None else cpu)
    if added and document.devices is not None:
        edits.append(append_children(document.data, document.span(document.devices), added, style, depth=0))
    size = len(document.data) + sum([len(text) - (end - start) for start, end, text in edits])
    if size > MAX_BYTES:
        raise DOMAIN_TOO_LARGE(
            f"with the hostdevs that are added the domain document would have {size} bytes, more than {MAX_BYTES}",
            "Ask for fewer devices, or look for what was put into the document by mistake.",
            key="devices",
        )
    return apply_edits(document.data, edits)


def _smmus(plan: Plan, style: Style) -> list[str]:
    """The IOMMUs of root complexes (P9)."""
    if not plan.smmus:
        return []
    from launcherkit.domain.smmus import smmu  # few guests get any

    return [smmu(bus, style) for bus in plan.smmus]


def _of_domain(document: Document, plan: Plan, style: Style, added: Sequence[str]) -> Iterator[Edit]:
    """Edits outside of the devices: ``added`` and QEMU's own properties, at the end of the domain."""
    override: Sequence[str] = ()
    if plan.cliques:
        from launcherkit.domain.overrides import override_edits  # few guests get any

        edits, override = override_edits(document, style, plan)
        yield from edits
    if added or override:
        span = document.span(document.root)
        yield append_children(document.data, span, [*added, *override], style, depth=-1)


def with_essentials(document: Document, *, hook: bool) -> bytes:
    """The document of a VM that asks for nothing: as it came, but for hostdevs without ``mode`` or ``type`` (Q3).

    PCI functions get them, because KubeVirt writes these without; in a hook, every hostdev gets them.
    """
    hostdevs = [(each, kind_of_element(each, each.find("source"))) for each in hostdev_elements(document.root)]
    asked = [(each, kind) for each, kind in hostdevs if kind == "pci" or (kind and hook)]
    lacking = [(each, kind) for each, kind in asked if not (each.get("mode") and each.get("type"))]
    if not lacking:
        return document.data
    completion = _Completion(document, style_of(document))
    return apply_edits(document.data, [edit for each, kind in lacking for edit in completion.essentials(each, kind)])


def _wrap(added: Sequence[str], style: Style) -> str:
    if not added:
        return "<devices/>"
    lead = style.indent or ""
    return f"<devices>{''.join(lead + text for text in added)}{lead[: len(lead) - len(style.step)]}</devices>"


class _Completion:
    """Edits that complete the hostdevs of one document."""

    def __init__(self, document: Document, style: Style) -> None:
        self._document = document
        self._data = document.data
        self._style = style

    def essentials(self, hostdev: etree._Element, kind: Kind) -> list[Edit]:
        """Edits that add ``mode`` and ``type``: KubeVirt's own schema refuses a hostdev without them (Q3, X1)."""
        attributes = {"mode": "subsystem", "type": kind}
        return self._set(hostdev, {name: value for name, value in attributes.items() if not hostdev.get(name)})

    def edits(self, hostdev: etree._Element, function: PlannedFunction) -> list[Edit]:
        """Edits that add what is missing; the rest stays, except aliases, displays and multifunction that change."""
        edits = self._set(hostdev, _lacking(hostdev, function))
        if function.attachment.replaces is not None:
            edits += self._source(hostdev, function.source)
        if driver := _driver_attributes(function.iommufd, function.driver):
            edits += self._driver(hostdev, driver)
        missing: list[str] = []
        alias = hostdev.find("alias")
        if alias is None:
            missing.append(_alias(function.alias))
        else:
            edits += self._set(alias, {"name": function.alias})
        if function.nodeset is not None:
            acpi = hostdev.find("acpi")
            if acpi is None:
                missing.append(_acpi(function.nodeset))
            elif not acpi.get("nodeset"):
                edits += self._set(acpi, {"nodeset": format_cpuset(function.nodeset)})
        if function.rom is not None and hostdev.find("rom") is None:
            missing.append(_rom(function.rom))
        if function.boot_order is not None and hostdev.find("boot") is None:
            missing.append(_boot(function.boot_order))
        address = hostdev.find("address")
        if address is not None:
            edits += self._place(address, function.guest)
        elif planned := _address(function):
            missing.append(planned)
        if missing:
            texts = [self._style.quoted(text) for text in missing]
            span = self._document.span(hostdev)
            edits.append(append_children(self._data, span, texts, self._child_style(hostdev), depth=0))
        return edits

    def _source(self, hostdev: etree._Element, source: HostAddress) -> list[Edit]:
        """Another source for the same kind of device (X2); numbers that stay are not touched."""
        address = hostdev.find("source/address")
        if address is None:
            return []
        attributes = dict(_source_attributes(source))
        for name in [name for name, value in attributes.items() if _is_same(address.get(name), value)]:
            del attributes[name]
        return self._set(address, attributes)

    def _driver(self, hostdev: etree._Element, attributes: dict[str, str]) -> list[Edit]:
        """Attributes for the existing ``<driver>``, or a new one before the source, where libvirt expects it."""
        driver, source = hostdev.find("driver"), hostdev.find("source")
        if driver is not None:
            if driver.get("model"):
                attributes.pop("model", None)
            return self._set(driver, attributes)
        if source is None:
            return []
        at = self._document.span(source).start
        text = self._style.quoted(_driver(attributes)) + (indentation_of(self._data, at) or "")
        return [(at, at, text.encode("ascii"))]

    def _place(self, address: etree._Element, place: GuestPlace | None) -> list[Edit]:
        if place is None:  # libvirt is to find one for a device that can't have the former one's (X2)
            return [remove(self._data, self._document.span(address))] if read_guest_address(address) else []
        attributes: dict[str, str] = {}
        if read_guest_address(address) != place.address:
            attributes |= _pci_attributes(place.address)
        if place.multifunction:
            attributes["multifunction"] = "on"
        elif place.multifunction is False and address.get("multifunction") == "on":
            attributes["multifunction"] = "off"
        return self._set(address, attributes)

    def _set(self, element: etree._Element, attributes: Mapping[str, str]) -> list[Edit]:
        """Edits for attributes that differ: the value is replaced, or the attribute is added at the end of the tag."""
        span = self._document.span(element)
        edits: list[Edit] = []
        new: list[tuple[str, str]] = []
        for name, value in attributes.items():
            if element.get(name) == value:
                continue
            place = attribute_value(self._data, span, name)
            if place is None:
                new.append((name, value))
            else:
                edits.append((*place, escaped(value).encode("ascii")))
        if new:
            end = span.open_end - (2 if span.empty else 1)
            tag = self._data[span.start : end].rstrip()
            at = span.start + len(tag)
            edits.append((at, at, self._style.quoted(_attributes(new)).encode("ascii")))
        return edits

    def _child_style(self, hostdev: etree._Element) -> Style:
        """The style of this hostdev's children."""
        if self._style.indent is None:
            return self._style
        own = indentation_of(self._data, self._document.span(hostdev).start)
        return self._style._replace(indent=None if own is None else own + self._style.step)


# The attributes of a hostdev and of its addresses (X1).

_KEPT = ("mode", "type", "managed", "model")


def _lacking(hostdev: etree._Element, function: PlannedFunction) -> dict[str, str]:
    """The attributes to be set; of those that the tag has, only the display, and the model of another device (X2)."""
    kept = _KEPT[:-1] if function.attachment.replaces else _KEPT
    attributes = _hostdev_attributes(kind_of(function.source), function.managed, function.shown)
    return {name: value for name, value in attributes.items() if name not in kept or not hostdev.get(name)}


_PCI_PATTERN = " ".join([f"{name}='0x%0{digits}x'" for name, _, digits in PCI_ATTRIBUTES])
"""Its attributes without its type, in single quotes, to be filled with a `PciAddress` or `GuestAddress` by ``%``."""
_SOURCE_PATTERNS: dict[Kind, str] = {
    "pci": _PCI_PATTERN,
    "mdev": "uuid='%s'",
    "usb": " ".join([f"{name}='%s'" for name, _ in USB_ATTRIBUTES]),
}
"""The attributes of ``<source><address>`` by kind, in single quotes, to be filled with the fields of an address."""


def _hostdev_attributes(kind: Kind, managed: bool, shown: Shown | None) -> dict[str, str]:
    """The attributes that the ``<hostdev>`` tag itself must have."""
    fixed = {"mode": "subsystem", "type": kind, "managed": "yes" if managed else "no"}
    if shown is None:
        return fixed
    return fixed | {name: value for name, value in zip(Shown._fields, shown, strict=True) if value}


def _pci_attributes(address: PciAddress | GuestAddress) -> list[tuple[str, str]]:
    """The attributes of a PCI address, without its type, as pairs of name and value."""
    return [(name, f"0x{value:0{digits}x}") for (name, _, digits), value in zip(PCI_ATTRIBUTES, address, strict=True)]


def _source_attributes(source: HostAddress) -> list[tuple[str, str]]:
    """The attributes of the ``<address>`` in a ``<source>``, as pairs of name and value."""
    if isinstance(source, PciAddress):
        return _pci_attributes(source)
    if isinstance(source, UsbAddress):
        return [(name, str(value)) for (name, _), value in zip(USB_ATTRIBUTES, source, strict=True)]
    return [("uuid", str(source))]


def _is_same(present: str | None, value: str) -> bool:
    """Whether an attribute of an address has a value already, however its number is written; a missing one is 0."""
    return present == value or (number(value) is not None and number(present or "0") == number(value))


# The texts of the elements that are written, in single quotes (see `Style.quoted`). Values are escaped (T3).


def _attributes(pairs: Iterable[tuple[str, str]]) -> str:
    """Attributes for a tag, each after a space."""
    return "".join([f" {name}='{escaped(value)}'" for name, value in pairs])


def _pci_controller(controller: Controller, style: Style) -> str:
    """A PCI controller to be added, with its address if it has one."""
    tag = f"<controller type='pci' index='{controller.number}' model='{controller.model}'"
    if controller.guest is None:
        return style.quoted(f"{tag}/>")
    lead = "" if style.indent is None else style.indent + style.step
    target = ""
    if controller.bus_number is not None:
        deeper = lead + style.step if lead else ""
        node = f"{deeper}<node>{controller.cell}</node>{lead}"
        target = f"{lead}<target busNr='{controller.bus_number}'>{node}</target>"
    return style.quoted(f"{tag}>{target}{lead}{_ADDRESS % controller.guest}{style.indent or ''}</controller>")


def _hostdev(function: PlannedFunction, style: Style) -> str:
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
    head = _attributes(_hostdev_attributes(kind, managed, shown).items())
    # Directly before the source: elsewhere libvirt's schema refuses it.
    values = _driver_attributes(*backend)
    way = lead + _driver(values) if values else ""
    choice, order = options
    option = ("" if choice is None else lead + _rom(choice)) + ("" if order is None else lead + _boot(order))
    cells = "" if nodeset is None else lead + _acpi(nodeset)
    place = lead + address if address else ""
    return style.quoted(
        f"<hostdev{_literal(head)}>{_literal(way)}{lead}<source>{deeper}<address {_SOURCE_PATTERNS[kind]}/>{lead}"
        f"</source>{lead}{_alias('%s')}{cells}{_literal(option)}{place}{style.indent or ''}</hostdev>"
    )


def _literal(text: str) -> str:
    """A text as part of a pattern."""
    return text.replace("%", "%%")


def _driver_attributes(iommufd: bool | None, model: str | None) -> dict[str, str]:
    """The attributes of ``<driver>`` by the plan; empty if the hostdev needs none."""
    values = {} if model is None else {"model": model}
    return values if iommufd is None else values | {"iommufd": "yes" if iommufd else "no"}


def _driver(values: Mapping[str, str]) -> str:
    return f"<driver{_attributes(values.items())}/>"


def _rom(choice: str) -> str:
    """``<rom>`` for ``on``, ``off`` or the path of a file."""
    return f"<rom{_attributes([('file' if choice.startswith('/') else 'bar', choice)])}/>"


def _boot(order: int) -> str:
    """Its place in the order in which firmware tries devices (Q5)."""
    return f"<boot order='{order}'/>"


def _acpi(nodeset: frozenset[int]) -> str:
    """The cells of a generic initiator (P7)."""
    return f"<acpi nodeset='{format_cpuset(nodeset)}'/>"


def _address(function: PlannedFunction) -> str:
    """``<address>`` by the plan: a slot of the guest, or none (S1); empty if libvirt is to place the function."""
    pattern = _address_pattern(function)
    return pattern if function.guest is None else pattern % function.guest.address


def _address_pattern(function: PlannedFunction) -> str:
    if function.guest is not None:
        return _FUNCTION_0 if function.guest.multifunction else _ADDRESS
    return "<address type='unassigned'/>" if function.attachment.role == "reserved" else ""


_ADDRESS = f"<address type='pci' {_PCI_PATTERN}/>"
_FUNCTION_0 = f"<address type='pci' {_PCI_PATTERN} multifunction='on'/>"


def _alias(name: str) -> str:
    return f"<alias name='{escaped(name)}'/>"
