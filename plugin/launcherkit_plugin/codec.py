"""Named tuples as JSON, and back by the types that their fields declare: a mapping by the names of the fields.

What a type says is checked, and unknown names are refused. A new field of a configuration needs nothing here.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def encode(value: Any) -> Any:
    """A value of what JSON has; sets are sorted, and the keys of mappings become text."""
    if hasattr(value, "_fields"):
        return {name: encode(part) for name, part in zip(value._fields, value, strict=True)}
    if isinstance(value, Mapping):
        return {str(key): encode(part) for key, part in value.items()}
    if isinstance(value, (tuple, frozenset)):
        return [encode(part) for part in (sorted(value) if isinstance(value, frozenset) else value)]
    return value


def decode(kind: type[T], document: Any) -> T:
    """The value of a type that `encode` was given.

    Args:
        kind: a named tuple whose fields are, at any depth, named tuples, tuples, sets, mappings, choices and scalars.
        document: parsed JSON.

    Raises:
        ValueError: the document has another shape.
    """
    return cast("T", _decode(kind, document))


@cache
def _fields(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _decode(kind: Any, document: Any) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _decode_either(parts, document)
    if origin is Literal:
        return _checked(document in parts, kind, document)
    if origin in (tuple, frozenset):
        _checked(isinstance(document, list), kind, document)
        return origin(_decode_all(parts, document))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        _checked(isinstance(document, dict), kind, document)
        return {_key(parts[0], key): _decode(parts[1], value) for key, value in document.items()}
    if hasattr(kind, "_fields"):
        fields = _fields(kind)
        _checked(isinstance(document, dict) and document.keys() == fields.keys(), kind, document)
        return kind(**{name: _decode(field, document[name]) for name, field in fields.items()})
    return _checked(type(document) in ((int, float) if kind is float else (kind,)), kind, document)


def _decode_either(kinds: tuple[Any, ...], document: Any) -> Any:
    """The value by the first of several types that it has."""
    *others, last = sorted(kinds, key=lambda kind: kind is not types.NoneType)
    for kind in others:
        with suppress(ValueError):
            return _decode(kind, document)
    return _decode(last, document)


def _decode_all(parts: tuple[Any, ...], documents: list[Any]) -> Iterator[Any]:
    """The entries of a tuple or set whose type has these arguments."""
    kinds = parts if parts[1:] not in ((), (Ellipsis,)) else parts[:1] * len(documents)
    return (_decode(kind, document) for kind, document in zip(kinds, documents, strict=True))


def _key(kind: Any, text: str) -> Any:
    return int(text) if kind is int else _decode(kind, text)


def _checked(right: bool, kind: Any, document: Any) -> Any:
    if not right:
        raise ValueError(f"{document!r:.80} is no {kind}")
    return document
