"""The tree of a host, drawn: on five machines, on terminals of any width, in colour and plain."""

from __future__ import annotations

import json
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launcherkit.cli import main
from launcherkit.colour import PLAIN, Colours
from launcherkit.host.source import open_host
from launcherkit.show.documents import topology_json
from launcherkit.show.host import topology_of
from launcherkit.show.layout import width
from launcherkit.show.outline import outline
from launcherkit.show.text import draw
from tests.show.machines import COLUMNS, DATA, HOSTS, PICTURES, pictures, topology
from tests.support import forked
from tests.support.called import call_text
from tests.support.hosttree import HostTree
from tests.support.imports import ROOT
from tests.support.terminal import run_on_terminal

RED = "\x1b[31m"
every_machine = pytest.mark.parametrize("name", HOSTS)
WORKSTATION = str(DATA / HOSTS["workstation"])


def command(*arguments: str) -> list[str]:
    return [forked.LAUNCHERKIT, "topology", *arguments]


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return call_text(main.run, ["topology", *arguments], env)


def test_every_machine_looks_as_its_picture() -> None:
    drawn = {path.name: path.read_text(encoding="utf-8") for path in PICTURES.glob("*.*")}
    assert drawn == pictures(), "review the difference, then: python -m tests.show.machines"


@every_machine
@pytest.mark.parametrize("across", [40, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal_unless_one_name_is(name: str, across: int) -> None:
    endless = draw(outline(topology(name)), PLAIN, 100_000).splitlines()
    parts = {part.strip(" │├└┌─") for line in endless for part in line.split("  ")}
    for line in draw(outline(topology(name)), PLAIN, across).splitlines():
        assert len(line) <= across or line.strip(" │├└┌─").split("  ")[-1] in parts


@every_machine
def test_nothing_is_lost_on_a_narrow_terminal(name: str) -> None:
    rails = str.maketrans("│├└┌─", "     ")
    wide, narrow = (draw(outline(topology(name)), PLAIN, across).translate(rails).split() for across in (100_000, 40))
    assert wide == narrow


@every_machine
def test_colours_change_nothing_but_colours(name: str) -> None:
    coloured = draw(outline(topology(name)), Colours(True), COLUMNS)
    assert [width(line) for line in coloured.splitlines()] == list(map(len, pictures()[f"{name}.txt"].splitlines()))


def test_what_is_in_the_way_is_red_on_a_terminal_and_plain_in_a_pipe() -> None:
    env = {"TERM": "xterm", "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    shown = run_on_terminal(command("--host", WORKSTATION), env).decode()
    assert f"{RED}LK204 0000:61:00.1 is bound to snd_hda_intel" in shown
    assert "\x1b" not in run_on_terminal(command("--host", WORKSTATION), {**env, "NO_COLOR": "1"}).decode()
    assert "\x1b" not in run("--host", WORKSTATION, TERM="xterm").stdout


def test_the_terminals_width_is_that_of_the_variable() -> None:
    assert max(map(len, run("--host", WORKSTATION, COLUMNS="80").stdout.splitlines())) <= 80
    assert max(map(len, run("--host", WORKSTATION, COLUMNS="0").stdout.splitlines())) > 80


def test_only_what_is_for_guests_is_shown_and_with_all_everything() -> None:
    assert "nvme" not in run("--host", WORKSTATION).stdout
    everything = run("--host", WORKSTATION, "--all").stdout
    assert "nvme" in everything
    assert "not shown" not in everything


def test_a_host_without_a_card_says_so(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.function("0000:02:00.0", class_code=0x010802, driver="nvme", group=1)
    assert run("--host", str(tmp_path)).stdout.splitlines() == [
        "no GPUs, no accelerators, and no functions bound to a VFIO driver",
        "1 other function not shown; --all shows it",
    ]


def test_a_driver_of_an_odd_name_steers_no_terminal(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.function("0000:02:00.0", driver="nv\x1b[2J", group=1)
    assert "\x1b" not in run("--host", str(tmp_path)).stdout


def test_a_snapshot_made_by_hand_that_lists_no_groups_is_drawn_too(tmp_path: Path) -> None:
    card = {"address": "0000:01:00.0", "vendor": "10de", "device": "2204", "class": "030000", "iommu_group": 7}
    path = tmp_path / "host.json"
    path.write_text(json.dumps({"format": "launcherkit.io/host/v1", "functions": [card], "groups": {}}))
    done = run("--host", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "IOMMU group 7" in done.stdout


def test_a_host_that_is_not_there_is_reported() -> None:
    done = run("--host", "/nowhere")
    assert (done.returncode, done.stdout) == (65, "")
    assert "error[" in done.stderr


@every_machine
def test_the_json_is_as_its_schema_says(name: str) -> None:
    generator = runpy.run_path(str(ROOT / "schemas" / "generate.py"))
    schema = json.loads(generator["schema_text"]("topology.schema.json"))
    printed = json.loads(topology_json(topology(name, every=True)))
    assert printed["nodes"]
    assert list(broken(printed, schema, schema["$defs"], "$")) == []


@every_machine
def test_the_json_has_a_function_a_line(name: str) -> None:
    whole = topology(name, every=True)
    functions = [each for place in whole.places() for each in place.slot.functions]
    lines = [line.strip().removesuffix(",") for line in topology_json(whole).splitlines()]
    assert sorted(json.loads(line)["address"] for line in lines if line.startswith('{"')) == sorted(
        str(each.address) for each in functions
    )


def test_the_json_of_a_host_has_all_that_is_known_of_it(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.function("0000:02:00.0", driver="vfio-pci", group=1, vendor=0x10DE, device=0x2204, class_code=0x030000)
    one_card = """\
{
  "format": "launcherkit.io/topology/v1",
  "nodes": [
    {
      "number": null,
      "cpus": "",
      "complexes": [
        {
          "name": "pci0000:00",
          "bridges": [
            {
              "address": "0000:00:02.0",
              "kind": "root port",
              "link": null,
              "bridges": [],
              "slots": [
                {
                  "slot": "0000:02:00",
                  "functions": [
                    {"address": "0000:02:00.0", "ids": "10de:2204", "kind": "display controller", "name": null, \
"driver": "vfio-pci", "group": 1, "state": "ready", "blockers": [], "link": null, "wider": null, "bars": [16777216], \
"vfs": [], "possibleVfs": null, "mdevs": []}
                  ]
                }
              ]
            }
          ],
          "slots": []
        }
      ]
    }
  ],
  "groups": [
    {
      "number": 1,
      "members": [
        "0000:02:00.0"
      ],
      "blockers": []
    }
  ],
  "leftOut": 0,
  "guest": null,
  "held": null,
  "withheld": []
}
"""
    assert topology_json(topology_of(open_host(str(tmp_path)).scan(), (), every=True)) == one_card


def broken(value: Any, schema: dict[str, Any], shapes: dict[str, Any], path: str) -> list[str]:
    """Where a value is not as a schema says; of the keywords that the schema uses, no others."""
    assert set(schema) <= {
        *["$schema", "title", "$defs", "$ref", "anyOf", "const", "enum", "type", "pattern", "items"],
        *OF_OBJECTS,
    }
    if "$ref" in schema:
        schema = shapes[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        found = [broken(value, each, shapes, path) for each in schema["anyOf"]]
        return [] if [] in found else found[0]
    if "const" in schema or "enum" in schema:
        return [] if value in schema.get("enum", [schema.get("const")]) else [path]
    types = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
    if type(value) is not types[schema["type"]]:
        return [path]
    if isinstance(value, dict):
        keys = schema["properties"]
        wrong = [path] if set(value) != set(keys) or sorted(schema["required"]) != sorted(keys) else []
        return wrong + [bad for key in keys if key in value for bad in broken(value[key], keys[key], shapes, key)]
    if isinstance(value, list):
        return [
            bad
            for number, each in enumerate(value)
            for bad in broken(each, schema["items"], shapes, f"{path}[{number}]")
        ]
    return []


OF_OBJECTS = ("properties", "required", "additionalProperties")


@every_machine
def test_what_is_in_the_way_is_reported_once_more_at_the_end(name: str) -> None:
    tree = topology(name)
    reported = [(str(blocker.device), blocker.code) for blocker, _ in tree.blockers()]
    last = [line.split()[3:] for line in draw(outline(tree), PLAIN, 300).splitlines() if line.startswith("in the way:")]
    assert [
        (words[0], " ".join(words[1:])[: len(code)]) for words, (_, code) in zip(last, reported, strict=True)
    ] == reported


@every_machine
def test_the_svg_of_every_machine_has_all_of_its_functions(name: str) -> None:
    svg = pictures()[f"{name}.svg"]
    functions = [each for place in topology(name).places() for each in place.slot.functions]
    assert [str(each.address) for each in functions if str(each.address) not in svg] == []
