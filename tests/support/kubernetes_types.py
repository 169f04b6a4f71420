"""Kubernetes' types, as its own client declares them: whether a document, or a part of one, has only their fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_PLAIN: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "bool": (bool,), "float": (int, float)}
_RENAMED = {"V1ResourceClaim": "ResourceV1ResourceClaim"}
"""Two groups have a kind of this name."""
_QUANTITIES = {"limits", "requests"}
"""Their values may be numbers too, which the client's types don't say."""


def wrong(value: Any, name: str, where: str = "$") -> Iterator[str]:
    """What a value has that its type doesn't, with places as JSON paths. What is missing is not looked for.

    Args:
        value: as YAML gives it.
        name: a type of Kubernetes's client: ``V1Container``, ``List[V1Container]``, ``Dict[str, str]``.
        where: the place of the value.
    """
    kind, _, inner = name.rstrip("]").partition("[")
    if kind == "object":
        return
    if kind in _PLAIN:
        if not isinstance(value, _PLAIN[kind]) or isinstance(value, bool) != (kind == "bool"):
            yield f"{where}: {value!r} is no {kind}"
    elif kind == "List":
        for number, item in enumerate(value) if isinstance(value, list) else [("", None)]:
            yield from wrong(item, inner, f"{where}[{number}]")
    elif not isinstance(value, dict):
        yield f"{where}: no {kind}"
    else:
        types = dict.fromkeys(value, inner.partition(", ")[2]) if kind == "Dict" else _fields(kind)
        for key, item in value.items():
            if key not in types:
                yield f"{where}: {kind} has no {key}"
            elif key not in _QUANTITIES:
                yield from wrong(item, types[key], f"{where}.{key}")


def _fields(name: str) -> dict[str, str]:
    """The fields of a type with their types."""
    from kubernetes.client import models  # a third of a second, which every process of the tests would spend

    model = getattr(models, _RENAMED.get(name, name))
    return {model.attribute_map[field]: type_ for field, type_ in model.openapi_types.items()}
