"""A key of a policy is declared once: a copy of the package with two more keys in the table has them everywhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.imports import ROOT

KEYS = """
    fan_speed: Annotated[
        Literal["slow", "fast"],
        PolicyKey("how fast the fans of the cards turn", more="slow is silent", rules="V2", off="slow"),
    ] = "fast"
    lamps: Annotated[
        bool,
        PolicyKey("whether the cards shine", within=lambda lamps: {False, lamps}, within_text="Within it: {} or less."),
    ] = True
"""
"""One for the operator, and one that a tenant may narrow."""

ASK = """
import argparse, contextlib, json, tempfile
import launcherkit
from launcherkit.cli.main import run
from launcherkit.errors import LauncherkitError
from launcherkit.hooks import exec_hook
from launcherkit.inputs import add_policy_arguments, policy_flags
from launcherkit.model.policy import Policy
from launcherkit.process.variables import warn_of_unknown
from launcherkit.request.policy import policy_schema, resolve_policy
from launcherkit.request.vmi import Vmi

BOTH = {"LAUNCHERKIT_FAN_SPEED": "slow", "LAUNCHERKIT_LAMPS": "no"}

def attempt(make):
    try:
        policy = make()
        return [policy.fan_speed, policy.lamps]
    except LauncherkitError as error:
        return [[leaf.code, str(leaf), leaf.remedy] for leaf in error.leaves()]

def annotated(text, flags):
    return attempt(lambda: resolve_policy(flags, {}, Vmi((), {"launcherkit.io/policy": text}), None))

def shown(run, *words):
    with tempfile.TemporaryFile("w+") as file:
        with contextlib.redirect_stdout(file), contextlib.suppress(SystemExit):
            run(words, {"COLUMNS": "120"})
        file.seek(0)
        return file.read()

def with_options(*words):
    parser = argparse.ArgumentParser()
    add_policy_arguments(parser)
    flags = policy_flags(parser.parse_args(words))
    return attempt(lambda: resolve_policy(flags, {"LAUNCHERKIT_FAN_SPEED": "fast"}, None, None))

print(json.dumps({
    "package": launcherkit.__file__,
    "fields": Policy._fields[-2:],
    "doc": Policy.fan_speed.__doc__,
    "default": attempt(Policy),
    "refused value": attempt(lambda: Policy(fan_speed="warp")),
    "variables": attempt(lambda: resolve_policy({}, BOTH, None, None)),
    "refused variable": attempt(lambda: resolve_policy({}, {"LAUNCHERKIT_LAMPS": "dim"}, None, None)),
    "off": attempt(lambda: resolve_policy({}, {"LAUNCHERKIT_NO_FAN_SPEED": "yes"}, None, None)),
    "unknown": list(warn_of_unknown(["LAUNCHERKIT_FAN_SPEED", "LAUNCHERKIT_NO_FAN_SPEED", "LAUNCHERKIT_LAMPS"])),
    "file": attempt(lambda: resolve_policy({}, {}, None, "policy.yaml")),
    "refused file": attempt(lambda: resolve_policy({}, {}, None, "wrong.yaml")),
    "schema": policy_schema().model_json_schema()["properties"]["fanSpeed"],
    "narrowed": annotated("lamps: no", {}),
    "widened": annotated("lamps: yes", {"lamps": False}),
    "the operator's": annotated("fanSpeed: slow", {}),
    "help of translate": shown(run, "translate", "--help"),
    "help of hook": shown(run, "hook", "serve", "--help"),
    "help of the exec hook": shown(exec_hook.run, "--help"),
    "options": [with_options("--fan-speed", "slow", "--lamps", "no"), with_options("--no-fan-speed")],
}))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and the reference, and two more keys in the table of the former."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "launcherkit", folder / "launcherkit", ignore=shutil.ignore_patterns("*.pyc.*"))
    shutil.copytree(ROOT / "docs" / "reference", folder / "docs" / "reference")
    shutil.copy(ROOT / "docs" / "generate.py", folder / "docs")
    table = folder / "launcherkit" / "model" / "policy.py"
    before, policy, after = table.read_text().partition("\n\n\nclass Policy(_Decisions):")
    table.write_text(before + KEYS.rstrip() + policy + after)
    (folder / "policy.yaml").write_text("fanSpeed: slow\nlamps: no\n")
    (folder / "wrong.yaml").write_text("fanSpeed: warp\n")
    return folder


def run(folder: Path, *arguments: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "120"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def answers(copy: Path) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads(run(copy, "-c", ASK))
    assert Path(answers["package"]).is_relative_to(copy)
    return answers


def test_the_policy_has_the_key_with_its_default_its_check_and_its_text(answers: dict[str, Any]) -> None:
    assert answers["fields"] == ["fan_speed", "lamps"]
    assert answers["default"] == ["fast", True]
    assert answers["doc"] == "How fast the fans of the cards turn (V2)."
    ((code, text, _),) = answers["refused value"]
    assert (code, text) == ("LK401", "policy, fan_speed: 'warp' is none of slow, fast")


def test_a_variable_sets_it_and_is_known(answers: dict[str, Any]) -> None:
    assert answers["variables"] == ["slow", False]
    assert answers["off"] == ["slow", True]
    assert answers["unknown"] == []
    ((code, text, _),) = answers["refused variable"]
    assert (code, text) == ("LK402", "LAUNCHERKIT_LAMPS='dim' is none of yes, no")


def test_a_policy_file_sets_it_and_the_schema_has_it(answers: dict[str, Any]) -> None:
    assert answers["file"] == ["slow", False]
    ((code, text, _),) = answers["refused file"]
    assert code == "LK401"
    assert text == "wrong.yaml, fanSpeed: Input should be 'slow' or 'fast'; found 'warp'"
    assert answers["schema"]["anyOf"] == [{"enum": ["slow", "fast"], "type": "string"}, {"type": "null"}]
    assert answers["schema"]["description"] == "How fast the fans of the cards turn: slow is silent. Default: fast"


def test_a_tenant_can_narrow_it_or_is_refused(answers: dict[str, Any]) -> None:
    assert answers["narrowed"] == ["fast", False]
    ((code, text, remedy),) = answers["widened"]
    assert (code, "lamps: 'yes' is not within the operator's policy, lamps: no" in text) == ("LK106", True)
    assert "Within it: no or less." in remedy
    ((code, text, remedy),) = answers["the operator's"]
    assert (code, text) == ("LK107", "annotation launcherkit.io/policy, fanSpeed: only the operator can set it")
    assert "siblings, pairing, replace and lamps" in remedy


@pytest.mark.parametrize("command", ["translate", "hook"])
def test_each_command_has_the_option_with_its_choices_and_its_help(answers: dict[str, Any], command: str) -> None:
    shown = re.sub(r"\s+", " ", answers[f"help of {command}"])
    assert "--fan-speed {slow,fast} how fast the fans of the cards turn (default: fast)" in shown
    assert "--no-fan-speed the same as --fan-speed slow" in shown
    assert "--lamps {yes,no} whether the cards shine (default: yes)" in shown


def test_the_exec_hooks_help_has_its_variable(answers: dict[str, Any]) -> None:
    shown = answers["help of the exec hook"]
    assert re.search(r"^  LAUNCHERKIT_FAN_SPEED +slow, fast$", shown, re.MULTILINE)
    assert re.search(r"^  LAUNCHERKIT_LAMPS +yes, no$", shown, re.MULTILINE)


def test_an_option_comes_before_the_variable(answers: dict[str, Any]) -> None:
    assert answers["options"] == [["slow", False], ["slow", True]]


def test_the_tables_of_the_documentation_have_its_row(copy: Path) -> None:
    run(copy, "docs/generate.py")
    policy, configuration, commands = (
        (copy / "docs" / "reference" / page).read_text() for page in ("policy.md", "configuration.md", "cli.md")
    )
    assert "\n| `fanSpeed` | `slow`, `fast` | `fast` | [V2](rules.md#v-viability) |\n" in policy
    row = "| how fast the fans of the cards turn | `--fan-speed` | `LAUNCHERKIT_FAN_SPEED` | `fanSpeed` | `fast` |"
    assert f"\n{row}\n" in configuration
    assert "\n| `--lamps` | `yes`, `no` | Whether the cards shine ([policy](policy.md#lamps)). |\n" in commands
