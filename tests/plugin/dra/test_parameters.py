"""Opaque parameters of DeviceClasses and claims (D6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from launcherkit.model.policy import SIBLINGS
from launcherkit_plugin.config.device_config import DEVICE_CONFIG
from launcherkit_plugin.dra.parameters import OpaqueConfig, check_fits, parameters_of
from launcherkit_plugin.model.device import Device, Preferences
from launcherkit_plugin.model.errors import BAD_DEVICE_CONFIG, DEVICE_CONFIG_REFUSED
from launcherkit_plugin.model.parameters import Parameters
from tests.plugin.dra.desk import CARDS, DRIVER, REF, ClaimDesk
from tests.support.errors import raises_code
from tests.support.provoked import provoked

HEAD = {"apiVersion": "launcherkit.io/v1", "kind": "DeviceConfig"}
PATH = "status.allocation.devices.config[0].opaque.parameters"


def read(of_class: dict[str, Any] | None = None, of_claim: dict[str, Any] | None = None) -> Parameters:
    configs = [
        OpaqueConfig(HEAD | values, PATH, by_claim)
        for values, by_claim in ((of_class, False), (of_claim, True))
        if values is not None
    ]
    return parameters_of(configs, "vms/gpu")


def test_every_key_says_its_part() -> None:
    found = read({"siblings": "none", "nodes": "iommufd", "rom": False, "vgpuType": "GRID T4-1Q"})
    assert found == Parameters("none", "iommufd", rom=False, vgpu_type="GRID T4-1Q")
    assert found.wishes == Preferences("none", "cdev")
    assert read() == read({}) == read({"rom": None}) == Parameters()


def test_a_claim_narrows_what_its_class_says_and_keeps_the_rest() -> None:
    assert read({"siblings": "slot", "rom": True}, {"siblings": "none"}) == Parameters("none", rom=True)
    assert read({}, {"nodes": "group"}) == Parameters(nodes="group")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"apiVersion": "launcherkit.io/v2"}, "apiVersion: it must be 'launcherkit.io/v1'; found 'launcherkit.io/v2'"),
        ({"kind": "VfioDeviceConfig"}, "kind: it must be 'DeviceConfig'; found 'VfioDeviceConfig'"),
        ({"sibling": "slot"}, "sibling: unknown key; known are siblings, nodes, rom, vgpuType; found 'slot'"),
        ({"siblings": "all"}, "siblings: it must be one of slot, group, listed, reserve, none; found 'all'"),
        ({"nodes": "cdev"}, "nodes: it must be one of group, iommufd; found 'cdev'"),
        ({"rom": "off"}, "rom: it must be true or false; found 'off'"),
        ({"rom": 0}, "rom: it must be true or false; found"),
        ({"vgpuType": ""}, "vgpuType: it must be the name of a vGPU type, of at most 64 characters; found"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(values: dict[str, Any], message: str) -> None:
    with raises_code(BAD_DEVICE_CONFIG) as raised:
        read(values)
    assert raised.value.message.startswith(f"ResourceClaim vms/gpu, {PATH}.{message}")
    assert "launcherkit explain plugin-configuration" in raised.value.remedy


def test_the_page_of_bad_parameters_shows_what_is_reported() -> None:
    with raises_code(BAD_DEVICE_CONFIG) as raised:
        read({"siblings": "all"})
    assert [f"LK802: {raised.value.message}"] == provoked("dra", "LK802")


@pytest.mark.parametrize(
    ("of_class", "of_claim", "message"),
    [
        ({}, {"rom": True}, ".rom: only a DeviceClass can say this"),
        (
            {"siblings": "none"},
            {"siblings": "slot"},
            ".siblings: 'slot' is not within what the DeviceClass says, 'none'",
        ),
        ({"nodes": "group"}, {"nodes": "iommufd"}, ".nodes: 'iommufd' is not what the DeviceClass says, 'group'"),
        ({"vgpuType": "A"}, {"vgpuType": "B"}, ".vgpuType: 'B' is not what the DeviceClass says, 'A'"),
    ],
)
def test_a_claim_can_not_widen_its_class(of_class: dict[str, Any], of_claim: dict[str, Any], message: str) -> None:
    with raises_code(DEVICE_CONFIG_REFUSED) as raised:
        read(of_class, of_claim)
    assert raised.value.message == f"ResourceClaim vms/gpu, {PATH}{message}"


@pytest.mark.parametrize(
    ("values", "device", "why"),
    [
        ({"vgpuType": "A"}, Device("u", vgpu_types=("B",)), "it is a vGPU of type B"),
        ({"vgpuType": "A"}, Device("u", vgpu_types=("A", "B")), "it is a vGPU of type A or B"),
        ({"vgpuType": "A"}, Device("0000:e1:00.0"), "it is no vGPU"),
        ({"rom": False}, Device("u"), "a mediated device has no ROM"),
    ],
)
def test_a_device_that_does_not_fit_is_refused(values: dict[str, Any], device: Device, why: str) -> None:
    with raises_code(DEVICE_CONFIG_REFUSED, match=why):
        check_fits(read(values), device, "vms/gpu")


def test_a_type_is_compared_as_everywhere() -> None:
    check_fits(read({"vgpuType": "GRID_T4-1Q"}), Device("u", vgpu_types=("GRID T4-1Q",)), "vms/gpu")


words = st.sampled_from([*SIBLINGS, "group", "iommufd", "launcherkit.io/v1", "DeviceConfig", "", "x" * 65, "A"])
documents = st.fixed_dictionaries(
    {},
    optional={
        key: words | st.none() | st.booleans() | st.integers(0, 1)
        for key in ("siblings", "nodes", "rom", "vgpuType", "other")
    },
)


@given(documents)
def test_what_is_read_is_what_the_schema_takes(document: dict[str, Any]) -> None:
    refused = "other" in document  # whatever its value is: the model takes a key with null for none
    try:
        DEVICE_CONFIG.model.model_validate(HEAD | document, strict=True)
    except ValidationError:
        refused = True
    if refused:
        with raises_code(BAD_DEVICE_CONFIG):
            read(document)
    else:
        read(document)


# What a container gets


@pytest.fixture
def desk(tmp_path: Any) -> ClaimDesk:
    return ClaimDesk(tmp_path)


def prepared(desk: ClaimDesk, **values: Any) -> tuple[set[str], dict[str, Any]]:
    """The nodes, and the attributes in the metadata, of a card that is wanted so by its class."""
    entry = {"source": "FromClass", "requests": [], "opaque": {"driver": DRIVER, "parameters": HEAD | values}}
    desk.allocate(config=[entry])
    desk.prepare()
    (device,) = json.loads(Path(desk.places.of_claim(REF.uid)).read_text())["devices"]
    first = Path(desk.places.metadata_file(REF, "gpu")).read_text().splitlines()[0]
    attributes = json.loads(first)["requests"][0]["devices"][0]["attributes"]
    return {node["path"] for node in device["containerEdits"]["deviceNodes"]}, attributes


def test_without_parameters_a_card_comes_with_its_siblings(desk: ClaimDesk) -> None:
    assert prepared(desk)[1]["siblings"] == {"string": f"{CARDS[0]}.1"}


def test_siblings_stay_where_they_are_not_wanted(desk: ClaimDesk) -> None:
    assert "siblings" not in prepared(desk, siblings="none")[1]


def test_the_rom_is_reported_to_the_pod(desk: ClaimDesk) -> None:
    assert prepared(desk, rom=False)[1]["rom"] == {"bool": False}


def test_a_container_gets_the_nodes_that_are_wanted(desk: ClaimDesk) -> None:
    for number, function in enumerate((f"{CARDS[0]}.0", f"{CARDS[0]}.1")):
        (desk.tree.path(function) / "vfio-dev" / f"vfio{number}").mkdir(parents=True)
        desk.tree.node(f"vfio/devices/vfio{number}")
    desk.tree.node("iommu")
    desk.look()
    wanted = {"/dev/vfio/vfio", "/dev/iommu", "/dev/vfio/devices/vfio0", "/dev/vfio/devices/vfio1"}
    assert prepared(desk, nodes="iommufd")[0] == wanted
    desk.unprepare()
    assert prepared(desk, nodes="group")[0] == {"/dev/vfio/vfio", "/dev/vfio/7"}


def test_nodes_that_are_not_there_are_refused(desk: ClaimDesk) -> None:
    with raises_code(DEVICE_CONFIG_REFUSED, match="can't be given with nodes: iommufd"):
        prepared(desk, nodes="iommufd")


def test_more_than_the_rule_gives_is_refused(desk: ClaimDesk) -> None:
    with raises_code(DEVICE_CONFIG_REFUSED) as raised:
        prepared(desk, siblings="group")
    assert [f"LK803: {raised.value.message}"] == provoked("dra", "LK803")
