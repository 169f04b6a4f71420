"""Makes pydantic models of values that declare their keys: see `launcherkit_plugin.model.keys`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Tag,
    WithJsonSchema,
    create_model,
    model_validator,
)

from launcherkit_plugin.model.keys import Key, Limits, TextForm


class Schema(BaseModel):
    """A mapping in a configuration: no keys but its own; a key without a value counts as missing."""

    # Validators are built on first use: most models are used only as parts of others.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_empty_keys(cls, values: Any) -> Any:
        if isinstance(values, dict):
            return {key: value for key, value in values.items() if value is not None}
        return values


T = TypeVar("T")
Check = Callable[[T, Set[str]], None]
"""Raises ValueError if the keys of a value contradict each other; is passed the fields that are given, too."""


class Declared(Generic[T]):
    """What reads a named tuple from a configuration: a pydantic model, made of the fields' types, defaults and `Key`.

    In a type it stands beside the named tuple, ``Annotated[Selector, Declared(Selector)]``: the model checks what is
    written and is its JSON Schema, and the value is the named tuple.

    Args:
        kind: the named tuple. Its tuples and sets are lists in the configuration.
        check: see `Check`.
        title: of the JSON Schema; None: the name of the named tuple, with ``Schema``.
        about: the description in the JSON Schema; None: the docstring of the named tuple.
        parts: what reads the named tuples in its fields, by field.
        defaults: instead of those that the named tuple has.
        beside: keys that aren't the value's, each with its type and default, behind the field that is named first, or,
            if that is empty, before all.
    """

    def __init__(
        self,
        kind: type[T],
        check: Check[T] | None = None,
        *,
        title: str | None = None,
        about: str | None = None,
        parts: Mapping[str, Declared[Any]] = {},
        defaults: Mapping[str, object] = {},
        beside: tuple[str, Mapping[str, tuple[Any, Any]]] = ("", {}),
    ) -> None:
        self._kind = cast("Any", kind)
        self._check = check
        after, others = beside
        initial = {**self._kind._field_defaults, **defaults}
        fields: dict[str, tuple[Any, Any]] = {} if after else dict(others)
        self._names: list[str] = []
        for name, hint in get_type_hints(kind, include_extras=True).items():
            key = next((part for part in get_args(hint)[1:] if isinstance(part, Key)), None)
            if key is not None:
                fields[name] = _field(name, hint, key, initial.get(name, ...), parts.get(name))
                self._names.append(name)
            if name == after:
                fields.update(others)
        self.model: type[Schema] = create_model(  # type: ignore[call-overload]  # the names are known only here
            title or f"{kind.__name__}Schema",
            __base__=Schema,
            __doc__=about or kind.__doc__,
            __validators__={"check": model_validator(mode="after")(lambda keys: self._checked(keys))},
            **fields,
        )

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> Any:  # pydantic calls it so
        return AfterValidator(self.value_of).__get_pydantic_core_schema__(self.model, handler)

    def value_of(self, keys: Schema) -> T:
        """The value that an instance of the model stands for."""
        hints = get_type_hints(self._kind)
        values = {name: getattr(keys, name) for name in self._names}
        collections = {name: get_origin(hints[name]) for name, value in values.items() if isinstance(value, list)}
        value: T = self._kind(**values | {name: collect(values[name]) for name, collect in collections.items()})
        return value

    def _checked(self, keys: Schema) -> Schema:
        if self._check is not None:
            self._check(self.value_of(keys), keys.model_fields_set)
        return keys


def _field(name: str, hint: Any, key: Key, default: Any, part: Declared[Any] | None) -> tuple[Any, Any]:
    """The type and the `Field` of a key."""
    inner, *rest = get_args(hint)
    limits = _limits(rest)
    about: dict[str, Any] = {"alias": key.of(name), "description": key.help or None, **limits}
    if default in ((), frozenset()):
        about["default"] = ... if "min_length" in limits else []
    elif hasattr(default, "_fields"):
        about["default_factory"] = lambda: default
    else:
        about["default"] = default
    forms = [form for form in rest if isinstance(form, TextForm)]
    return _key_type(Annotated[inner, *forms] if forms else inner, part), Field(**about)


def _limits(annotations: Iterable[object]) -> dict[str, Any]:
    """The limits among the annotations of a type, as arguments of `Field`."""
    limits = (part._asdict() for part in annotations if isinstance(part, Limits))
    return {name: value for limit in limits for name, value in limit.items() if value is not None}


def _key_type(hint: Any, part: Declared[Any] | None) -> Any:
    """The type of what is written, by that of the value; ``part`` reads the named tuple in it."""
    origin, types = get_origin(hint), get_args(hint)
    if origin is Annotated:
        inner, *rest = types
        for about in rest:
            if isinstance(about, TextForm):
                return Annotated[inner, *_text(about)]
        return Annotated[inner, Field(**_limits(rest))]
    if origin is frozenset or (origin is tuple and types[-1] is Ellipsis):
        return list[_key_type(types[0], part)]  # type: ignore[misc]  # made of values
    if origin is Mapping:
        return dict[_key_type(types[0], part), _key_type(types[1], part)]  # type: ignore[misc]
    if origin in (Union, UnionType):
        if any(get_origin(one) is Literal for one in types) and part is not None:
            return _word_or_mapping(types, part)
        return Union[*(_key_type(one, part) for one in types)]
    return Annotated[hint, part] if hasattr(hint, "_fields") else hint


def _word_or_mapping(types: Iterable[Any], part: Declared[Any]) -> Any:
    """A union of which errors are about what was written: a word, or a mapping that ``part`` reads."""
    kinds = {
        "mapping" if hasattr(one, "_fields") else "word": _key_type(one, part) for one in types if one is not NoneType
    }
    tagged: Any = Union[*(Annotated[kind, Tag(name)] for name, kind in kinds.items())]
    chosen = Discriminator(lambda value: "mapping" if isinstance(value, Mapping) else "word")
    return Annotated[tagged, chosen] | None


def _text(form: TextForm) -> tuple[object, object]:
    """A validator that parses a string and refuses any other value, and its JSON Schema."""

    def parsed(value: object) -> Any:
        if not isinstance(value, str):
            raise ValueError("it must be a string: put it in quotes")
        return form.parse(value)

    more = {} if form.pattern is None else {"pattern": form.pattern, "examples": list(form.examples)}
    return BeforeValidator(parsed), WithJsonSchema({"type": "string", **more})
