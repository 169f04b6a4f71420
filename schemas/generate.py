"""Makes the JSON Schemas of what people write by hand, and of the tree that `launcherkit topology` prints, from the
models behind them: `python schemas/generate.py`."""

from __future__ import annotations

import json
import types
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from launcherkit.golden.case import CaseSchema
from launcherkit.model.address import PciAddress, PciSlot
from launcherkit.request.policy import policy_schema
from launcherkit.show.documents import TOPOLOGY_FORMAT, key_of
from launcherkit.show.topology import HostTopology
from launcherkit_lab.description import Description
from launcherkit_plugin.config.device_config import DEVICE_CONFIG
from launcherkit_plugin.config.schema import CONFIG, LAYOUT

MODELS: dict[str, tuple[type[Any], str]] = {
    "policy.schema.json": (policy_schema(), "launcherkit policy"),
    "golden-case.schema.json": (CaseSchema, "launcherkit golden case"),
    "plugin-config.schema.json": (CONFIG.model, "launcherkit device plugin"),
    "device-config.schema.json": (DEVICE_CONFIG.model, "launcherkit parameters of DRA devices"),
    "vgpu-layout.schema.json": (LAYOUT.model, "launcherkit vGPU layout"),
    "lab-machine.schema.json": (Description, "launcherkit-lab machine"),
    "topology.schema.json": (HostTopology, "launcherkit topology"),
}


def schema_text(name: str) -> str:
    """The schema of that file name."""
    model, title = MODELS[name]
    schema = model.model_json_schema(by_alias=True) if issubclass(model, BaseModel) else _of_values(model)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return json.dumps({**head, **{key: value for key, value in schema.items() if key != "title"}}, indent=2) + "\n"


def _of_values(value: type[Any]) -> dict[str, Any]:
    """The schema of a tree of frozen values as `launcherkit.show.documents` writes it."""
    shapes: dict[str, Any] = {}
    _shape(value, shapes)
    whole = shapes.pop(value.__name__)
    whole["properties"] = {"format": {"const": TOPOLOGY_FORMAT}, **whole["properties"]}
    whole["required"].insert(0, "format")
    return {**whole, "$defs": dict(sorted(shapes.items()))}


_PLAIN = {str: "string", int: "integer", bool: "boolean", types.NoneType: "null"}
_ADDRESS = "[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]"
_PATTERNS = {PciAddress: rf"^{_ADDRESS}\.[0-7]$", PciSlot: f"^{_ADDRESS}$"}


def _shape(annotation: Any, shapes: dict[str, Any]) -> dict[str, Any]:
    """The schema of one annotation; those of values go to ``shapes``, by name."""
    if annotation in _PLAIN:
        return {"type": _PLAIN[annotation]}
    if annotation in _PATTERNS:
        return {"type": "string", "pattern": _PATTERNS[annotation]}
    if get_origin(annotation) is Literal:
        return {"enum": list(get_args(annotation))}
    if get_origin(annotation) is tuple:
        return {"type": "array", "items": _shape(get_args(annotation)[0], shapes)}
    if isinstance(annotation, types.UnionType):
        return {"anyOf": [_shape(each, shapes) for each in get_args(annotation)]}
    assert is_dataclass(annotation) or issubclass(annotation, tuple), annotation
    if annotation.__name__ not in shapes:
        shape = shapes[annotation.__name__] = {"type": "object"}
        hints = {key_of(name): each for name, each in get_type_hints(annotation).items()}
        shape["properties"] = {name: _shape(each, shapes) for name, each in hints.items()}
        shape["required"] = list(hints)
        shape["additionalProperties"] = False
    return {"$ref": f"#/$defs/{annotation.__name__}"}


if __name__ == "__main__":
    for file in MODELS:
        Path(__file__).with_name(file).write_text(schema_text(file), encoding="utf-8")
