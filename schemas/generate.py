"""Makes the JSON Schemas of what people write by hand, from the models that read it: `python schemas/generate.py`."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from launcherkit.golden.case import WrittenCase
from launcherkit.sources.policy_file import WrittenPolicy
from launcherkit_plugin.config.device_config import WrittenDeviceConfig
from launcherkit_plugin.config.schema import WrittenConfig, WrittenLayout

MODELS: dict[str, tuple[type[BaseModel], str]] = {
    "policy.schema.json": (WrittenPolicy, "launcherkit policy"),
    "golden-case.schema.json": (WrittenCase, "launcherkit golden case"),
    "plugin-config.schema.json": (WrittenConfig, "launcherkit device plugin"),
    "device-config.schema.json": (WrittenDeviceConfig, "launcherkit parameters of DRA devices"),
    "vgpu-layout.schema.json": (WrittenLayout, "launcherkit vGPU layout"),
}


def schema_text(name: str) -> str:
    """The schema of that file name."""
    model, title = MODELS[name]
    schema = model.model_json_schema(by_alias=True)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return json.dumps({**head, **{key: value for key, value in schema.items() if key != "title"}}, indent=2) + "\n"


if __name__ == "__main__":
    for file in MODELS:
        Path(__file__).with_name(file).write_text(schema_text(file), encoding="utf-8")
