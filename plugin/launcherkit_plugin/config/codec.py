"""Values of named tuples as JSON and back, by their annotations: so a configuration comes from another process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def encode(value: object) -> Any:
    """What ``json.dumps`` can write: named tuples become objects, sets sorted lists, keys of mappings text."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: encode(part) for key, part in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): encode(part) for key, part in value.items()}
    if isinstance(value, frozenset):
        return [encode(part) for part in sorted(value)]
    if isinstance(value, tuple):
        return [encode(part) for part in value]
    return value


def decode(kind: type[T], value: object) -> T:
    """The value of a named tuple that `encode` has written.

    Raises:
        KeyError, TypeError, ValueError: it was something else.
    """
    decoded: T = _decoder(cast("Hashable", kind))(value)
    return decoded


@cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    """What makes a value of an annotated type out of JSON."""
    origin, args = get_origin(kind), get_args(kind)
    if hasattr(kind, "_fields"):
        fields = {name: _decoder(hint) for name, hint in get_type_hints(kind).items()}
        return lambda value: kind(**{name: make(value[name]) for name, make in fields.items()})
    if origin in (Union, UnionType):
        (inner,) = (_decoder(arg) for arg in args if arg is not NoneType)
        return lambda value: None if value is None else inner(value)
    if origin is tuple and args[-1] is ...:
        each = _decoder(args[0])
        return lambda value: tuple(each(part) for part in value)
    if origin is tuple:
        parts = [_decoder(arg) for arg in args]
        return lambda value: tuple(make(part) for make, part in zip(parts, value, strict=True))
    if origin is frozenset:
        each = _decoder(args[0])
        return lambda value: frozenset(each(part) for part in value)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        make_key, make = args[0], _decoder(args[1])
        return lambda value: {make_key(key): make(part) for key, part in value.items()}
    if origin is Literal or kind in (str, int, float, bool):
        return lambda value: value
    raise TypeError(f"no way to read {kind} from JSON")
