"""Reads documents that people write by hand, in YAML or JSON, and checks them with pydantic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from launcherkit.errors import Code, Collector, LauncherkitError, shown

MAX_BYTES = 64 * 1024
"""The limit, in bytes. A policy is a few lines; PyYAML takes a second for 100 KB, and tenants write annotations."""
LARGE = 1024 * 1024
"""The limit for longer documents: a VMI, a golden case."""


class _Loader(yaml.SafeLoader):
    """A stricter safe loader: no duplicate keys, and no aliases, which can make a short text very large."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {name!r} appears twice", problem_mark=key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


_ONE_DOCUMENT = "expected a single document in the stream"
"""What PyYAML says of a second document."""

_NUMBERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"}


class _DigitsLoader(_Loader):
    """Reads numbers as text: YAML would read the PCI class 0300 as 192, and the vendor 1002 as a decimal number."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # as in the base class
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NUMBERS]
        for first, resolvers in _Loader.yaml_implicit_resolvers.items()
    }


def parse_document(
    text: str | bytes,
    name: str,
    error: Code[LauncherkitError],
    remedy: str,
    limit: int = MAX_BYTES,
    *,
    numbers: bool = True,
) -> Any:
    """The values of a YAML or JSON text; an empty text is an empty mapping.

    Args:
        text: the document.
        name: what messages call it.
        error: the type of error to raise.
        remedy: what to do.
        limit: in bytes.
        numbers: whether to read numbers and dates as such; otherwise they stay strings, as written.

    Raises:
        LauncherkitError: of the type ``error``, naming ``name`` and the place.
    """
    loader = _Loader if numbers else _DigitsLoader
    loaded = _parsed(lambda: yaml.load(text, loader), text, name, error, remedy, limit)  # noqa: S506  # SafeLoaders
    return {} if loaded is None else loaded


def parse_documents(
    text: str | bytes, name: str, error: Code[LauncherkitError], remedy: str, limit: int = MAX_BYTES
) -> list[Any]:
    """The values of each document of a YAML text; see `parse_document`."""
    loaded: list[Any] = _parsed(lambda: [*yaml.load_all(text, _Loader)], text, name, error, remedy, limit)
    return loaded


def _parsed(
    load: Callable[[], Any], text: str | bytes, name: str, error: Code[LauncherkitError], remedy: str, limit: int
) -> Any:
    if len(text) > limit:
        raise error(f"{name}: more than {limit} bytes", remedy, file=name)
    try:
        return load()
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
        TypeError,
        AttributeError,
        LookupError,
        OverflowError,
    ) as problem:
        reason = f"not YAML: {' '.join(str(problem).split())}"
        if isinstance(problem, yaml.MarkedYAMLError) and problem.context == _ONE_DOCUMENT:
            reason = "more than one YAML document: give one of them"
        raise error(f"{name}: {reason}", remedy, file=name) from problem


_Model = TypeVar("_Model", bound=BaseModel)


def validate_document(
    model: type[_Model], values: object, name: str, error: Code[LauncherkitError], remedy: str
) -> _Model:
    """Validate values as a model.

    Raises:
        LauncherkitError: of the type ``error``, with path and value; several together as `SeveralErrors`.
    """
    try:
        return model.model_validate(values)
    except ValidationError as problem:
        errors = Collector()
        for fault in problem.errors(include_url=False, include_context=False):
            path = ".".join(_step(step) for step in fault["loc"]) or "the document"
            text = f"{name}, {path}: {_plain(fault['msg'])}; found {shown(fault['input'])}"
            if fault["type"] == "extra_forbidden":
                text += _nearest_key(model, fault["loc"][-1])
            errors.add(error(text, remedy, file=name, key=path))
        errors.raise_if_any()
        raise AssertionError from problem  # a ValidationError has at least one error


def _nearest_key(model: type[BaseModel], key: int | str) -> str:
    """A hint at the nearest known key, wherever it belongs in the document; empty if none is near."""
    from launcherkit.diff import did_you_mean  # only for an error

    schema = model.model_json_schema()
    objects = (schema, *schema.get("$defs", {}).values())
    # An object elsewhere may have the very key.
    return did_you_mean(str(key), {known for each in objects for known in each.get("properties", {})} - {str(key)})


def _step(step: int | str) -> str:
    """A step of the path to an error; a key may be of any type and length."""
    return step if isinstance(step, str) and len(step) <= 60 else shown(step)


def _plain(message: str) -> str:
    """pydantic's message without pydantic's terms."""
    if message == "Extra inputs are not permitted":
        return "unknown key"
    if message.startswith("Input should be a valid dictionary"):  # and then the name of a class
        return "Input should be an object"
    return message.removeprefix("Value error, ").rstrip(".")
