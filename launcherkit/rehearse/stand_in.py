"""A domain for a VM that was never started: a bundled template with the CPUs and memory of its VMI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcherkit.model.quantity import amount_of
from launcherkit.model.window import MIB


@dataclass(frozen=True, slots=True)
class StandIn:
    """A template and its values."""

    template: str
    values: Mapping[str, str]


def stand_in(document: Mapping[str, Any]) -> StandIn:
    """A stand-in for a VMI's domain; whatever the VMI doesn't say, or isn't understood, is as in the template.

    Args:
        document: a parsed VMI or VirtualMachine that `read_vmi` accepts.
    """
    template = _part(document, "spec", "template")
    vmi = template if _part(template, "spec") else document
    name = _part(document, "metadata").get("name") or _part(vmi, "metadata").get("name")
    domain = _part(vmi, "spec", "domain")
    values = {"name": str(name) if isinstance(name, str) and name else "vm"}
    said = (_part(domain, "memory").get("guest"), _part(domain, "resources", "requests").get("memory"))
    memory = next(filter(None, map(amount_of, said)), 0)
    if memory >= MIB:
        values["memory_mib"] = str(int(memory // MIB))
    cpu = _part(domain, "cpu")
    vcpus = 1
    for key in ("sockets", "cores", "threads"):
        vcpus *= number if isinstance(number := cpu.get(key), int) and number > 0 else 1
    if cpu:
        values["vcpus"] = str(vcpus)
    if _part(vmi, "spec").get("architecture") == "arm64":
        return StandIn("virt-aarch64", values)
    if isinstance(_part(domain, "firmware").get("bootloader"), Mapping):
        values["firmware"] = "efi" if "efi" in _part(domain, "firmware", "bootloader") else "bios"
    return StandIn("q35", values)


def _part(document: Any, *keys: str) -> Mapping[str, Any]:
    """A mapping in a document; empty if it is missing."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document if isinstance(document, Mapping) else {}
