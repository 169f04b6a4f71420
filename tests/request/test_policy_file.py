"""The policy as people write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit.errors import (
    BAD_ANNOTATION,
    BAD_POLICY,
    OPERATORS_KEY,
    UNREADABLE_FILE,
    LauncherkitError,
    SeveralErrors,
)
from launcherkit.model.policy import POLICY_KEYS
from launcherkit.request.policy import Layer, policy_of, read_policy_annotation, read_policy_file
from tests.support.errors import raises_code

FULL = """\
siblings: group
pairing: positional
managed: true
aliasPrefixes:
  gpu: ua-g-
extraPrefixes: [PCIDEVICE_]
sysfsRoot: /host
nodeCheck: always
annotations: no
rom: {"10DE:2204": off, "65:00.0": /roms/a.rom, "0000:66:00.0": on}
driver: {"10de:2342": nvgrace_gpu_vfio_pci}
genericInitiators: yes
p2p: auto
"""


def read(tmp_path: Path, text: str) -> Layer:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return read_policy_file(str(path))


def test_every_key_says_its_part(tmp_path: Path) -> None:
    assert read(tmp_path, FULL) == {
        "siblings": "group",
        "pairing": "positional",
        "managed": True,
        "gpu": "ua-g-",
        "extra_prefixes": ("PCIDEVICE",),
        "sysfs_root": "/host",
        "node_check": "always",
        "annotations": False,
        "rom": {"10de:2204": "off", "0000:65:00.0": "/roms/a.rom", "0000:66:00.0": "on"},
        "driver": {"10de:2342": "nvgrace_gpu_vfio_pci"},
        "generic_initiators": True,
        "p2p": "auto",
    }


@pytest.mark.parametrize(
    "text", ["", "{}", "null", "# nothing\n", "siblings:\naliasPrefixes:\n", "aliasPrefixes: {gpu: null}"]
)
def test_what_is_not_said_is_left_to_the_defaults(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == {}
    assert policy_of(read(tmp_path, text)).siblings == "slot"


@pytest.mark.parametrize(("text", "value"), [("yes", "yes"), ("no", "no"), ("'yes'", "yes"), ("auto", "auto")])
def test_iommufd_can_be_yes_or_no_which_yaml_reads_as_booleans(tmp_path: Path, text: str, value: str) -> None:
    assert read(tmp_path, f"iommufd: {text}") == {"iommufd": value}


@pytest.mark.parametrize("text", ["off", "'off'", "no", "false"])
def test_p2p_is_off_which_yaml_reads_as_a_boolean(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, f"p2p: {text}") == {"p2p": "off"}


def test_json_is_yaml(tmp_path: Path) -> None:
    assert read(tmp_path, '{"siblings": "none", "aliasPrefixes": {"usb": "ua-u-"}}') == {
        "siblings": "none",
        "usb": "ua-u-",
    }


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("sibling: slot", "sibling: unknown key"),
        ("siblings: Slot", "siblings: .*'slot', 'group', 'listed', 'reserve' or 'none'; found 'Slot'"),
        ("managed: maybe", "managed: .*found 'maybe'"),
        ("aliasPrefixes: {gpu: gpu-}", "aliasPrefixes.gpu: .*ua-"),
        ("aliasPrefixes: {gpus: ua-}", "aliasPrefixes.gpus: unknown key"),
        ("extraPrefixes: PCIDEVICE", "extraPrefixes: "),
        ("extraPrefixes: [pcidevice]", "extraPrefixes.0: "),
        ("sysfsRoot: ''", "sysfsRoot: "),
        ("rom: {'10de:22044': off}", "rom.10de:22044.* named by its address"),
        ("rom: {'10de:2204': roms/a.rom}", "rom.10de:2204: A ROM is on, off"),
        ("rom: {'10de:2204': 5}", "rom.10de:2204: A ROM is on, off"),
        ("driver: {'10de:2204': nvidia}", "driver.10de:2204: A VFIO driver's name"),
        ("- siblings", "the document: "),
        ("siblings", "the document: "),
    ],
)
def test_what_is_wrong_is_named_by_file_path_and_value(tmp_path: Path, text: str, part: str) -> None:
    with raises_code(BAD_POLICY, match=f"policy.yaml, {part}") as raised:
        read(tmp_path, text)
    assert raised.value.exit_code == 78


def test_all_that_is_wrong_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(SeveralErrors) as raised:
        read(tmp_path, "siblings: x\npairing: y\nbogus: z")
    assert len(raised.value.errors) == 3


HOSTILE = [
    "a: &x [1]\nb: *x",
    "&x a: *x",
    "siblings: slot\nsiblings: none",
    "[" * 1_000,  # deeper than the stack goes; more takes PyYAML only longer
    "{" * 1_000,
    "managed: 0x" + "f" * 5_000,
    "? 0x" + "f" * 5_000 + "\n: 1",
    "managed: " + "9" * 5_000,
    "managed: !!bool foo",
    "managed: !!int ''",
    "managed: !!float x",
    "managed: !!timestamp x",
    "managed: 2001-99-99",
    "managed: !!binary x",
    "managed: !!python/object/apply:os.system ['true']",
    "? [1]\n: 2",
    "? {a: b}\n: 2",
    "1: 2",
    "? !!binary aGVsbG8=\n: 1",
    '"\\ud800": 1',
    'siblings: "\\ud800"',
    "<<: 5",
    "\tsiblings: slot",
    "%YAML 9.9\n---\nsiblings: slot\n---\n",
    "a: b: c",
    "'",
    "siblings: " + "x" * 2_000_000,
    "\0",
    "\x85: \u2028",
    "!!set {siblings}",
    "!!omap [siblings: slot]",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_an_annotation_by_an_enemy_is_an_error_of_one_short_line_and_never_worse(text: str) -> None:
    with pytest.raises(LauncherkitError) as raised:
        read_policy_annotation(text)
    for leaf in raised.value.leaves():
        assert leaf.code in (BAD_ANNOTATION.code, OPERATORS_KEY.code)
        assert "\n" not in leaf.message
        assert len(leaf.message) < 400


KEYS = {key.name.partition(".")[0] for key in POLICY_KEYS}


@pytest.mark.parametrize("key", sorted(KEYS - {"siblings", "pairing", "replace"}))
@pytest.mark.parametrize("value", ["", "null", "yes", "/evil", "[AWS_SECRET]", "{gpu: ua-sriov-}"])
def test_every_other_key_is_the_operators_alone_whatever_its_value(key: str, value: str) -> None:
    with raises_code(OPERATORS_KEY, match=f"launcherkit.io/policy, {key}: only the operator") as raised:
        read_policy_annotation(f"siblings: none\n{key}: {value}")
    assert "evil" not in str(raised.value)


def test_all_keys_that_are_the_operators_are_named_at_once() -> None:
    with pytest.raises(SeveralErrors) as raised:
        read_policy_annotation("{managed: yes, nodeCheck: never, siblings: all}")
    assert [leaf.code for leaf in raised.value.leaves()] == ["LK107", "LK107"]


def test_a_policy_file_that_is_not_there_is_named() -> None:
    with raises_code(UNREADABLE_FILE, match="/no/such/policy"):
        read_policy_file("/no/such/policy.yaml")
