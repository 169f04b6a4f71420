"""The tree as JSON; schemas/topology.schema.json is made from the same values."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any

from launcherkit.model.address import PciAddress, PciSlot
from launcherkit.topology.host_topology import HostTopology, TreeFunction

FORMAT = "launcherkit.io/topology/v1"


def document(topology: HostTopology) -> dict[str, Any]:
    """The tree as values for JSON: addresses are text, and fields have their names in camel case."""
    return {"format": FORMAT, **_plain(topology)}


def dump(topology: HostTopology) -> str:
    """The document as text, with one line for each function."""
    return _laid_out({"format": FORMAT, **_plain(topology, _Line)}, "\n") + "\n"


def key_of(field: str) -> str:
    """``possibleVfs`` for ``possible_vfs``."""
    first, *others = field.split("_")
    return first + "".join(map(str.capitalize, others))


class _Line(str):
    """JSON text."""

    __slots__ = ()

    def __new__(cls, value: Any) -> _Line:
        return super().__new__(cls, json.dumps(value))


def _plain(value: Any, of_function: Callable[[dict[str, Any]], Any] = dict) -> Any:
    if isinstance(value, PciAddress | PciSlot):
        return str(value)
    kind: Any = type(value)
    if (keys := _keys(kind)) is not None:
        plain = {key: _plain(field, of_function) for key, field in zip(keys[0], keys[1](value), strict=True)}
        return of_function(plain) if isinstance(value, TreeFunction) else plain
    return [_plain(each, of_function) for each in value] if isinstance(value, tuple) else value


@cache
def _keys(kind: type[Any]) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]] | None:
    """The keys for a value's fields, and a getter for them; None if it has no fields."""
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else getattr(kind, "_fields", None)
    return None if names is None else (tuple(map(key_of, names)), attrgetter(*names))


def _laid_out(value: Any, end: str) -> str:
    """As ``json.dumps(value, indent=2)``, whose implementation is in Python, but each `_Line` stays one line."""
    if isinstance(value, _Line):
        return value
    within = f"{end}  "
    if isinstance(value, dict) and value:
        parts = [f"{json.dumps(key)}: {_laid_out(each, within)}" for key, each in value.items()]
        return f"{{{within}{f',{within}'.join(parts)}{end}}}"
    if isinstance(value, list) and value:
        return f"[{within}{f',{within}'.join([_laid_out(each, within) for each in value])}{end}]"
    return json.dumps(value)
