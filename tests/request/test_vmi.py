"""The requests of a VirtualMachineInstance (Q1)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcherkit.errors import BAD_VMI, LauncherkitError, SeveralErrors
from launcherkit.model.request import DisplayOptions
from launcherkit.request.vmi import Vmi, read_vmi
from tests.support.errors import raises_code

VMI = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance"}
GPU = {"name": "g", "deviceName": "x.com/gpu"}


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
        {"spec": {"domain": {}}},
        {"spec": {"domain": {"devices": None}}},
        vmi(),
        vmi(gpus=None, hostDevices=[]),
        vmi() | {"metadata": {"annotations": None}},
        vmi() | {"kind": "", "apiVersion": ""},
        vmi() | VMI,
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
        (VMI | {"spec": 1}, "spec: expected an object, found 1"),
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
        (vmi() | {"metadata": []}, "metadata"),
    ],
)
def test_what_has_the_wrong_shape_is_named_by_its_path(document: object, path: str) -> None:
    with pytest.raises(LauncherkitError, match=path) as raised:
        read_vmi(json.dumps(document))
    assert all(leaf.code == BAD_VMI.code for leaf in raised.value.leaves())


def test_all_faults_are_reported_together() -> None:
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
        '{"spec": {}, "spec": {"domain": {}}}',
        '{"spec": {"domain": {"memory": NaN}}}',
    ],
    ids=["empty", "cut", "NUL", "bytes", "nested", "nested-objects", "giant", "trailing", "bom", "key-twice", "NaN"],
)
def test_what_is_not_json_is_an_error_that_says_so(text: str | bytes) -> None:
    with raises_code(BAD_VMI, match="is not JSON"):
        read_vmi(text, "vmi.json")


@pytest.mark.parametrize("value", [10**5000, "x" * 1_000_000, ["y"] * 100_000], ids=["int", "text", "list"])
def test_a_giant_value_is_shown_cut_short(value: object) -> None:
    with raises_code(BAD_VMI) as raised:
        read_vmi(VMI | {"spec": value})
    assert len(raised.value.message) < 200


def test_annotations_are_read_and_those_that_are_no_text_left_out() -> None:
    found = read_vmi(vmi() | {"metadata": {"annotations": {"launcherkit.io/policy": "siblings: none", "x": 1}}})
    assert found.annotations == {"launcherkit.io/policy": "siblings: none"}


# Q4: what is given as a VMI must be one


def vm(template: Any, **spec: Any) -> dict[str, Any]:
    """A VirtualMachine as ``kubectl get vm -o json`` prints it; its own annotations are not the VMI's."""
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "vm", "namespace": "default", "annotations": {"of": "the VM"}},
        "spec": {"runStrategy": "Always", "template": template, **spec},
    }


def list_of(*items: Any, kind: str = "List") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "items": list(items)}


TEMPLATE = {"metadata": {"annotations": {"launcherkit.io/policy": "siblings: none"}}, **vmi(gpus=[GPU])}


@pytest.mark.parametrize(
    "document",
    [
        vm(TEMPLATE),
        list_of(vm(TEMPLATE)),
        list_of(VMI | TEMPLATE),
        list_of({"spec": {"template": TEMPLATE}}, kind="VirtualMachineList"),
        list_of(TEMPLATE, kind="VirtualMachineInstanceList"),
    ],
    ids=["vm", "list-of-vm", "list-of-vmi", "vm-list", "vmi-list"],
)
def test_the_vmi_is_found_in_a_virtual_machine_and_in_a_list_of_one(document: dict[str, Any]) -> None:
    assert read_vmi(document) == read_vmi(VMI | TEMPLATE)
    assert read_vmi(document).annotations == {"launcherkit.io/policy": "siblings: none"}


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({}, "an empty object"),
        ([], "a list"),
        (None, "nothing"),
        (5, "5"),
        ({"spec": 1}, "an object without a kind and without spec.domain"),
        ({"a": {"spec": {"domain": {}}}}, "an object without a kind and without spec.domain"),
        ({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": []}}, r"a Pod \(v1\)"),
        (vm(TEMPLATE) | {"apiVersion": "vmoperator.vmware.com/v1alpha3"}, r"a VirtualMachine \(vmoperator.vmware"),
        (VMI | TEMPLATE | {"apiVersion": "v1"}, r"a VirtualMachineInstance \(v1\)"),
        (VMI | TEMPLATE | {"apiVersion": "kubevirt.io"}, r"a VirtualMachineInstance \(kubevirt.io\)"),
        (VMI | TEMPLATE | {"apiVersion": "kubevirt.io.example/v1"}, "a VirtualMachineInstance"),
        (VMI | TEMPLATE | {"apiVersion": "example.com/kubevirt.io/v1"}, "a VirtualMachineInstance"),
        (VMI | TEMPLATE | {"apiVersion": 1}, "a VirtualMachineInstance"),
        (list_of(vm(TEMPLATE) | {"apiVersion": "example.com/v1"}), r"a List of 1 item \(1 VirtualMachine\)"),
        (list_of(), "an empty List"),
        (list_of(kind="VirtualMachineInstanceList"), "an empty VirtualMachineInstanceList"),
        (list_of(VMI | vmi(), VMI | vmi()), r"a List of 2 items \(2 VirtualMachineInstance\)"),
        (list_of({"kind": "Pod"}), r"a List of 1 item \(1 Pod\)"),
        (list_of(list_of(vm(TEMPLATE))), r"a List of 1 item \(1 List\)"),
        (list_of(vmi()), r"a List of 1 item \(1 of no kind\)"),
        ({"kind": "List", "items": 7}, "a List"),
    ],
)
def test_what_is_no_vmi_is_an_error_that_says_what_it_is(document: object, found: str) -> None:
    with raises_code(BAD_VMI, match=f"vm.json: expected a VirtualMachineInstance, found {found}"):
        read_vmi(json.dumps(document), "vm.json")


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (VMI, "vm.json, spec: expected an object, found nothing"),
        (VMI | {"spec": {"domain": None}}, "vm.json, spec.domain: expected an object, found nothing"),
        (vm(None), "vm.json, spec.template: expected an object with the VMI's spec, found nothing"),
        (vm({"spec": {}}), "vm.json, spec.template.spec.domain: expected an object, found nothing"),
        (vm(vmi(gpus=7)), "vm.json, spec.template.spec.domain.devices.gpus: expected a list, found 7"),
        (list_of(vm(vmi(gpus=7))), r"vm.json, items\[0\].spec.template.spec.domain.devices.gpus: expected a list"),
    ],
)
def test_what_is_wrong_in_a_virtual_machine_is_named_by_its_own_path(document: object, path: str) -> None:
    with raises_code(BAD_VMI, match=path):
        read_vmi(json.dumps(document), "vm.json")


def test_the_devices_of_an_instance_type_are_not_in_a_virtual_machine_and_a_note_says_so() -> None:
    found = read_vmi(vm(TEMPLATE, instancetype={"name": "gpu-large"}), "vm.json")
    assert [note.topic for note in found.notes] == ["instancetype"]
    assert "instance type 'gpu-large'" in found.notes[0].text
    assert read_vmi(vm(TEMPLATE)).notes == ()
