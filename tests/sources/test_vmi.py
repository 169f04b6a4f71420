"""The requests of a VirtualMachineInstance (Q1)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcherkit.errors import BadVmi, LauncherkitError, SeveralErrors
from launcherkit.model.request import DisplayOptions
from launcherkit.sources.vmi import Vmi, read_vmi


def vmi(**devices: Any) -> dict[str, Any]:
    return {"spec": {"domain": {"devices": devices}}}


def display_of(options: object) -> DisplayOptions | None:
    return read_vmi(vmi(gpus=[{"name": "g", "deviceName": "x", "virtualGPUOptions": options}])).requests[0].display


def test_gpus_come_before_host_devices_each_in_order() -> None:
    found = read_vmi(
        vmi(
            hostDevices=[{"name": "nic", "deviceName": "x.com/nic"}],
            gpus=[{"name": "b", "deviceName": "x.com/gpu"}, {"name": "a", "deviceName": "x.com/gpu"}],
        )
    ).requests
    assert [(each.section, each.position, each.name, each.resource) for each in found] == [
        ("gpus", 0, "b", "x.com/gpu"),
        ("gpus", 1, "a", "x.com/gpu"),
        ("hostDevices", 0, "nic", "x.com/nic"),
    ]
    assert found[2].path == "spec.domain.devices.hostDevices[0]"


def test_text_bytes_and_mappings_are_alike() -> None:
    document = vmi(gpus=[{"name": "g", "deviceName": "x"}])
    text = json.dumps(document)
    assert read_vmi(document) == read_vmi(text) == read_vmi(text.encode()) == read_vmi(text.encode("utf-16"))


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"spec": None},
        {"spec": {"domain": None}},
        vmi(),
        vmi(gpus=None, hostDevices=[]),
        {"metadata": {"annotations": None}},
    ],
)
def test_a_vmi_that_asks_for_nothing_is_well(document: dict[str, Any]) -> None:
    assert read_vmi(document) == Vmi((), {})


def test_a_request_by_claim_has_no_resource() -> None:
    (request,) = read_vmi(vmi(gpus=[{"name": "g", "claimName": "c", "requestName": "r"}])).requests
    assert request.resource is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, None),
        ({}, None),
        ({"display": None}, None),
        ({"display": {}}, DisplayOptions(None, None)),
        ({"display": {"enabled": False}}, DisplayOptions(False, None)),
        ({"display": {"enabled": True, "ramFB": {}}}, DisplayOptions(True, None)),
        ({"display": {"ramFB": {"enabled": False}}}, DisplayOptions(None, False)),
    ],
)
def test_a_display_block_tells_silence_from_no(options: object, expected: DisplayOptions | None) -> None:
    assert display_of(options) == expected


def test_host_devices_have_no_display_options() -> None:
    document = vmi(hostDevices=[{"name": "h", "deviceName": "x", "virtualGPUOptions": {"display": {}}}])
    assert read_vmi(document).requests[0].display is None


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ([], r"\$"),
        (5, r"\$"),
        ({"spec": 1}, "spec: expected an object, found 1"),
        ({"spec": {"domain": []}}, "spec.domain: expected an object"),
        (vmi(gpus={}), "spec.domain.devices.gpus: expected a list"),
        (vmi(gpus=["a"]), r"gpus\[0\]: expected an object"),
        (vmi(gpus=[{"deviceName": "x"}]), r"gpus\[0\].name"),
        (vmi(gpus=[{"name": "", "deviceName": "x"}]), r"gpus\[0\].name"),
        (vmi(hostDevices=[{"name": "g"}]), r"hostDevices\[0\].deviceName"),
        (vmi(hostDevices=[{"name": "g", "claimName": "c"}]), r"hostDevices\[0\].requestName"),
        (vmi(gpus=[{"name": "g", "deviceName": 5}]), r"gpus\[0\].deviceName"),
        (
            vmi(gpus=[{"name": "g", "deviceName": "x", "virtualGPUOptions": {"display": {"enabled": "yes"}}}]),
            r"display.enabled",
        ),
        ({"metadata": []}, "metadata"),
    ],
)
def test_what_has_the_wrong_shape_is_named_by_its_path(document: object, path: str) -> None:
    with pytest.raises(LauncherkitError, match=path) as raised:
        read_vmi(json.dumps(document))
    assert all(isinstance(leaf, BadVmi) for leaf in raised.value.leaves())


def test_all_faults_are_told_together() -> None:
    with pytest.raises(SeveralErrors) as raised:
        read_vmi(vmi(gpus=[{"name": 1, "deviceName": 2}], hostDevices=7))
    assert len(raised.value.errors) == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "\0",
        b"\xff\xfe\xfd",
        "[" * 100_000,
        "{" * 100_000,
        '{"spec":' + "9" * 5000 + "}",
        '{"a":1}x',
        "\ufeff{}",
    ],
    ids=["empty", "cut", "NUL", "bytes", "nested", "nested-objects", "giant-number", "trailing", "bom"],
)
def test_what_is_not_json_is_an_error_that_says_so(text: str | bytes) -> None:
    with pytest.raises(BadVmi, match="is not JSON"):
        read_vmi(text, "vmi.json")


@pytest.mark.parametrize("value", [10**5000, "x" * 1_000_000, ["y"] * 100_000], ids=["int", "text", "list"])
def test_a_giant_value_is_shown_cut_short(value: object) -> None:
    with pytest.raises(BadVmi) as raised:
        read_vmi({"spec": value})
    assert len(raised.value.message) < 200


def test_annotations_are_read_and_those_that_are_no_text_left_out() -> None:
    found = read_vmi({"metadata": {"annotations": {"launcherkit.io/policy": "siblings: none", "x": 1}}})
    assert found.annotations == {"launcherkit.io/policy": "siblings: none"}
