"""A domain for a VM that was never started: a bundled template with the CPUs and memory of its VMI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from launcherkit.errors import shown
from launcherkit.model.plan import Note, amount_of
from launcherkit.model.window import MIB


@dataclass(frozen=True, slots=True)
class StandIn:
    """A template and its values."""

    template: str
    values: Mapping[str, str]
    notes: tuple[Note, ...] = ()
    """What of the VMI's CPUs and memory isn't understood."""


def stand_in(document: Mapping[str, Any]) -> StandIn:
    """A stand-in for a VMI's domain; whatever the VMI doesn't say, or isn't understood, is as in the template or 1.

    Args:
        document: a parsed VMI or VirtualMachine that `read_vmi` accepts.
    """
    template = _part(document, "spec", "template")
    vmi = template if _part(template, "spec") else document
    name = _part(document, "metadata").get("name") or _part(vmi, "metadata").get("name")
    domain = _part(vmi, "spec", "domain")
    values = {"name": str(name) if isinstance(name, str) and name else "vm"}
    notes: list[Note] = []
    given = {
        "memory.guest": _part(domain, "memory").get("guest"),
        "resources.requests.memory": _part(domain, "resources", "requests").get("memory"),
    }
    amounts = {key: amount_of(quantity) for key, quantity in given.items() if quantity is not None}
    memory = next(filter(None, amounts.values()), 0)
    if memory >= MIB:
        values["memory_mib"] = str(int(memory // MIB))
    elif amounts:
        key = next(iter(amounts))
        notes.append(_not_understood(key, given[key], "the template's memory"))
    cpu = _part(domain, "cpu")
    counts = {key: cpu[key] for key in ("sockets", "cores", "threads") if cpu.get(key) is not None}
    wrong = [key for key, count in counts.items() if not isinstance(count, int) or count < 1]
    notes += [_not_understood(f"cpu.{key}", counts[key], "1") for key in wrong]
    if cpu:
        values["vcpus"] = str(prod(count for key, count in counts.items() if key not in wrong))
    if _part(vmi, "spec").get("architecture") == "arm64":
        return StandIn("virt-aarch64", values, tuple(notes))
    if isinstance(_part(domain, "firmware").get("bootloader"), Mapping):
        values["firmware"] = "efi" if "efi" in _part(domain, "firmware", "bootloader") else "bios"
    return StandIn("q35", values, tuple(notes))


def _not_understood(key: str, given: object, instead: str) -> Note:
    return Note("domain", f"spec.domain.{key}: {shown(given)} isn't understood, and counts as {instead}")


def _part(document: Any, *keys: str) -> Mapping[str, Any]:
    """A mapping in a document; empty if it is missing."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document if isinstance(document, Mapping) else {}
