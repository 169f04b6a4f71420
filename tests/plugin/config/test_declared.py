"""A key of the configuration is declared once: the schema, the checks and the daemon's value are made of that."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcherkit_plugin.config import kubevirt
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
ADDED = '    added_last: Annotated[Natural, Key("A key that was added.")] = 0\n'
PARAMETER = '    added_last: Annotated[bool | None, Key("A key that was added.")] = None\n'
SELECTING = {"resources": [{"name": "a/X", "select": [{"revisions": [1]}]}]}
EVERYWHERE: dict[str, Any] = {
    "addedLast": 1,
    "resources": [
        {
            "addedLast": 2,
            "select": [{"classes": ["03"], "addedLast": 3}],
            "use": "any",
            "names": {"vm": "a/VM", "container": "a/C", "addedLast": 4},
            "environment": {"addedLast": 5},
            "container": {"addedLast": 6},
            "sharing": {"replicas": 2, "addedLast": 7},
        }
    ],
    "vgpu": {
        "addedLast": 8,
        "layout": [{"parent": "#0", "type": "nvidia-1", "addedLast": 9}],
        "mediatedDevices": [{"types": ["nvidia-2"], "addedLast": 10}],
        "virtualFunctions": [{"types": ["nvidia-3"], "addedLast": 11}],
    },
    "cdi": {"addedLast": 12},
    "dra": {"addedLast": 13},
}
"""An added key in everything that a configuration consists of."""
PROGRAM = """\
import asyncio, contextlib, json, sys, tempfile
from launcherkit.errors import LauncherkitError
from launcherkit.model.address import PciAddress
from launcherkit.model.host import PciFunction
from launcherkit.process.edge import guarded
from launcherkit_plugin.__main__ import run
from launcherkit_plugin.config import kubevirt
from launcherkit_plugin.config.child import read_config_in_child
from launcherkit_plugin.devices.selectors import compile_rules
from launcherkit_plugin.dra.parameters import OpaqueConfig, parameters_of
from schemas.generate import schema_text

def checked(config):
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = guarded(lambda: run(("check-config", config), {}), {})
        return code, *(file.seek(0) or file.read() for file in (out, err))

def parameter(value):
    content = {"apiVersion": "launcherkit.io/v1", "kind": "DeviceConfig", "addedLast": value}
    try:
        return parameters_of([OpaqueConfig(content, "p", by_claim=False)], "vms/gpu").added_last
    except LauncherkitError as error:
        return str(error)

selecting, everywhere = sys.argv[1:3]
rules = asyncio.run(read_config_in_child(selecting)).config.pci
find = compile_rules(rules)
nothing = (None, None, None, None)
functions = [PciFunction(PciAddress(0, 1, 0, number), 0x10DE, 0x2204, 0, 0, 0x030000, *nothing) for number in (0, 1)]
config = asyncio.run(read_config_in_child(everywhere)).config
rule, vgpu = config.pci[0], config.vgpu
values = config, rule, rule.select[0], rule.names, rule.environment, rule.container, rule.sharing
values += vgpu, vgpu.layout[0], vgpu.mdevs[0], vgpu.vfs[0], config.cdi, config.dra
print(json.dumps({
    "revisions": [sorted(rules[0].select[0].revisions), [find(each) is not None for each in functions]],
    "added": [value.added_last for value in values],
    "parameters": [parameter(True), parameter(1)],
    "schemas": [json.loads(schema_text(f"{name}-config.schema.json")) for name in ("plugin", "device")],
    "checked": [checked(path) for path in sys.argv[1:]],
}))
"""
"""Takes two configurations, and two wrong ones; the last line is what `check-config` makes of each: exit code, output
and errors."""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a copy of the plugin's package says in which keys were added.

    For all tests at once, because a Python that imports the copy takes long.
    """
    folder = tmp_path_factory.mktemp("changed")
    unfinished = shutil.ignore_patterns("*.pyc.*")
    copy = Path(shutil.copytree(ROOT / "plugin/launcherkit_plugin", folder / "launcherkit_plugin", ignore=unfinished))
    insert(copy / "model/config.py", before="    virtual: Annotated[", text=DECLARED)
    insert(copy / "devices/selectors.py", before="    if selector.classes:", text=USED)
    for name, field, without in (("config", ADDED, {"Layout", "Reading"}), ("parameters", PARAMETER, {"Noun"})):
        declarations = copy / f"model/{name}.py"
        declarations.write_text(with_last_field(declarations.read_text(), field, without))
    texts = [yaml.safe_dump(values) for values in (SELECTING, EVERYWHERE)]
    texts += [texts[0].replace("- 1", "- -1"), texts[1].replace("addedLast: ", "addedLast: -")]
    paths = [folder / f"{number}.yaml" for number in range(4)]
    for path, content in zip(paths, texts, strict=True):
        path.write_text(content)
    env = {"PYTHONPATH": f"{folder}:{ROOT}", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", PROGRAM, *map(str, paths)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def insert(path: Path, *, before: str, text: str) -> None:
    source = path.read_text()
    assert source.count(before) == 1
    path.write_text(source.replace(before, text + before))


def with_last_field(source: str, field: str, without: Collection[str]) -> str:
    """A module with a further field in each of its named tuples."""
    lines = source.splitlines(keepends=True)
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name not in without]
    for node in reversed(classes):
        last = max(part.end_lineno or 0 for part in node.body if isinstance(part, ast.AnnAssign))
        lines.insert(last, field)
    return "".join(lines)


def test_a_new_key_is_a_line_where_selectors_are_declared_and_its_use(changed: dict[str, Any]) -> None:
    code, out, err = changed["checked"][0]
    assert (code, err) == (0, "")
    assert "1 rule for PCI functions" in out
    assert changed["revisions"] == [[1], [False, True]]
    keys = changed["schemas"][0]["$defs"]["SelectorSchema"]["properties"]
    assert keys["revisions"]["description"] == "Revisions of the chip."
    code, _, err = changed["checked"][2]
    assert code == 78
    assert "resources.0.select.0.revisions.0" in err


def test_a_new_key_anywhere_in_a_configuration_is_a_line_where_its_value_is(changed: dict[str, Any]) -> None:
    code, _, err = changed["checked"][1]
    assert (code, err) == (0, "")
    assert changed["added"] == [*range(1, 14)]
    schema = changed["schemas"][0]
    with_key = {name for name, part in schema["$defs"].items() if "addedLast" in part["properties"]}
    of_kubevirt = {"KubevirtSchema", *(name for name in schema["$defs"] if hasattr(kubevirt, name))}
    assert with_key == schema["$defs"].keys() - of_kubevirt
    assert schema["properties"]["addedLast"]["description"] == "A key that was added."
    code, _, err = changed["checked"][3]
    assert (code, err.count("addedLast: Input should be greater than or equal to 0")) == (78, 13)


def test_so_is_a_new_parameter_of_a_claim(changed: dict[str, Any]) -> None:
    taken, refused = changed["parameters"]
    assert taken is True
    assert "p.addedLast: it must be true or false; found 1" in refused
    assert "addedLast" in json.dumps(changed["schemas"][1])
