"""What of a document libvirt has kept: hostdevs, where they are in the guest, and the PCI controllers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from lxml import etree

Facts: TypeAlias = dict[str, dict[str, str]]
"""A hostdev or controller by its identity, each with what the document says of it."""

_ALIAS_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")

_SOURCE = {"pci": ("domain", "bus", "slot", "function"), "mdev": ("uuid",), "usb": ("bus", "device", "id")}
"""What says which device it is. KubeVirt writes more into a source address, and libvirt ignores that."""


def differences(said: bytes, kept: bytes) -> list[str]:
    """What ``kept`` has lost or changed of what ``said`` says, and hostdevs from nowhere; empty where all is well.

    libvirt may add: controllers, addresses, defaults. It drops aliases that don't begin with ``ua-``.
    """
    before, after = etree.fromstring(said), etree.fromstring(kept)
    found = list(_lost(_hostdevs(before), _hostdevs(after)))
    found += [f"{key}: nobody asked for it" for key in _hostdevs(after).keys() - _hostdevs(before).keys()]
    return found + list(_lost(_controllers(before) | _cells(before), _controllers(after) | _cells(after)))


def _lost(said: Facts, kept: Facts) -> Iterator[str]:
    for key, facts in said.items():
        if key not in kept:
            yield f"{key}: gone"
            continue
        for name, value in facts.items():
            if kept[key].get(name, "") != value:
                yield f"{key}: {name} was {value or 'not said'}, is {kept[key].get(name) or 'gone'}"


def _hostdevs(root: etree._Element) -> Facts:
    return {_identity(hostdev): dict(_said_of(hostdev)) for hostdev in root.iterfind("devices/hostdev")}


def _identity(hostdev: etree._Element) -> str:
    """The source, as libvirt reads it (X2)."""
    kind = hostdev.get("type", "")
    default = "0" if kind == "pci" else ""
    parts = []
    for part in hostdev.iterfind("source/*"):
        numbers = [(name, _number(part.get(name, default))) for name in _SOURCE.get(kind, ())]
        parts.append(" ".join([str(part.tag), *(f"{name}={number}" for name, number in numbers if number)]))
    return f"{kind} hostdev of {', '.join(parts)}"


def _said_of(hostdev: etree._Element) -> Iterator[tuple[str, str]]:
    for name in ("mode", "managed", "model", "display", "ramfb"):
        if value := hostdev.get(name):
            yield name, value
    for tag in ("driver", "rom", "acpi"):
        for child in hostdev.iterfind(tag):
            yield from ((f"{tag} {name}", value) for name, value in child.attrib.items())
    alias = hostdev.find("alias")
    name = "" if alias is None else alias.get("name", "")
    if name.startswith("ua-") and _ALIAS_CHARACTERS.issuperset(name):
        yield "alias", name
    address = hostdev.find("address")
    if address is not None and _is_place(address):
        yield from ((f"guest {part}", _number(value)) for part, value in address.attrib.items())
        # Said or not: a function that becomes multifunction without our doing is a slot that we have not understood.
        yield "guest multifunction", address.get("multifunction", "")


def _is_place(address: etree._Element) -> bool:
    """Whether libvirt takes it as a place: to it, 0000:00:00.0 and an address without numbers are none."""
    return any(_number(address.get(part, "0")) != "0" for part in ("domain", "bus", "slot", "function"))


def _controllers(root: etree._Element) -> Facts:
    return {
        f"controller {_number(controller.get('index', ''))}": {"model": controller.get("model", "")}
        for controller in root.iterfind("devices/controller[@type='pci'][@index]")
        if controller.get("model")
    }


def _cells(root: etree._Element) -> Facts:
    return {
        f"cell {cell.get('id')}": {"cpus": cell.get("cpus", ""), "empty": str(cell.get("memory") == "0")}
        for cell in root.iterfind("cpu/numa/cell[@id]")
    }


def _number(text: str) -> str:
    """A number as libvirt reads it, where a leading 0 means octal; any other text as it is, in lower case."""
    base = 16 if text[:2].lower() == "0x" else 8 if text[:1] == "0" else 10
    try:
        return str(int(text, base))
    except ValueError:
        return text.lower()
