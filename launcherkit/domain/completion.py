"""Completes hostdevs that the document already has (X2)."""

from __future__ import annotations

from collections.abc import Mapping

from lxml import etree

from launcherkit.domain import elements
from launcherkit.domain.hostdev import (
    cpuset_text,
    hostdev_attributes,
    is_same,
    pci_attributes,
    read_guest_address,
    source_attributes,
)
from launcherkit.domain.xml import Edit, Places, Style, append_children, attribute_value, escaped, indentation_of
from launcherkit.model.address import HostAddress
from launcherkit.model.plan import GuestPlace, PlannedFunction
from launcherkit.model.request import Kind, kind_of


class Completion:
    """Edits that complete the hostdevs of one document."""

    def __init__(self, places: Places, style: Style) -> None:
        self._places = places
        self._data = places.data
        self._style = style

    def essentials(self, hostdev: etree._Element, kind: Kind) -> list[Edit]:
        """Edits that add ``mode`` and ``type``: KubeVirt's own schema refuses a hostdev without them (Q3, X1)."""
        attributes = {"mode": "subsystem", "type": kind}
        return self._set(hostdev, {name: value for name, value in attributes.items() if not hostdev.get(name)})

    def edits(self, hostdev: etree._Element, function: PlannedFunction) -> list[Edit]:
        """Edits that add what is missing; the rest stays, except aliases, displays and multifunction that change."""
        attributes = hostdev_attributes(kind_of(function.source), function.managed, function.shown)
        for name in ("mode", "type", "managed", "model"):
            if hostdev.get(name):
                attributes.pop(name, None)
        edits = self._set(hostdev, attributes)
        if function.attachment.replaces is not None:
            edits += self._source(hostdev, function.source)
        if driver := elements.driver_attributes(function.iommufd, function.driver):
            edits += self._driver(hostdev, driver)
        missing: list[str] = []
        alias = hostdev.find("alias")
        if alias is None:
            missing.append(elements.alias(function.alias))
        else:
            edits += self._set(alias, {"name": function.alias})
        if function.nodeset is not None:
            acpi = hostdev.find("acpi")
            if acpi is None:
                missing.append(elements.acpi(function.nodeset))
            elif not acpi.get("nodeset"):
                edits += self._set(acpi, {"nodeset": cpuset_text(function.nodeset)})
        if function.rom is not None and hostdev.find("rom") is None:
            missing.append(elements.rom(function.rom))
        if function.boot_order is not None and hostdev.find("boot") is None:
            missing.append(elements.boot(function.boot_order))
        address = hostdev.find("address")
        if address is not None:
            edits += self._place(address, function.guest)
        elif planned := elements.address(function):
            missing.append(planned)
        if missing:
            texts = [elements.quoted(text, self._style) for text in missing]
            span = self._places.of(hostdev)
            edits.append(append_children(self._data, span, texts, self._child_style(hostdev), depth=0))
        return edits

    def _source(self, hostdev: etree._Element, source: HostAddress) -> list[Edit]:
        """Another source for the same kind of device (X2); numbers that stay are not touched."""
        address = hostdev.find("source/address")
        if address is None:
            return []
        attributes = dict(source_attributes(source))
        for name in [name for name, value in attributes.items() if is_same(address.get(name), value)]:
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
        at = self._places.of(source).start
        text = elements.quoted(elements.driver(attributes), self._style) + (indentation_of(self._data, at) or "")
        return [Edit(at, at, text.encode("ascii"))]

    def _place(self, address: etree._Element, place: GuestPlace | None) -> list[Edit]:
        if place is None:
            return []
        attributes: dict[str, str] = {}
        if read_guest_address(address) is None:
            attributes |= pci_attributes(place.address)
        if place.multifunction:
            attributes["multifunction"] = "on"
        elif place.multifunction is False and address.get("multifunction") == "on":
            attributes["multifunction"] = "off"
        return self._set(address, attributes)

    def _set(self, element: etree._Element, attributes: Mapping[str, str]) -> list[Edit]:
        """Edits for attributes that differ: the value is replaced, or the attribute is added at the end of the tag."""
        span = self._places.of(element)
        edits: list[Edit] = []
        new: list[tuple[str, str]] = []
        for name, value in attributes.items():
            if element.get(name) == value:
                continue
            place = attribute_value(self._data, span, name)
            if place is None:
                new.append((name, value))
            else:
                edits.append(Edit(*place, escaped(value).encode("ascii")))
        if new:
            end = span.open_end - (2 if span.empty else 1)
            tag = self._data[span.start : end].rstrip()
            at = span.start + len(tag)
            edits.append(Edit(at, at, elements.quoted(elements.attributes(new), self._style).encode("ascii")))
        return edits

    def _child_style(self, hostdev: etree._Element) -> Style:
        """The style of this hostdev's children."""
        if self._style.indent is None:
            return self._style
        own = indentation_of(self._data, self._places.of(hostdev).start)
        return self._style._replace(indent=None if own is None else own + self._style.step)
