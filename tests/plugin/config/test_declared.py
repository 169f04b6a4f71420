"""A key of a selector is declared once: the schema, the checks and the daemon's value are made of that."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcherkit_plugin.config.child import decode_answer, dump
from launcherkit_plugin.config.reading import read_config
from launcherkit_plugin.config.schema import SELECTOR
from launcherkit_plugin.model.config import Selector
from tests.support.pages import ROOT

KEYS = {name: field.alias or name for name, field in SELECTOR.model.model_fields.items()}
SCHEMA: dict[str, Any] = SELECTOR.model.model_json_schema(by_alias=True)["properties"]


def example(key: str) -> object:
    """A value of a key, by its schema."""
    shape = SCHEMA[key].get("items", SCHEMA[key])
    value = shape.get("examples", [{"integer": 1, "string": "a"}.get(shape.get("type"), True)])[0]
    return [value] if "items" in SCHEMA[key] else value


@pytest.mark.parametrize("field", Selector._fields)
def test_each_key_of_a_selector_arrives_in_the_daemon(field: str, tmp_path: Path) -> None:
    path = tmp_path / "plugin.yaml"
    path.write_text(yaml.safe_dump({"resources": [{"select": [{KEYS[field]: example(KEYS[field])}]}]}))
    arrived = decode_answer(dump(read_config(str(path))).encode()).config.pci[0].select[0]
    assert getattr(arrived, field) != Selector._field_defaults[field]
    assert arrived == Selector(**{field: getattr(arrived, field)})


DECLARED = '    revisions: Annotated[frozenset[Natural], Key("Revisions of the chip.")] = frozenset()\n'
USED = """\
    if selector.revisions:
        tests.append(lambda function: function.address.function in selector.revisions)
"""
PROGRAM = """\
import asyncio, json, sys
from launcherkit.model.address import PciAddress
from launcherkit.model.host import PciFunction
from launcherkit_plugin.config.child import read_config_in_child
from launcherkit_plugin.devices.selectors import compile_rules
rules = asyncio.run(read_config_in_child(sys.argv[1])).config.pci
find = compile_rules(rules)
nothing = (None, None, None, None)
functions = [PciFunction(PciAddress(0, 1, 0, number), 0x10DE, 0x2204, 0, 0, 0x030000, *nothing) for number in (0, 1)]
print(json.dumps([sorted(rules[0].select[0].revisions), [find(each) is not None for each in functions]]))
"""


def test_a_new_key_is_a_line_where_selectors_are_declared_and_its_use(tmp_path: Path) -> None:
    copy = tmp_path / "launcherkit_plugin"
    shutil.copytree(ROOT / "plugin/launcherkit_plugin", copy, ignore=shutil.ignore_patterns("__pycache__"))
    insert(copy / "model/config.py", before="    virtual: Annotated[", text=DECLARED)
    insert(copy / "devices/selectors.py", before="    if selector.classes:", text=USED)
    config = tmp_path / "plugin.yaml"
    config.write_text("resources: [{name: a/X, select: [{revisions: [1]}]}]")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin"}
        return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, cwd=tmp_path)

    checked = run("-m", "launcherkit_plugin", "check-config", str(config))
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "1 rule for PCI functions" in checked.stdout
    arrived = run("-c", PROGRAM, str(config))
    assert (json.loads(arrived.stdout or "null"), arrived.stderr) == ([[1], [False, True]], "")
    schema = "from schemas.generate import schema_text; print(schema_text('plugin-config.schema.json'))"
    keys = json.loads(run("-c", schema).stdout)["$defs"]["SelectorSchema"]["properties"]
    assert keys["revisions"]["description"] == "Revisions of the chip."
    config.write_text("resources: [{name: a/X, select: [{revisions: [-1]}]}]")
    refused = run("-m", "launcherkit_plugin", "check-config", str(config))
    assert refused.returncode == 78
    assert "resources.0.select.0.revisions.0" in refused.stderr


def insert(path: Path, *, before: str, text: str) -> None:
    source = path.read_text()
    assert source.count(before) == 1
    path.write_text(source.replace(before, text + before))
