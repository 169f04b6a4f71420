"""Device metadata of DRA claims (E5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcherkit import Host, LauncherkitError, translate
from launcherkit.errors import BAD_CLAIM, BAD_VMI, TOO_FEW_DEVICES
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.request import DraClaim, Request
from launcherkit.request.dra import DraFiles
from launcherkit.request.vmi import read_vmi
from tests.support.errors import raises_code

PCI, MDEV = "resource.kubernetes.io/pciBusID", "mdevUUID"
ALPHA, BETA = "metadata.resource.k8s.io/v1alpha1", "metadata.resource.k8s.io/v1beta1"
UUID = "4b20d080-1b54-4048-85b3-a6a62d165c01"
CLAIM = DraClaim("claim", "gpu-claim", "gpu")
DOMAIN = b"<domain type='kvm'><os><type arch='x86_64' machine='q35'>hvm</type></os><devices/></domain>"


def metadata(attributes: Any, request: str = "gpu", version: str = ALPHA) -> dict[str, Any]:
    requests = [{"name": request, "devices": [{"attributes": attributes}]}]
    return {"kind": "DeviceMetadata", "apiVersion": version, "requests": requests}


def put(
    root: Path, document: Any, folder: str = "resourceclaims/gpu-claim/gpu", driver: str = "gpu.example.com"
) -> None:
    path = root / folder
    path.mkdir(parents=True, exist_ok=True)
    text = document if isinstance(document, str) else json.dumps(document)
    (path / f"{driver}-metadata.json").write_text(text)


def read(root: Path, claim: DraClaim = CLAIM) -> tuple[object, ...]:
    return DraFiles(str(root)).read(Request("gpus", 0, "gpu1", None, None, claim)).entries


@pytest.mark.parametrize("value", [{"string": "0000:e1:00.0"}, "0000:E1:00.0"])
def test_a_pci_address_is_read_from_the_attribute(tmp_path: Path, value: object) -> None:
    put(tmp_path, metadata({PCI: value}))
    assert read(tmp_path) == (PciAddress(0, 0xE1, 0, 0),)


@pytest.mark.parametrize("name", [MDEV, "mDevUUID", f"nvidia.com/{MDEV}", "nvidia.com/mDevUUID"])
def test_an_mdev_counts_before_the_address_of_its_parent(tmp_path: Path, name: str) -> None:
    """Else the guest would get the whole card, and with it every other guest's vGPU."""
    put(tmp_path, metadata({PCI: {"string": "0000:e1:00.0"}, name: {"string": UUID}}))
    assert read(tmp_path) == (MdevAddress(UUID),)


def test_of_both_spellings_kubevirts_counts(tmp_path: Path) -> None:
    put(tmp_path, metadata({"mDevUUID": {"string": UUID.replace("4b", "5c")}, MDEV: {"string": UUID}}))
    assert read(tmp_path) == (MdevAddress(UUID),)


def stream(*objects: object) -> str:
    return "\n".join(json.dumps(each) for each in objects) + "\n"


@pytest.mark.parametrize("version", [ALPHA, BETA])
def test_the_first_object_of_a_known_version_counts(tmp_path: Path, version: str) -> None:
    newer = {"kind": "DeviceMetadata", "apiVersion": "metadata.resource.k8s.io/v2", "requests": 7}
    known = metadata({PCI: {"string": "0000:e1:00.0"}}, version=version)
    put(tmp_path, stream(newer, {"apiVersion": 1}, known, metadata({PCI: {"string": "0000:e2:00.0"}})) + "what follows")
    assert read(tmp_path) == (PciAddress(0, 0xE1, 0, 0),)


@pytest.mark.parametrize("empty", [MDEV, "mDevUUID", "gpu.example.com/mdevUUID", "siblings"])
@pytest.mark.parametrize("value", [{"string": ""}, ""])
def test_an_empty_string_is_no_attribute(tmp_path: Path, empty: str, value: object) -> None:
    """KubeVirt's pkg/dra takes an attribute only if its string isn't empty."""
    put(tmp_path, metadata({empty: value, PCI: {"string": "0000:e1:00.0"}}))
    assert read(tmp_path) == (PciAddress(0, 0xE1, 0, 0),)


def test_an_empty_pci_address_beside_an_mdev_is_none(tmp_path: Path) -> None:
    put(tmp_path, metadata({PCI: {"string": ""}, MDEV: {"string": ""}, "mDevUUID": {"string": UUID}}))
    assert read(tmp_path) == (MdevAddress(UUID),)


def test_a_claim_from_a_template_lies_under_the_pods_name_of_it(tmp_path: Path) -> None:
    put(tmp_path, metadata({PCI: {"string": "0000:e1:00.0"}}, "gpu/large"), "resourceclaimtemplates/card/gpu")
    assert read(tmp_path, DraClaim("template", "card", "gpu")) == (PciAddress(0, 0xE1, 0, 0),)


@pytest.mark.parametrize(
    ("document", "reported"),
    [
        ("", "holds no object"),
        ("[]", "object 1 is not an object"),
        ('{"apiVersion": "v2"} 7', "object 2 is not an object"),
        ("[" * 100_000, "not JSON"),
        ({}, f"has the apiVersion nothing; known are {ALPHA} and {BETA}"),
        (stream(*({"apiVersion": f"v{number}"} for number in range(9))), "'v4', ...; known"),
        (stream({"apiVersion": "v2"}) + "}", "not JSON"),
        (
            {"apiVersion": BETA, "requests": {"gpu": 1}},
            "0 devices for the request 'gpu'; $.requests: an object is not a list",
        ),
        (
            {"apiVersion": ALPHA, "requests": [1, {"name": "gpu"}, {"name": 1, "devices": []}]},
            "0 devices for the request 'gpu'; $.requests[0]: 1 is not an object; $.requests[2].name: 1 is not the name",
        ),
        (metadata({PCI: {"string": "0000:e1:00.0"}}, "other"), "0 devices"),
        (metadata(None), "neither"),
        (metadata({"model": {"string": "x"}}), "'model'"),
        (metadata({PCI: {"int": 1}}), "attribute resource.kubernetes.io/pciBusID: nothing"),
        (metadata({MDEV: {"string": "x"}}), "attribute mdevUUID: 'x'"),
        (metadata({MDEV: {"int": 1}, PCI: {"string": "0000:e1:00.0"}}), "attribute mdevUUID: nothing"),
        (metadata({PCI: {"string": ""}, MDEV: {"string": ""}}), "'mdevUUID' (empty)"),
        ({"apiVersion": ALPHA, "requests": [{"name": "gpu", "devices": [1]}]}, "neither"),
        ({"apiVersion": ALPHA, "requests": [{"name": "gpu", "devices": [1]}]}, "$.requests[0].devices[0]: 1 is not an"),
        ('{"apiVersion": "v2", "apiVersion": "v3"}', "not JSON: the key 'apiVersion' appears twice in one object"),
    ],
)
def test_what_names_no_one_device_is_reported_with_what_was_found(tmp_path: Path, document: Any, reported: str) -> None:
    put(tmp_path, document)
    with raises_code(BAD_CLAIM) as raised:
        read(tmp_path)
    assert reported in raised.value.message
    assert str(tmp_path) in raised.value.message
    assert "gpus[0] 'gpu1'" in raised.value.message


@pytest.mark.parametrize(
    ("arch", "section", "model"),
    [
        ("s390x", "hostDevices", "vfio-ap"),
        ("s390x", "gpus", "vfio-pci"),
        ("x86_64", "hostDevices", "vfio-pci"),
    ],
)
def test_an_mdev_of_which_nothing_is_known_has_kubevirts_model(
    tmp_path: Path, arch: str, section: str, model: str
) -> None:
    """KubeVirt's generic_hostdev.go for claims looks at the architecture, its gpu_hostdev.go doesn't."""
    put(tmp_path, metadata({MDEV: {"string": UUID}}))
    entry = {"name": "a", "claimName": "card", "requestName": "gpu"}
    claims = [{"name": "card", "resourceClaimName": "gpu-claim"}]
    asked: Any = {"spec": {"resourceClaims": claims, "domain": {"devices": {section: [entry]}}}}
    document = DOMAIN.replace(b"x86_64", arch.encode()).replace(b" machine='q35'", b"")
    found = translate(document, env={}, host=Host.none(), vmi=asked, dra=DraFiles(str(tmp_path)))
    assert f"model='{model}'".encode() in found.domain_xml
    asked["spec"]["domain"]["devices"] = {section: [{"name": "a", "deviceName": "example.com/ap"}]}
    found = translate(document, env={"MDEV_PCI_RESOURCE_EXAMPLE_COM_AP": UUID}, host=Host.none(), vmi=asked)
    assert b"model='vfio-pci'" in found.domain_xml, "a device plugin's, whatever the architecture"


def vmi(claims: Any, **gpu: Any) -> dict[str, Any]:
    gpus = [{"name": "gpu1", **gpu}]
    return {"spec": {"resourceClaims": claims, "domain": {"devices": {"gpus": gpus}}}}


@pytest.mark.parametrize(
    "gpu",
    [
        {"claimName": "card"},
        {"requestName": "gpu"},
        {"claimName": "card", "requestName": "../gpu"},
        {"claimName": "card", "requestName": ".."},
        {"claimName": "card", "requestName": 7},
        {"claimName": ["card"], "requestName": "gpu"},
        {"claimName": "up", "requestName": "gpu"},
    ],
)
def test_a_claim_without_proper_names_is_refused_before_any_path_is_made(gpu: dict[str, Any]) -> None:
    claims = [{"name": "card", "resourceClaimName": "c"}, {"name": "up", "resourceClaimName": "../../etc"}, None]
    with pytest.raises(LauncherkitError) as raised:
        read_vmi(vmi(claims, **gpu))
    assert all(error.code == BAD_VMI.code for error in raised.value.leaves())


def test_resource_claims_that_are_no_list_are_a_fault_of_the_vmi() -> None:
    with raises_code(BAD_VMI, match=r"spec\.resourceClaims: expected a list"):
        read_vmi(vmi({"card": 1}, deviceName="nvidia.com/GPU"))


def test_one_claim_for_two_requests_is_one_device_too_few(tmp_path: Path) -> None:
    put(tmp_path, metadata({PCI: {"string": "0000:e1:00.0"}}))
    asked = vmi([{"name": "card", "resourceClaimName": "gpu-claim"}], claimName="card", requestName="gpu")
    asked["spec"]["domain"]["devices"]["gpus"] *= 2
    with raises_code(TOO_FEW_DEVICES):
        translate(DOMAIN, env={}, host=Host.none(), vmi=asked, dra=DraFiles(str(tmp_path)))


def test_a_sidecar_without_metadata_completes_the_hostdevs_that_are_there(tmp_path: Path) -> None:
    there = DOMAIN.replace(
        b"<devices/>",
        b"<devices><hostdev type='pci'><source><address bus='0xe1'/></source><alias name='ua-dra-gpu-gpu1'/></hostdev>"
        b"</devices>",
    )
    asked = vmi([{"name": "card", "resourceClaimName": "gpu-claim"}], claimName="card", requestName="gpu")
    result = translate(there, env={}, host=Host.none(), vmi=asked, dra=DraFiles(str(tmp_path / "absent")))
    assert b"mode='subsystem'" in result.domain_xml


def test_metadata_of_others_is_nothing_to_a_vm_without_claims(tmp_path: Path) -> None:
    put(tmp_path, metadata({PCI: {"string": "0000:e1:00.0"}}))
    there = DOMAIN.replace(
        b"<devices/>", b"<devices><hostdev type='pci'><source><address bus='0xe1'/></source></hostdev></devices>"
    )
    asked = vmi([], deviceName="nvidia.com/GPU")
    with_files = translate(there, env={}, host=Host.none(), vmi=asked, dra=DraFiles(str(tmp_path)))
    assert with_files == translate(there, env={}, host=Host.none(), vmi=asked)


# Several devices, and what comes along


def several(*devices: dict[str, str]) -> dict[str, Any]:
    listed = [{"attributes": {name: {"string": value} for name, value in device.items()}} for device in devices]
    return {**metadata({}), "requests": [{"name": "gpu", "devices": listed}]}


def test_siblings_come_after_their_device_and_are_none_themselves(tmp_path: Path) -> None:
    first = {PCI: "0000:e1:00.0", "siblings": "0000:e1:00.1,0000:e1:00.2", "siblings2": "0000:e1:00.3"}
    put(tmp_path, several(first, {PCI: "0000:01:00.0"}))
    allocation = DraFiles(str(tmp_path)).read(Request("gpus", 0, "gpu1", None, None, CLAIM))
    listed = ["0000:e1:00.0", "0000:e1:00.1", "0000:e1:00.2", "0000:e1:00.3", "0000:01:00.0"]
    assert list(map(str, allocation.entries)) == listed
    assert list(map(str, allocation.devices)) == ["0000:e1:00.0", "0000:01:00.0"]


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([{PCI: "0000:e1:00.0"}, {PCI: "0000:e1:00.0"}], "has 0000:e1:00.0 twice for the request 'gpu'"),
        ([{PCI: "0000:e1:00.0"}, {MDEV: UUID}], "has PCI functions and mediated devices for the request 'gpu'"),
        ([{PCI: "0000:e1:00.0", "siblings": "0000:e1:00.1,audio"}], "attribute siblings: 'audio': not of the form"),
    ],
)
def test_devices_that_make_no_sense_are_named(tmp_path: Path, devices: list[dict[str, str]], message: str) -> None:
    put(tmp_path, several(*devices))
    with raises_code(BAD_CLAIM) as raised:
        read(tmp_path)
    assert message in raised.value.message


def test_an_attribute_of_another_domain_says_nothing_of_siblings(tmp_path: Path) -> None:
    put(tmp_path, several({PCI: "0000:e1:00.0", "example.com/siblings": "audio"}))
    assert read(tmp_path) == (PciAddress(0, 0xE1, 0, 0),)


def test_all_vgpus_of_one_entry_are_shown_as_it_says(tmp_path: Path) -> None:
    other = UUID.replace("4b", "5c")
    put(tmp_path, several({MDEV: UUID}, {MDEV: other}))
    options = {"display": {"enabled": False}}
    gpus = [{"name": "g", "claimName": "c", "requestName": "gpu", "virtualGPUOptions": options}]
    claims = [{"name": "c", "resourceClaimName": "gpu-claim"}]
    vmi = {"spec": {"resourceClaims": claims, "domain": {"devices": {"gpus": gpus}}}}
    done = translate(DOMAIN, vmi=json.dumps(vmi), env={}, dra=DraFiles(str(tmp_path)), host=Host.none())
    assert b"display='on'" not in done.domain_xml
    assert [b"ua-dra-gpu-g'" in done.domain_xml, b"ua-dra-gpu-g-2'" in done.domain_xml] == [True, True]
