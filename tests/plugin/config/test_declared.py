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


def copied(folder: Path) -> Path:
    """A copy of the plugin's package that `run` prefers to the package itself, with what is compiled of it."""
    unfinished = shutil.ignore_patterns("*.pyc.*")
    return Path(shutil.copytree(ROOT / "plugin/launcherkit_plugin", folder / "launcherkit_plugin", ignore=unfinished))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the copy in a folder."""
    env = {"PYTHONPATH": f"{folder}:{ROOT}", "PATH": "/usr/bin:/bin"}
    return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, cwd=folder)


DECLARED = '    revisions: Annotated[frozenset[Natural], Key("Revisions of the chip.")] = frozenset()\n'
USED = """\
    if selector.revisions:
        tests.append(lambda function: function.address.function in selector.revisions)
"""
COMMON = """\
import asyncio, contextlib, json, sys, tempfile
from launcherkit.process.edge import guarded
from launcherkit_plugin.__main__ import run
from launcherkit_plugin.config import kubevirt
from launcherkit_plugin.config.child import read_config_in_child
from schemas.generate import schema_text

def checked(config):
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = guarded(lambda: run(("check-config", config), {}), {})
        return code, *(file.seek(0) or file.read() for file in (out, err))

good, wrong = sys.argv[1:]
"""
"""Two configurations, and what `check-config` makes of one: exit code, output and errors."""
SELECTED = """\
from launcherkit.model.address import PciAddress
from launcherkit.model.host import PciFunction
from launcherkit_plugin.devices.selectors import compile_rules

rules = asyncio.run(read_config_in_child(good)).config.pci
find = compile_rules(rules)
nothing = (None, None, None, None)
functions = [PciFunction(PciAddress(0, 1, 0, number), 0x10DE, 0x2204, 0, 0, 0x030000, *nothing) for number in (0, 1)]
print(json.dumps({
    "arrived": [sorted(rules[0].select[0].revisions), [find(each) is not None for each in functions]],
    "schema": json.loads(schema_text("plugin-config.schema.json")),
    "checked": checked(good),
    "refused": checked(wrong),
}))
"""


def test_a_new_key_is_a_line_where_selectors_are_declared_and_its_use(tmp_path: Path) -> None:
    copy = copied(tmp_path)
    insert(copy / "model/config.py", before="    virtual: Annotated[", text=DECLARED)
    insert(copy / "devices/selectors.py", before="    if selector.classes:", text=USED)
    good, wrong = tmp_path / "plugin.yaml", tmp_path / "wrong.yaml"
    good.write_text("resources: [{name: a/X, select: [{revisions: [1]}]}]")
    wrong.write_text("resources: [{name: a/X, select: [{revisions: [-1]}]}]")
    done = run(tmp_path, "-c", COMMON + SELECTED, str(good), str(wrong))
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    code, out, err = said["checked"]
    assert (code, err) == (0, "")
    assert "1 rule for PCI functions" in out
    assert said["arrived"] == [[1], [False, True]]
    keys = said["schema"]["$defs"]["SelectorSchema"]["properties"]
    assert keys["revisions"]["description"] == "Revisions of the chip."
    code, _, err = said["refused"]
    assert code == 78
    assert "resources.0.select.0.revisions.0" in err


def insert(path: Path, *, before: str, text: str) -> None:
    source = path.read_text()
    assert source.count(before) == 1
    path.write_text(source.replace(before, text + before))


ADDED = '    added_last: Annotated[Natural, Key("A key that was added.")] = 0\n'
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
ARRIVED = """\
config = asyncio.run(read_config_in_child(good)).config
rule, vgpu = config.pci[0], config.vgpu
values = config, rule, rule.select[0], rule.names, rule.environment, rule.container, rule.sharing
values += vgpu, vgpu.layout[0], vgpu.mdevs[0], vgpu.vfs[0], config.cdi, config.dra
print(json.dumps({
    "arrived": [value.added_last for value in values],
    "schema": json.loads(schema_text("plugin-config.schema.json")),
    "checked": checked(good),
    "refused": checked(wrong),
}))
"""


def test_a_new_key_anywhere_in_a_configuration_is_a_line_where_its_value_is(tmp_path: Path) -> None:
    declarations = copied(tmp_path) / "model/config.py"
    declarations.write_text(with_last_field(declarations.read_text(), ADDED, {"Layout", "Reading"}))
    good, wrong = tmp_path / "plugin.yaml", tmp_path / "wrong.yaml"
    good.write_text(yaml.safe_dump(EVERYWHERE))
    wrong.write_text(yaml.safe_dump(EVERYWHERE).replace("addedLast: ", "addedLast: -"))
    done = run(tmp_path, "-c", COMMON + ARRIVED, str(good), str(wrong))
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    code, _, err = said["checked"]
    assert (code, err) == (0, "")
    assert said["arrived"] == [*range(1, 14)]
    schema = said["schema"]
    with_key = {name for name, part in schema["$defs"].items() if "addedLast" in part["properties"]}
    of_kubevirt = {"KubevirtSchema", *(name for name in schema["$defs"] if hasattr(kubevirt, name))}
    assert with_key == schema["$defs"].keys() - of_kubevirt
    assert schema["properties"]["addedLast"]["description"] == "A key that was added."
    code, _, err = said["refused"]
    assert (code, err.count("addedLast: Input should be greater than or equal to 0")) == (78, 13)


PARAMETERS = """\
from launcherkit_plugin.dra.parameters import OpaqueConfig, parameters_of
from schemas.generate import schema_text
head = {"apiVersion": "launcherkit.io/v1", "kind": "DeviceConfig"}
print(parameters_of([OpaqueConfig(head | {"addedLast": True}, "p", by_claim=False)], "vms/gpu").added_last)
print('"addedLast"' in schema_text("device-config.schema.json"))
parameters_of([OpaqueConfig(head | {"addedLast": 1}, "p", by_claim=False)], "vms/gpu")
"""


def test_so_is_a_new_parameter_of_a_claim(tmp_path: Path) -> None:
    declarations = copied(tmp_path) / "model/parameters.py"
    added = '    added_last: Annotated[bool | None, Key("A key that was added.")] = None\n'
    declarations.write_text(with_last_field(declarations.read_text(), added, {"Noun"}))
    printed = run(tmp_path, "-c", PARAMETERS)
    assert printed.stdout == "True\nTrue\n"
    assert "p.addedLast: it must be true or false; found 1" in printed.stderr


def with_last_field(source: str, field: str, without: Collection[str]) -> str:
    """A module with a further field in each of its named tuples."""
    lines = source.splitlines(keepends=True)
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name not in without]
    for node in reversed(classes):
        last = max(part.end_lineno or 0 for part in node.body if isinstance(part, ast.AnnAssign))
        lines.insert(last, field)
    return "".join(lines)
