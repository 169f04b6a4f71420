"""Which devices the DeviceClasses of the component `dra` select: the server evaluates their CEL, in a policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from launcherkit_plugin.dra.claim_manifest import KINDS, manifests
from tests.api.applying import applied
from tests.api.dra import DRIVER
from tests.support.cluster import Cluster, Refused
from tests.support.waiting import until
from tests.test_deploy_plugin import COMPONENTS

pytestmark = pytest.mark.api


ASKED = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "selections.test.launcherkit.io"},
    "spec": {
        "group": "test.launcherkit.io",
        "scope": "Cluster",
        "names": {"kind": "Selection", "listKind": "SelectionList", "plural": "selections", "singular": "selection"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    }
                },
            }
        ],
    },
}
"""A device, and the class that is to select it: the server evaluates the class's CEL in a policy."""


OF_CLAIM = manifests("any", dict.fromkeys(KINDS, 1), DRIVER, near="pcieSwitch", together="numaNode")
"""What ``launcherkit-plugin claim`` prints."""


def classes() -> dict[str, str]:
    """The CEL of each class; ``claim-`` begins the names of those that the command prints."""
    documents = [*yaml.safe_load_all((COMPONENTS["dra"] / "deviceclasses.yaml").read_text())]
    printed = [{**one, "metadata": {"name": f"claim-{one['metadata']['name']}"}} for one in OF_CLAIM[:-1]]
    return {
        document["metadata"]["name"]: selector["cel"]["expression"]
        for document in [*documents, *printed]
        for selector in document["spec"]["selectors"]
    }


def policy() -> list[dict[str, Any]]:
    name = {"name": "selections.test.launcherkit.io"}
    rule = {"apiGroups": ["test.launcherkit.io"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["*"]}
    validations = [
        {
            "expression": f'object.spec.asked != "{each}" || ({cel.replace("device.", "object.spec.device.")})',
            "message": "not selected",
        }
        for each, cel in classes().items()
    ]
    validations.append({"expression": 'object.spec.asked != "none"', "message": "not selected"})
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": name}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": validations, "failurePolicy": "Fail"}
    return [
        {**head, "kind": "ValidatingAdmissionPolicy", "spec": spec},
        {
            **head,
            "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {"policyName": name["name"], "validationActions": ["Deny"]},
        },
    ]


@pytest.fixture(scope="module")
def selecting(api: Cluster) -> Iterator[Cluster]:
    with applied(api, json.dumps(ASKED)):
        api.kubectl("wait", "--for=condition=established", "--timeout=60s", "-f", "-", given=json.dumps(ASKED))
        with applied(api, *map(json.dumps, policy())):
            until(lambda: not selects(api, "none", DRIVER, {}), "the policy act")
            yield api


def selects(server: Cluster, asked: str, driver: str, attributes: dict[str, Any]) -> bool:
    device = {"driver": driver, "attributes": {driver: attributes} if attributes else {}}
    head = {"apiVersion": "test.launcherkit.io/v1", "kind": "Selection", "metadata": {"name": "a"}}
    what = json.dumps({**head, "spec": {"asked": asked, "device": device}})
    try:
        server.kubectl("create", "--dry-run=server", "-f", "-", given=what)
    except Refused as problem:
        if "not selected" not in str(problem):
            raise  # a selector that fails keeps every pod waiting
        return False
    return True


GPU = {"type": "card", "class": "030000", "vendorID": "10de"}
DEVICES = {
    "an NVIDIA GPU": (DRIVER, GPU, {"card", "gpu", "nvidia-gpu"}),
    "a compute card of another vendor": (DRIVER, {**GPU, "class": "120000", "vendorID": "1002"}, {"card", "gpu"}),
    "NVIDIA's network card": (DRIVER, {**GPU, "class": "020000"}, {"card", "network-function"}),
    "a virtual function": (DRIVER, {"type": "vf", "class": "020000", "vendorID": "8086"}, {"network-function"}),
    "an NVMe drive": (DRIVER, {"type": "card", "class": "010802", "vendorID": "144d"}, {"card", "nvme"}),
    "a SATA controller": (DRIVER, {"type": "card", "class": "010601", "vendorID": "8086"}, {"card"}),
    "a virtual function of a GPU": (DRIVER, {"type": "vf", "class": "030000", "vendorID": "10de"}, set[str]()),
    "a USB device": (DRIVER, {"type": "usb", "vendorID": "0529"}, {"usb"}),
    "an mdev": (DRIVER, {"type": "vgpu", "mdevUUID": "1f"}, {"vgpu"}),
    "another driver's GPU": ("gpu.nvidia.com", {"type": "gpu"}, set[str]()),
    "another driver's device that says nothing": ("dra.example.com", {}, set[str]()),
}


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_class_selects_what_its_name_says_and_fails_on_nothing(selecting: Cluster, device: str) -> None:
    driver, attributes, selected = DEVICES[device]
    found = {name for name in classes() if selects(selecting, name, driver, attributes)}
    both = selected | {f"claim-{kind}" for kind in selected & {"gpu", "network-function", "nvme"}}
    assert found == {f"{name}.launcherkit.io" for name in both}


def test_the_api_takes_a_claim_of_the_command(api: Cluster) -> None:
    with applied(api, *map(json.dumps, OF_CLAIM)):
        claim = api.get("resourceclaim", "any")
    assert [one["matchAttribute"] for one in claim["spec"]["devices"]["constraints"]] == [
        "launcherkit.io/pcieSwitch",
        "resource.kubernetes.io/numaNode",
    ]
