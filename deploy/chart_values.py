"""The values of the Helm chart: ``values.yaml``, ``values.schema.json`` and its README's table, of one declaration.

That is ``templates/deploy/chart/values.yaml``, a JSON Schema with descriptions and defaults.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import yaml

Schema: TypeAlias = "dict[str, Any]"
Defaults: TypeAlias = Mapping[str, Any]
"""Defaults that the declaration leaves open, by path: ``image.repository``."""
_WIDTH = 110
_SHORT = 60
"""The longest default that the README's table shows."""


def schema_of(declaration: Schema, components: Mapping[str, str], defaults: Defaults) -> Schema:
    """The schema of all values, with every default, without references.

    Args:
        declaration: see above.
        components: the name in the values, and the description, of each component.
        defaults: of values that the declaration has no default for.
    """
    switches = {
        name: {"description": text, "type": "boolean", "default": defaults[f"components.{name}"]}
        for name, text in components.items()
    }
    declared = {**declaration["properties"]}
    declared["components"] = declared["components"] | {"properties": switches}
    whole = _resolved({"properties": declared}, declaration["definitions"])
    _set_defaults(whole, defaults)
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of launcherkit-plugin", **whole}


def _resolved(value: Any, definitions: Schema) -> Any:
    """A schema with what it refers to in its place; an object with properties has no others."""
    if isinstance(value, list):
        return [_resolved(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        rest = {key: item for key, item in value.items() if key != "$ref"}
        return _resolved({**definitions[value["$ref"].rpartition("/")[2]], **rest}, definitions)
    resolved = {
        key: item if key in ("default", "enum", "not") else _resolved(item, definitions) for key, item in value.items()
    }
    if isinstance(value.get("properties"), dict) and "$schema" not in value:
        resolved = {"type": "object", "additionalProperties": False} | resolved
    return resolved


def _set_defaults(schema: Schema, defaults: Defaults, path: str = "") -> None:
    for name, item in schema["properties"].items():
        at = f"{path}{name}"
        if at in defaults:
            item["default"] = defaults[at]
        elif "default" not in item and "properties" in item:
            _set_defaults(item, defaults, f"{at}.")


def values_of(schema: Schema, indent: int = 0) -> Iterator[str]:
    """The lines of ``values.yaml``: each value with its default, below its description."""
    blank = "  " * indent
    for name, item in schema["properties"].items():
        about = textwrap.wrap(item.get("description", ""), _WIDTH - len(blank), break_on_hyphens=False)
        if "default" in item:
            shown = yaml.dump({name: item["default"]}, Dumper=_Dumper, sort_keys=False, width=_WIDTH).splitlines()
        elif "properties" in item:
            shown = [f"{name}:", *values_of(item, 1)]
        else:
            continue  # Helm's own
        yield from (f"{blank}{line}" for line in [*(f"# {line}" for line in about), *shown])


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines as one, as people do."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def rows_of(schema: Schema, path: str = "") -> Iterator[str]:
    """The rows of the README's table."""
    for name, item in schema["properties"].items():
        about = item.get("description", "").replace("|", "\\|")
        if "default" in item:
            default = json.dumps(item["default"])
            yield f"| `{path}{name}` | {about} | {f'`{default}`' if len(default) <= _SHORT else 'see values.yaml'} |"
        elif "properties" in item:
            yield from [f"| `{path}{name}` | {about} | |"] if about else []
            yield from rows_of(item, f"{path}{name}.")
