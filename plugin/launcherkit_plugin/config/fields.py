"""What the schemas of a configuration are made of: the models of declared values, and texts that are names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic.alias_generators import to_camel

from launcherkit.model.policy_key import is_variable_prefix
from launcherkit_plugin.devices.names import check_domain, check_resource_name, check_short_name, type_key
from launcherkit_plugin.model.keys import Key, Limits, TextForm, parse_id, parse_pair


class Schema(BaseModel):
    """A mapping in a configuration: no keys but its own; a key without a value counts as missing."""

    # Validators are built on first use: most models are used only as parts of others.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _without_empty_keys(cls, values: Any) -> Any:
        if isinstance(values, dict):
            return {key: value for key, value in values.items() if value is not None}
        return values


_LONGEST_DRIVER = 63


def parse_alias_key(text: str) -> str:
    """The key of an alias: a model, ``10de:2204``, or a vGPU type, whose spaces become ``_``.

    Raises:
        ValueError: it has a colon and isn't a model.
    """
    if ":" in text:
        vendor, device = parse_pair(text)
        return f"{vendor:04x}:{device:04x}"
    return type_key(text)


def parse_prefix(text: str) -> str:
    """The prefix of a variable's name; an underscore at its end is removed.

    Raises:
        ValueError: a name can't begin with it.
    """
    prefix = text.rstrip("_")
    if not is_variable_prefix(prefix):
        raise ValueError("a prefix has upper case letters, digits and underscores, such as PCI_RESOURCE")
    return prefix


def parse_driver(text: str) -> str:
    """The name of a DRA driver.

    Raises:
        ValueError: Kubernetes wouldn't accept it.
    """
    if len(text) > _LONGEST_DRIVER:
        raise ValueError(f"the name of a DRA driver has at most {_LONGEST_DRIVER} characters")
    return check_domain(text)


def _text(parse: Callable[[str], Any], pattern: str | None = None, *examples: str) -> tuple[object, object]:
    """A validator that parses a string and refuses any other value, and its JSON Schema."""

    def parsed(value: object) -> Any:
        if not isinstance(value, str):
            raise ValueError("it must be a string: put it in quotes")
        return parse(value)

    more = {} if pattern is None else {"pattern": pattern, "examples": list(examples)}
    return BeforeValidator(parsed), WithJsonSchema({"type": "string", **more})


EnvironmentPrefix = Annotated[str, *_text(parse_prefix, "^[A-Z][A-Z0-9_]*$", "PCI_RESOURCE")]
ResourceName = Annotated[
    str,
    *_text(check_resource_name, "^[a-z0-9.-]+/[A-Za-z0-9._-]+$", "nvidia.com/GA102_GEFORCE_RTX_3090"),
]
AliasKey = Annotated[str, *_text(parse_alias_key)]
ShortName = Annotated[str, *_text(check_short_name, "^[A-Za-z0-9._-]+$", "RTX_3090")]
DriverName = Annotated[str, *_text(parse_driver, "^[a-z0-9.-]{1,63}$", "pci.launcherkit.io")]
Domain = Annotated[str, *_text(check_domain, "^[a-z0-9.-]+$", "example.com")]
Glob = Annotated[str, Field(min_length=1)]
VendorId = Annotated[int, *_text(parse_id, "^(0[xX])?[0-9a-fA-F]{4}$", "10de")]


class Declared:
    """What reads a named tuple from a configuration: a pydantic model, made of the fields' types, defaults and `Key`.

    In a type it stands beside the named tuple, ``Annotated[Selector, Declared(Selector)]``: the model checks what is
    written and is its JSON Schema, and the value is the named tuple.

    Args:
        kind: the named tuple. Its tuples and sets are lists in the configuration.
        check: raises ValueError if the keys contradict each other; it also gets the fields that are given.
        title: of the JSON Schema; None: the name of the named tuple, with ``Schema``.
    """

    def __init__(
        self, kind: type[Any], check: Callable[[Any, Set[str]], None] | None = None, title: str | None = None
    ) -> None:
        self._kind = kind
        self._check = check
        hints = get_type_hints(kind, include_extras=True)
        fields = {name: _field(name, hint, kind._field_defaults) for name, hint in hints.items()}
        self.model: type[Schema] = create_model(  # type: ignore[call-overload]  # the names are known only here
            title or f"{kind.__name__}Schema", __base__=Schema, __doc__=kind.__doc__, **fields
        )

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> Any:  # pydantic calls it so
        return AfterValidator(self._value).__get_pydantic_core_schema__(self.model, handler)

    def _value(self, keys: Schema) -> Any:
        values = {name: getattr(keys, name) for name in type(keys).model_fields}
        hints = get_type_hints(self._kind)
        value = self._kind(
            **{name: get_origin(hints[name])(each) if isinstance(each, list) else each for name, each in values.items()}
        )
        if self._check is not None:
            self._check(value, keys.model_fields_set)
        return value


def _field(name: str, hint: Any, defaults: Mapping[str, Any]) -> tuple[Any, Any]:
    """The type and the `Field` of a key."""
    inner, *rest = get_args(hint)
    (key,) = (part for part in rest if isinstance(part, Key))
    default = defaults.get(name, ...)
    return _key_type(inner), Field(
        [] if default in ((), frozenset()) else default,
        alias=key.name or to_camel(name),
        description=key.help,
        **_limits(rest),
    )


def _limits(annotations: Iterable[object]) -> dict[str, Any]:
    """The limits among the annotations of a type, as arguments of `Field`."""
    limits = (part._asdict() for part in annotations if isinstance(part, Limits))
    return {name: value for limit in limits for name, value in limit.items() if value is not None}


def _key_type(hint: Any) -> Any:
    """The type of what is written, by that of the value."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        inner, *rest = parts
        for part in rest:
            if isinstance(part, TextForm):
                return Annotated[inner, *_text(part.parse, part.pattern, *part.examples)]
        return Annotated[inner, Field(**_limits(rest))]
    if origin is frozenset or (origin is tuple and parts[-1] is Ellipsis):
        return list[_key_type(parts[0])]  # type: ignore[misc]  # made of values
    if origin in (Union, UnionType):
        return Union[*map(_key_type, parts)]
    return hint
