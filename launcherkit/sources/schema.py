"""Documents that people write by hand, in YAML or JSON, and what pydantic has to say of them."""

from __future__ import annotations

from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from launcherkit.errors import Collector, LauncherkitError, shown

MAX_BYTES = 64 * 1024
"""A policy is a few lines. PyYAML takes a second for 100 KB, and an annotation is written by who may write VMs."""
LARGE = 1024 * 1024
"""For what can be longer: a VMI, a golden case."""


class _Loader(yaml.SafeLoader):
    """Safe, and stricter: no key twice, no aliases, which can make a short text very large."""

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
                raise yaml.MarkedYAMLError(problem=f"the key {name!r} is there twice", problem_mark=key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


_NUMBERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"}


class _DigitsLoader(_Loader):
    """Leaves numbers as they are written: to YAML the PCI class 0300 is 192, and the vendor 1002 a thousand and two."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # as the base class has it
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NUMBERS]
        for first, resolvers in _Loader.yaml_implicit_resolvers.items()
    }


def parse_document(
    text: str | bytes,
    name: str,
    error: type[LauncherkitError],
    remedy: str,
    limit: int = MAX_BYTES,
    *,
    numbers: bool = True,
) -> Any:
    """The values in a YAML or JSON text; an empty one is an empty mapping.

    Args:
        text: the document.
        name: what messages call it.
        error: the kind of error to raise.
        remedy: what to do.
        limit: bytes.
        numbers: whether what looks like a number or a date is one; else it is a string of what is written.

    Raises:
        LauncherkitError: of the type ``error``, naming ``name`` and the place.
    """
    if len(text) > limit:
        raise error(f"{name}: more than {limit} bytes", remedy, file=name)
    try:
        loaded = yaml.load(text, _Loader if numbers else _DigitsLoader)  # noqa: S506  # SafeLoaders
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
        TypeError,
        AttributeError,
        LookupError,
        OverflowError,
    ) as problem:
        raise error(f"{name}: not YAML: {' '.join(str(problem).split())}", remedy, file=name) from problem
    return {} if loaded is None else loaded


_Model = TypeVar("_Model", bound=BaseModel)


def validate_document(
    model: type[_Model], values: object, name: str, error: type[LauncherkitError], remedy: str
) -> _Model:
    """Values as a model.

    Raises:
        LauncherkitError: of the type ``error``, one for each thing that is wrong, with its path and value; several
            come as `SeveralErrors`.
    """
    try:
        return model.model_validate(values)
    except ValidationError as problem:
        errors = Collector()
        for fault in problem.errors(include_url=False, include_context=False):
            path = ".".join(_step(step) for step in fault["loc"]) or "the document"
            text = f"{name}, {path}: {_in_words(fault['msg'])}; found {shown(fault['input'])}"
            if fault["type"] == "extra_forbidden":
                text += _nearest_key(model, fault["loc"][-1])
            errors.add(error(text, remedy, file=name, key=path))
        errors.raise_if_any()
        raise AssertionError from problem  # a ValidationError has at least one error


def _nearest_key(model: type[BaseModel], key: int | str) -> str:
    """The key that was meant, wherever in the document it belongs; nothing where none is near."""
    from launcherkit.diff import did_you_mean  # only where something is wrong already

    schema = model.model_json_schema()
    objects = (schema, *schema.get("$defs", {}).values())
    return did_you_mean(str(key), {known for each in objects for known in each.get("properties", {})})


def _step(step: int | str) -> str:
    """A step of the path to a fault; a key may be of any type and length."""
    return step if isinstance(step, str) and len(step) <= 60 else shown(step)


def _in_words(message: str) -> str:
    """pydantic's message, without its own terms."""
    if message == "Extra inputs are not permitted":
        return "unknown key"
    if message.startswith("Input should be a valid dictionary"):  # and then the name of a class
        return "Input should be an object"
    return message.removeprefix("Value error, ").rstrip(".")
