"""Named tuples that are cheap to define.

``typing.NamedTuple`` checks each field's annotation while a class is made, and ``collections.namedtuple`` compiles a
``__new__`` for it. Together that is most of the time that a short process spends on its values
(docs/decisions/0001-values-are-named-tuples.md). This module makes the same classes without either; type checkers see
``typing.NamedTuple``.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar


class _Probe:
    annotated: int


# From Python 3.14 on annotations are evaluated lazily: they cost nothing, and a class body has none yet.
if TYPE_CHECKING or "__annotations__" not in vars(_Probe):
    from typing import NamedTuple as NamedTuple  # noqa: PLC0414  # for others to import
else:
    from collections import namedtuple
    from types import FunctionType

    _new = tuple.__new__
    _getter = type(vars(namedtuple("_Probe", "field"))["field"])
    _NEW = [
        function.__code__
        for function in (
            lambda _cls: _new(_cls, ()),
            lambda _cls, a: _new(_cls, (a,)),
            lambda _cls, a, b: _new(_cls, (a, b)),
            lambda _cls, a, b, c: _new(_cls, (a, b, c)),
            lambda _cls, a, b, c, d: _new(_cls, (a, b, c, d)),
            lambda _cls, a, b, c, d, e: _new(_cls, (a, b, c, d, e)),
            lambda _cls, a, b, c, d, e, f: _new(_cls, (a, b, c, d, e, f)),
            lambda _cls, a, b, c, d, e, f, g: _new(_cls, (a, b, c, d, e, f, g)),
            lambda _cls, a, b, c, d, e, f, g, h: _new(_cls, (a, b, c, d, e, f, g, h)),
            lambda _cls, a, b, c, d, e, f, g, h, i: _new(_cls, (a, b, c, d, e, f, g, h, i)),
            lambda _cls, a, b, c, d, e, f, g, h, i, j: _new(_cls, (a, b, c, d, e, f, g, h, i, j)),
            lambda _cls, a, b, c, d, e, f, g, h, i, j, k: _new(_cls, (a, b, c, d, e, f, g, h, i, j, k)),
            lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m: _new(_cls, (a, b, c, d, e, f, g, h, i, j, k, m)),
            lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m, n: _new(_cls, (a, b, c, d, e, f, g, h, i, j, k, m, n)),
            lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o: _new(
                _cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o)
            ),
            lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o, p: _new(
                _cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p)
            ),
            lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q: _new(
                _cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q)
            ),
            lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q, r: _new(
                _cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q, r)
            ),
        )
    ]

    def _make(cls, values: Iterable[Any]):
        made = tuple.__new__(cls, values)
        if len(made) != len(cls._fields):
            raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
        return made

    def _replace(self, /, **fields: Any):
        made = self._make(map(fields.pop, self._fields, self))
        if fields:
            raise TypeError(f"Got unexpected field names: {list(fields)!r}")
        return made

    _METHODS = {
        "__slots__": (),
        "__hash__": tuple.__hash__,  # even for those that define __eq__
        "_make": classmethod(_make),
        "_replace": _replace,
        "__replace__": _replace,
        "_asdict": lambda self: dict(zip(self._fields, self, strict=True)),
        "__getnewargs__": lambda self: tuple(self),
        "__repr__": lambda self: f"{type(self).__name__}({', '.join(map('{}={!r}'.format, self._fields, self))})",
    }

    class _Maker(type):
        def __new__(cls, name: str, _bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
            fields = tuple(namespace["__annotations__"])
            defaults = {field: namespace[field] for field in fields if field in namespace}
            code = _NEW[len(fields)].replace(
                co_name="__new__", co_qualname=f"{name}.__new__", co_varnames=("_cls", *fields)
            )
            own = {
                "__new__": FunctionType(code, globals(), "__new__", tuple(defaults.values())),
                "__match_args__": fields,
                "_fields": fields,
                "_field_defaults": defaults,
            }
            getters = {field: _getter(index, None) for index, field in enumerate(fields)}
            return type(name, (tuple,), _METHODS | namespace | getters | own)

    class _Marker:
        """The base that a class statement names; the resulting class has the base ``tuple``."""

        def __mro_entries__(self, _bases: tuple[object, ...]) -> tuple[type, ...]:
            return (type.__new__(_Maker, "NamedTuple", (), {}),)

    NamedTuple = _Marker()


_T = TypeVar("_T")

if TYPE_CHECKING:

    def from_fields(cls: type[_T], fields: tuple[object, ...], /) -> _T:
        """Make a value from all of its fields, in half the time, for code that makes one for each function of a host.

        Neither their number nor their types are checked.
        """
else:
    from_fields = tuple.__new__


def documented(**fields: str) -> Callable[[type[_T]], type[_T]]:
    """Describe the fields of a named tuple for ``help()``, for those that callers see."""

    def document(cls: type[_T]) -> type[_T]:
        for name, text in fields.items():
            getattr(cls, name).__doc__ = text
        return cls

    return document
