"""Domain documents to translate, and what came of them, in words short enough to compare."""

from __future__ import annotations

from typing import NamedTuple

from lxml import etree


def domain(*devices: str, machine: str | None = "q35", arch: str = "x86_64", kind: str = "kvm") -> str:
    """A domain with these devices, a line each."""
    machine_attribute = "" if machine is None else f" machine='{machine}'"
    inside = "".join(f"\n    {device}" for device in devices)
    return (
        f"<domain type='{kind}'>\n  <os>\n    <type arch='{arch}'{machine_attribute}>hvm</type>\n  </os>\n"
        f"  <devices>{inside}\n  </devices>\n</domain>\n"
    )


def pci_hostdev(host: str, *, guest: str | None = None, alias: str | None = None, attributes: str = "") -> str:
    """A PCI hostdev as KubeVirt writes it: no mode; addresses as ``0000:e1:00.0``."""
    inside = f"<source><address {_attributes(host)}/></source>"
    if alias is not None:
        inside += f"<alias name='{alias}'/>"
    if guest is not None:
        inside += f"<address type='pci' {_attributes(guest)}/>"
    return f"<hostdev type='pci' managed='no'{attributes}>{inside}</hostdev>"


def mdev_hostdev(uuid: str, *, alias: str = "", attributes: str = "") -> str:
    named = f"<alias name='{alias}'/>" if alias else ""
    return (
        f"<hostdev mode='subsystem' type='mdev'{attributes}><source><address uuid='{uuid}'/></source>{named}</hostdev>"
    )


def _attributes(address: str) -> str:
    domain_, bus, rest = address.split(":")
    slot, function = rest.split(".")
    return f"domain='0x{domain_}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'"


class Hostdev(NamedTuple):
    """One hostdev of a document."""

    source: str
    """BDF, UUID, or ``bus:device``."""
    alias: str | None
    guest: str | None
    multifunction: str | None
    attributes: dict[str, str]


def hostdevs(document: bytes | str) -> list[Hostdev]:
    """The hostdevs of a document, in order."""
    root = etree.fromstring(document.encode() if isinstance(document, str) else document)
    return [_read(element) for element in root.findall("devices/hostdev")]


def _read(element: etree._Element) -> Hostdev:
    source = element.find("source/address")
    assert source is not None
    alias, guest = element.find("alias"), element.find("address")
    return Hostdev(
        source=source.get("uuid")
        or (_bdf(source) if source.get("slot") else f"{source.get('bus')}:{source.get('device')}"),
        alias=None if alias is None else alias.get("name"),
        guest=None if guest is None else _bdf(guest),
        multifunction=None if guest is None else guest.get("multifunction"),
        attributes={str(key): str(value) for key, value in element.attrib.items()},
    )


def _bdf(address: etree._Element) -> str:
    domain_, bus, slot, function = (int(address.get(key, "0"), 0) for key in ("domain", "bus", "slot", "function"))
    return f"{domain_:04x}:{bus:02x}:{slot:02x}.{function}"


def root_ports(document: bytes) -> list[int]:
    """Indices of the document's root ports."""
    found = etree.fromstring(document).findall("devices/controller[@model='pcie-root-port']")
    return [int(element.get("index", "-1")) for element in found]
