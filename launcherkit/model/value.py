"""Named tuples that cost little to define.

``typing.NamedTuple`` checks each field's annotation while the class is made, which is nearly half of what a value costs
a short process (docs/decisions/0001-values-are-named-tuples.md). This makes the same class by
``collections.namedtuple`` alone; type checkers see ``typing.NamedTuple``.
"""

from collections import namedtuple
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar


class _Probe:
    annotated: int


# From Python 3.14 on annotations are made when they are asked for: they cost nothing, and a class body has none yet.
if TYPE_CHECKING or "__annotations__" not in vars(_Probe):
    from typing import NamedTuple as NamedTuple  # noqa: PLC0414  # for others to import
else:
    _NOT_COPIED = frozenset({"__annotations__", "__module__", "__qualname__", "__classcell__"})

    class _Maker(type):
        def __new__(cls, name: str, _bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
            annotations = namespace["__annotations__"]
            defaults = [namespace[field] for field in annotations if field in namespace]
            made = namedtuple(name, annotations, defaults=defaults, module=namespace["__module__"])
            made.__annotations__ = annotations
            for key, value in namespace.items():
                if key not in annotations and key not in _NOT_COPIED:
                    setattr(made, key, value)
            return made

    class _Marker:
        """What a class statement names as its base; the class that it makes has ``tuple`` as its base."""

        def __mro_entries__(self, _bases: tuple[object, ...]) -> tuple[type, ...]:
            return (type.__new__(_Maker, "NamedTuple", (), {}),)

    NamedTuple = _Marker()


_T = TypeVar("_T")


def documented(**fields: str) -> Callable[[type[_T]], type[_T]]:
    """Say in ``help()`` what each field of a named tuple is, for those that callers see."""

    def document(cls: type[_T]) -> type[_T]:
        for name, text in fields.items():
            getattr(cls, name).__doc__ = text
        return cls

    return document
