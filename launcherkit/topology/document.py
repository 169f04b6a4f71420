"""The tree as JSON; schemas/topology.schema.json is made from the same values."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from launcherkit.model.address import PciAddress, PciSlot
from launcherkit.topology.tree import HostTopology

FORMAT = "launcherkit.io/topology/v1"


def document(topology: HostTopology) -> dict[str, Any]:
    """The tree as JSON's own types: addresses as text, every field by its name in camel case."""
    return {"format": FORMAT, **_plain(topology)}


def key_of(field: str) -> str:
    """``possible_vfs`` is ``possibleVfs``."""
    first, *others = field.split("_")
    return first + "".join(map(str.capitalize, others))


def _plain(value: Any) -> Any:
    if isinstance(value, PciAddress | PciSlot):
        return str(value)
    if is_dataclass(value):
        return {key_of(field.name): _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {key_of(name): _plain(field) for name, field in zip(value._fields, value, strict=True)}
    return list(map(_plain, value)) if isinstance(value, tuple) else value
