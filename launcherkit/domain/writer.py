"""Writes the plan into a domain document, as edits of its bytes (X1-X4)."""

from __future__ import annotations

from collections.abc import Sequence

from lxml import etree

from launcherkit.domain.document import Document
from launcherkit.domain.reader import guest_address, hostdev_elements
from launcherkit.domain.tags import Places, Span, attribute_value
from launcherkit.model.address import GuestAddress, HostAddress, PciAddress, UsbAddress
from launcherkit.model.plan import GuestPlace, Plan, PlannedFunction, Shown
from launcherkit.model.request import kind_of
from launcherkit.model.value import NamedTuple

Attributes = Sequence[tuple[str, str]]


class Edit(NamedTuple):
    """Replace the bytes from start to end."""

    start: int
    end: int
    text: bytes


class Style(NamedTuple):
    """How the document is written, so that what is added looks like the rest."""

    quote: str
    indent: str | None
    """Line break and indentation of a device; None where the document has no line breaks."""
    step: str


def write_plan(document: Document, plan: Plan) -> bytes:
    """The document with the plan's hostdevs and controllers in it; all other bytes as they were (X4).

    Args:
        document: from `read_document`.
        plan: from the pipeline, for this very document.
    """
    places = Places(document)
    style = _style(places)
    edits: list[Edit] = []
    added: list[str] = [_root_port(index, style) for index in plan.root_ports]
    completion = _Completion(places, style)
    hostdevs = hostdev_elements(document.root)
    for device in plan.devices:
        for function in device.functions:
            if function.attachment.hostdev is None:
                added.append(_hostdev(function, plan.iommufd, style))
            else:
                hostdev = hostdevs[function.attachment.hostdev]
                edits += completion.edits(hostdev, function, plan.iommufd)
    if places.devices is None:
        edits.append(_append(document.data, places.spans[0], [_wrap(added, style)], style, depth=-1))
    elif added:
        edits.append(_append(document.data, places.of(places.devices), added, style, depth=0))
    return _apply(document.data, edits)


def _apply(data: bytes, edits: list[Edit]) -> bytes:
    parts: list[bytes] = []
    at = 0
    for edit in sorted(edits, key=lambda edit: edit.start):  # stable: edits of one place stay in order
        parts += data[at : edit.start], edit.text
        at = edit.end
    return b"".join((*parts, data[at:]))


def _style(places: Places) -> Style:
    """Quotes as the document's first attribute has them, indentation as its devices have it."""
    data, devices = places.data, places.devices
    single, double = data.find(b"='"), data.find(b'="')
    quote = "'" if double < 0 or 0 <= single < double else '"'
    if devices is None or not len(devices):
        return Style(quote, "\n    " if b"\n" in data.strip() else None, "  ")
    leads = (_lead(data, places.of(child).start) for child in devices.iterchildren(etree.Element))
    own = next(filter(None, leads), None)
    if own is None:
        return Style(quote, None, "")
    outer = _lead(data, places.of(devices).start) or "\n"
    step = own[len(outer) :] if own.startswith(outer) else "  "
    return Style(quote, own, step or "  ")


def _lead(data: bytes, at: int) -> str | None:
    """The line break and blanks before a tag; None where it doesn't begin its line."""
    start = data.rfind(b"\n", 0, at)
    line = data[start + 1 : at]
    if start < 0 or line.strip():
        return None
    return ("\r\n" if data[start - 1 : start] == b"\r" else "\n") + line.decode("ascii")


def _append(data: bytes, span: Span, texts: Sequence[str], style: Style, depth: int) -> Edit:
    """An edit that puts texts at the end of an element, behind its last child, comments included."""
    lead = "" if style.indent is None else style.indent[: len(style.indent) + depth * len(style.step)]
    body = "".join(lead + text for text in texts)
    closing = lead[: len(lead) - len(style.step)] if lead else ""
    if span.empty:
        tag = data[span.start : span.open_end - 2].rstrip()
        name = tag[1:].split(None, 1)[0].decode("ascii")
        return Edit(span.start + len(tag), span.open_end, f">{body}{closing}</{name}>".encode())
    content = data[span.open_end : span.close]
    at = span.open_end + len(content.rstrip(b" \t\r\n"))
    if at == span.open_end and b"\n" not in content:
        return Edit(at, span.close, (body + closing).encode())
    return Edit(at, at, body.encode())


def _wrap(added: Sequence[str], style: Style) -> str:
    if not added:
        return "<devices/>"
    lead = style.indent or ""
    return f"<devices>{''.join(lead + text for text in added)}{lead[: len(lead) - len(style.step)]}</devices>"


def _tag(name: str, attributes: Attributes, style: Style) -> str:
    """An empty element; every value is made of characters that need no quoting."""
    quote = style.quote
    return f"<{name}{''.join(f' {key}={quote}{value}{quote}' for key, value in attributes)}/>"


def _root_port(index: int, style: Style) -> str:
    return _tag("controller", (("type", "pci"), ("index", str(index)), ("model", "pcie-root-port")), style)


def _hostdev(function: PlannedFunction, iommufd: bool, style: Style) -> str:
    """A whole hostdev. Its values need no quoting: numbers, UUIDs, aliases and words of ours."""
    lead = "" if style.indent is None else style.indent + style.step
    deeper = lead + style.step if lead else ""
    source = function.source
    kind, managed = kind_of(source), "yes" if function.managed else "no"
    attributes = f" mode='subsystem' type='{kind}' managed='{managed}'"
    if function.shown is not None:
        attributes += "".join([f" {name}='{value}'" for name, value in _shown_attributes(function.shown)])
    driver = lead + _IOMMUFD if iommufd and kind == "pci" else ""
    address = "" if function.guest is None else f"{lead}{_address(function.guest)}"
    text = (
        f"<hostdev{attributes}>{driver}{lead}<source>{deeper}<address {_source_attributes(source)}/>{lead}</source>"
        f"{lead}{_alias(function)}{address}{style.indent or ''}</hostdev>"
    )
    return text if style.quote == "'" else text.replace("'", style.quote)


_IOMMUFD = "<driver iommufd='yes'/>"


def _alias(function: PlannedFunction) -> str:
    return f"<alias name='{function.alias}'/>"


def _address(place: GuestPlace) -> str:
    multifunction = " multifunction='on'" if place.multifunction else ""
    return f"<address type='pci' {_pci_attributes(place.address)}{multifunction}/>"


def _shown_attributes(shown: Shown) -> list[tuple[str, str]]:
    return [(name, value) for name, value in zip(Shown._fields, shown, strict=True) if value]


def _source_attributes(source: HostAddress) -> str:
    if isinstance(source, PciAddress):
        return _pci_attributes(source)
    if isinstance(source, UsbAddress):
        return f"bus='{source.bus}' device='{source.device}'"
    return f"uuid='{source}'"


def _pci_attributes(address: PciAddress | GuestAddress) -> str:
    domain, bus, slot, function = address
    return f"domain='0x{domain:04x}' bus='0x{bus:02x}' slot='0x{slot:02x}' function='0x{function:x}'"


class _Completion:
    """Edits that complete a hostdev which the document has (X2)."""

    def __init__(self, places: Places, style: Style) -> None:
        self._places = places
        self._data = places.data
        self._style = style

    def edits(self, hostdev: etree._Element, function: PlannedFunction, iommufd: bool) -> list[Edit]:
        """What is missing, put in; what is there stays, but for aliases, display and multifunction that must change."""
        managed = "yes" if function.managed else "no"
        wanted = {"mode": "subsystem", "type": kind_of(function.source), "managed": managed}
        wanted |= _shown_attributes(function.shown or Shown())
        for name in ("mode", "type", "managed", "model"):
            if hostdev.get(name):
                wanted.pop(name, None)
        edits = self._set(hostdev, wanted)
        missing: list[str] = []
        if iommufd and isinstance(function.source, PciAddress):
            driver = hostdev.find("driver")
            if driver is None:
                missing.append(self._quoted(_IOMMUFD))
            else:
                edits += self._set(driver, {"iommufd": "yes"})
        alias = hostdev.find("alias")
        if alias is None:
            missing.append(self._quoted(_alias(function)))
        else:
            edits += self._set(alias, {"name": function.alias})
        address = hostdev.find("address")
        if address is not None:
            edits += self._place(address, function.guest)
        elif function.guest is not None:
            missing.append(self._quoted(_address(function.guest)))
        if missing:
            edits.append(_append(self._data, self._places.of(hostdev), missing, self._child_style(hostdev), depth=0))
        return edits

    def _quoted(self, text: str) -> str:
        return text.replace("'", self._style.quote)

    def _place(self, address: etree._Element, place: GuestPlace | None) -> list[Edit]:
        if place is None:
            return []
        wanted: dict[str, str] = {}
        if guest_address(address) is None:
            domain, bus, slot, function = place.address
            wanted = {
                "domain": f"0x{domain:04x}",
                "bus": f"0x{bus:02x}",
                "slot": f"0x{slot:02x}",
                "function": f"0x{function:x}",
            }
        if place.multifunction:
            wanted["multifunction"] = "on"
        elif place.multifunction is False and address.get("multifunction") == "on":
            wanted["multifunction"] = "off"
        return self._set(address, wanted)

    def _set(self, element: etree._Element, wanted: dict[str, str]) -> list[Edit]:
        """Attributes that differ: the value is replaced, or the attribute is put at the end of the tag."""
        span = self._places.of(element)
        edits: list[Edit] = []
        new: list[tuple[str, str]] = []
        for name, value in wanted.items():
            if element.get(name) == value:
                continue
            place = attribute_value(self._data, span, name)
            if place is None:
                new.append((name, value))
            else:
                edits.append(Edit(*place, value.encode()))
        if new:
            end = span.open_end - (2 if span.empty else 1)
            tag = self._data[span.start : end].rstrip()
            at = span.start + len(tag)
            edits.append(Edit(at, at, _tag("", new, self._style)[1:-2].encode()))
        return edits

    def _child_style(self, hostdev: etree._Element) -> Style:
        """As the children of this hostdev are written."""
        if self._style.indent is None:
            return self._style
        own = _lead(self._data, self._places.of(hostdev).start)
        return self._style._replace(indent=None if own is None else own + self._style.step)
