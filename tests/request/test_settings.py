"""Where decisions come from, and which come first."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcherkit.errors import ANNOTATION_WIDENS, ANNOTATIONS_OFF, BAD_SETTING, UNREADABLE_FILE
from launcherkit.model.policy import POLICY_KEYS, AliasPrefixes, Policy
from launcherkit.model.policy_key import is_alias_prefix, is_variable_prefix
from launcherkit.request.policy import Layer, policy_of, resolve_policy
from launcherkit.request.vmi import Vmi
from tests.support.errors import raises_code

NOTHING = Vmi((), {})
VARIABLES = {key.variable for key in POLICY_KEYS} - {""}


def annotated(text: str) -> Vmi:
    return Vmi((), {"launcherkit.io/policy": text})


def test_with_nothing_said_the_defaults_hold() -> None:
    assert resolve_policy({}, {}, None, None) == resolve_policy({}, {}, NOTHING, None) == Policy()


def test_flags_come_before_variables_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("siblings: group\npairing: positional\nmanaged: true\nnodeCheck: never\n")
    env = {"LAUNCHERKIT_SIBLINGS": "listed", "LAUNCHERKIT_MANAGED": "no"}
    assert resolve_policy({}, {}, None, str(file)) == Policy("group", "positional", True, node_check="never")
    assert resolve_policy({}, env, None, str(file)) == Policy("listed", "positional", False, node_check="never")
    assert resolve_policy({"siblings": "none"}, env, None, str(file)) == Policy(
        "none", "positional", False, node_check="never"
    )


def test_the_annotation_narrows_what_flags_variables_and_file_say_together(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("siblings: group\nmanaged: true\n")
    assert resolve_policy({}, {}, annotated("siblings: none"), str(file)) == Policy("none", managed=True)
    for flags, env in ({"siblings": "listed"}, {}), ({}, {"LAUNCHERKIT_SIBLINGS": "listed"}):
        narrowed = resolve_policy(flags, env, annotated("siblings: none"), str(file))
        assert narrowed == Policy("none", managed=True)
        with raises_code(ANNOTATION_WIDENS, match=r"siblings: 'slot' is not within .*siblings: listed"):
            resolve_policy(flags, env, annotated("siblings: slot"), str(file))


@pytest.mark.parametrize("off", ["flag", "variable", "file"])
def test_the_operator_can_switch_annotations_off_and_then_they_are_not_even_parsed(tmp_path: Path, off: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("annotations: no" if off == "file" else "")
    flags: Layer = {"annotations": False} if off == "flag" else {}
    env = {"LAUNCHERKIT_ANNOTATIONS": "no"} if off == "variable" else {}
    assert resolve_policy(flags, env, NOTHING, str(file)).annotations is False
    for text in "siblings: none", "[" * 100_000:
        with raises_code(ANNOTATIONS_OFF):
            resolve_policy(flags, env, annotated(text), str(file))


def test_a_variable_names_the_file_where_no_flag_does(tmp_path: Path) -> None:
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    first.write_text(json.dumps({"siblings": "none"}))
    second.write_text(json.dumps({"siblings": "group"}))
    env = {"LAUNCHERKIT_POLICY": str(first)}
    assert resolve_policy({}, env, None, None).siblings == "none"
    assert resolve_policy({}, env, None, str(second)).siblings == "group"
    with raises_code(UNREADABLE_FILE, match="nowhere"):
        resolve_policy({}, {"LAUNCHERKIT_POLICY": "/nowhere.yaml"}, None, None)


def test_every_variable_without_choices_says_its_part() -> None:
    env = {
        "LAUNCHERKIT_EXTRA_PREFIXES": "PCIDEVICE_, VFIO ,,",
        "LAUNCHERKIT_SYSFS_ROOT": "/host",
        "LAUNCHERKIT_ALIAS_PREFIX_GPU": "ua-g-",
        "LAUNCHERKIT_ALIAS_PREFIX_HOSTDEVICE": "ua-h-",
        "LAUNCHERKIT_ALIAS_PREFIX_USB": "ua-u-",
    }
    assert set(env) == {key.variable for key in POLICY_KEYS if not key.kind.choices} - {""}
    assert resolve_policy({}, env, None, None) == Policy(
        alias_prefixes=AliasPrefixes("ua-g-", "ua-h-", "ua-u-"),
        extra_prefixes=("PCIDEVICE", "VFIO"),
        sysfs_root="/host",
    )


def test_an_empty_variable_says_nothing() -> None:
    assert resolve_policy({}, dict.fromkeys(VARIABLES, ""), None, None) == Policy()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LAUNCHERKIT_SIBLINGS", "Slot"),
        ("LAUNCHERKIT_PAIRING", "first"),
        ("LAUNCHERKIT_MANAGED", "true"),
        ("LAUNCHERKIT_NODE_CHECK", "yes"),
        ("LAUNCHERKIT_EXTRA_PREFIXES", "PCIDEVICE,pci"),
        ("LAUNCHERKIT_EXTRA_PREFIXES", "A=B"),
        ("LAUNCHERKIT_ALIAS_PREFIX_GPU", "gpu-"),
        ("LAUNCHERKIT_ALIAS_PREFIX_GPU", "ua-'/>"),
        ("LAUNCHERKIT_ALIAS_PREFIX_USB", "ua-\u00e9"),
    ],
)
def test_a_variable_that_holds_what_it_can_not_is_named_with_its_value(variable: str, value: str) -> None:
    with raises_code(BAD_SETTING, match=variable) as raised:
        resolve_policy({}, {variable: value}, None, None)
    assert raised.value.exit_code == 78


@pytest.mark.parametrize(
    ("variable", "value", "text", "remedy"),
    [
        (
            "LAUNCHERKIT_MANAGED",
            "true",
            "LAUNCHERKIT_MANAGED='true' is none of yes, no",
            "Set LAUNCHERKIT_MANAGED to one of them, or unset it.",
        ),
        (
            "LAUNCHERKIT_ALIAS_PREFIX_GPU",
            "gpu-",
            "LAUNCHERKIT_ALIAS_PREFIX_GPU='gpu-' is not a prefix of aliases",
            "libvirt keeps only aliases that begin with ua-, with letters, digits, - and _ after it.",
        ),
        (
            "LAUNCHERKIT_EXTRA_PREFIXES",
            "PCIDEVICE,pci",
            "LAUNCHERKIT_EXTRA_PREFIXES: 'pci' is not a prefix of variables",
            "Name prefixes such as PCIDEVICE, with commas between.",
        ),
    ],
)
def test_the_error_of_a_variable_says_which_part_is_wrong_and_what_to_do(
    variable: str, value: str, text: str, remedy: str
) -> None:
    with raises_code(BAD_SETTING) as raised:
        resolve_policy({}, {variable: value}, None, None)
    assert (raised.value.message, raised.value.remedy) == (text, remedy)


def test_the_variable_that_switches_node_checks_off_is_ignored_where_the_other_is_set() -> None:
    off = {"LAUNCHERKIT_NO_NODE_CHECK": "yes"}
    assert resolve_policy({}, off, None, None).node_check == "never"
    assert resolve_policy({}, {**off, "LAUNCHERKIT_NODE_CHECK": "always"}, None, None).node_check == "always"
    assert resolve_policy({}, {"LAUNCHERKIT_NO_NODE_CHECK": "no"}, None, None).node_check == "auto"
    with raises_code(BAD_SETTING, match="LAUNCHERKIT_NO_NODE_CHECK='never' is none of yes, no"):
        resolve_policy({}, {"LAUNCHERKIT_NO_NODE_CHECK": "never"}, None, None)


def test_one_alias_prefix_leaves_the_others_alone() -> None:
    assert policy_of({"usb": "ua-u-"}).alias_prefixes == AliasPrefixes(usb="ua-u-")


@pytest.mark.parametrize(
    ("text", "good"), [("ua-", True), ("ua-a_1-", True), ("ua", False), ("", False), ("ua-a b", False)]
)
def test_alias_prefixes_are_what_libvirt_keeps(text: str, good: bool) -> None:
    assert is_alias_prefix(text) == good


@pytest.mark.parametrize(
    ("text", "good"),
    [("A", True), ("A_1", True), ("1A", False), ("_A", False), ("", False), ("a", False), ("\u00c9", False)],
)
def test_variable_prefixes_are_names_in_upper_case(text: str, good: bool) -> None:
    assert is_variable_prefix(text) == good


def test_without_file_and_annotation_neither_pydantic_nor_yaml_is_imported() -> None:
    code = (
        "import sys; from launcherkit.request.policy import resolve_policy;"
        "resolve_policy({}, {'LAUNCHERKIT_SIBLINGS': 'none'}, None, None);"
        "sys.exit(bool({'pydantic', 'yaml', 'argparse', 'logging', 'pathlib', 'dataclasses'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[2]).returncode == 0
