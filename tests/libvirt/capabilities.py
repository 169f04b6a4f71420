"""What this machine's libvirt can define, and a copy of a domain that it can."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from lxml import etree

# Machine types of other distributions, pc-q35-rhel9.4.0 say, are versions of a machine that every QEMU has.
_FAMILIES = {
    "pc-q35": "q35",
    "pc-i440fx": "pc",
    "virt": "virt",
    "s390-ccw-virtio": "s390-ccw-virtio",
    "pseries": "pseries",
}


class Guests(NamedTuple):
    """What libvirt says of one architecture."""

    types: frozenset[str]
    """``qemu``, ``kvm``."""
    machines: frozenset[str]


def read_capabilities(xml: str) -> dict[str, Guests]:
    """Architecture to what can be defined on it, from ``virsh capabilities``."""
    found = {}
    for arch in etree.fromstring(xml.encode()).iterfind("guest/arch"):
        types = frozenset(domain.get("type", "") for domain in arch.iterfind("domain"))
        machines = frozenset(machine.text or "" for machine in arch.iter("machine"))
        canonical = frozenset(machine.get("canonical", "") for machine in arch.iter("machine"))
        found[arch.get("name", "")] = Guests(types, machines | canonical)
    return found


def made_definable(domain_xml: bytes, capabilities: Mapping[str, Guests]) -> tuple[bytes, list[str]]:
    """A copy of a domain that can be defined here, and what had to be changed for it.

    Only what depends on the machine that runs the tests is touched: hypervisor, emulator, machine version, UUID.
    """
    root = etree.fromstring(domain_xml, etree.XMLParser(resolve_entities=False, no_network=True))
    changes: list[str] = []
    os_type = root.find("os/type")
    if os_type is None:
        return domain_xml, changes
    guests = capabilities.get(os_type.get("arch", os.uname().machine))
    if guests and root.get("type") == "kvm" and "kvm" not in guests.types:
        changes.append("type kvm -> qemu")
        root.set("type", "qemu")
    machine = os_type.get("machine")
    if guests and machine and machine not in guests.machines:
        family = next((plain for prefix, plain in _FAMILIES.items() if machine.startswith(prefix)), None)
        if family:
            changes.append(f"machine {machine} -> {family}")
            os_type.set("machine", family)
    for emulator in root.iterfind("devices/emulator"):
        if not os.access(emulator.text or "", os.X_OK):
            changes.append(f"emulator {emulator.text} -> libvirt's")
            etree.strip_elements(root, "emulator", with_tail=False)
            break
    for uuid in root.findall("uuid"):
        root.remove(uuid)
    return etree.tostring(root), changes
