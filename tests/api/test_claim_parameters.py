"""The policy of the component `claim-parameters` refuses at admission what the driver would refuse in a claim."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from launcherkit.errors import LauncherkitError
from launcherkit_plugin.dra.parameters import OpaqueConfig, parameters_of
from tests.api.applying import applied
from tests.api.dra import DRIVER
from tests.support.cluster import Cluster, Refused
from tests.support.waiting import until
from tests.test_deploy_plugin import COMPONENTS

pytestmark = pytest.mark.api

HEAD = {"apiVersion": "launcherkit.io/v1", "kind": "DeviceConfig"}
GOOD: dict[str, Any] = {
    "nothing": HEAD,
    "all that a claim may say": {**HEAD, "siblings": "none", "nodes": "iommufd", "vgpuType": "T4-1Q"},
    "nulls": {**HEAD, "siblings": None, "nodes": None, "rom": None, "vgpuType": None},
    "the longest name": {**HEAD, "vgpuType": "ä" * 64},
}
BAD = {
    "no version": ({"kind": "DeviceConfig"}, "apiVersion must be launcherkit.io/v1"),
    "another version": ({**HEAD, "apiVersion": "launcherkit.io/v2"}, "apiVersion must be launcherkit.io/v1"),
    "another kind": ({**HEAD, "kind": "GpuConfig"}, "kind must be DeviceConfig"),
    "an unknown key": ({**HEAD, "sibling": "none"}, "unknown key; known are apiVersion, kind, siblings"),
    "an unknown value": ({**HEAD, "siblings": "some"}, "siblings must be one of slot, group, listed, reserve, none"),
    "another type": ({**HEAD, "nodes": 1}, "nodes must be one of group, iommufd"),
    "a text for a boolean": ({**HEAD, "rom": "true"}, "rom must be true or false"),
    "an empty name": ({**HEAD, "vgpuType": ""}, "vgpuType must be a text of 1 to 64 characters"),
    "a name that is too long": ({**HEAD, "vgpuType": "a" * 65}, "vgpuType must be a text of 1 to 64 characters"),
    "a list for a name": ({**HEAD, "vgpuType": ["a"]}, "vgpuType must be a text of 1 to 64 characters"),
}


def object_of(kind: str, parameters: Any, driver: str = DRIVER) -> dict[str, Any]:
    config = [{"opaque": {"driver": driver, "parameters": parameters}}]
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.launcherkit.io"}}]
    claim = {"devices": {"requests": requests, "config": config}}
    spec = {"ResourceClaim": claim, "ResourceClaimTemplate": {"spec": claim}, "DeviceClass": {"config": config}}[kind]
    metadata = {"name": "a"} if kind == "DeviceClass" else {"name": "a", "namespace": "default"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


KINDS = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass")


@pytest.fixture(scope="module")
def checked(api: Cluster) -> Iterator[Cluster]:
    """The API with the policy, once it acts."""
    with applied(api, (COMPONENTS["claim-parameters"] / "policy.yaml").read_text()):
        until(lambda: refusal(api, object_of("ResourceClaim", {})), "the policy act")
        yield api


def refusal(server: Cluster, body: dict[str, Any]) -> str:
    try:
        server.kubectl("create", "--dry-run=server", "-f", "-", given=json.dumps(body))
    except Refused as problem:
        return str(problem)
    return ""


def refused_by_driver(parameters: Any, *, by_claim: bool) -> bool:
    try:
        parameters_of([OpaqueConfig(parameters, "parameters", by_claim)], "default/a")
    except LauncherkitError:
        return True
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_driver_takes_is_taken_and_what_it_refuses_is_refused_with_the_reason(
    checked: Cluster, kind: str
) -> None:
    for name, parameters in GOOD.items():
        assert refusal(checked, object_of(kind, parameters)) == "", name
        assert not refused_by_driver(parameters, by_claim=True), name
    for name, (parameters, reason) in BAD.items():
        assert reason in refusal(checked, object_of(kind, parameters)), name
        assert refused_by_driver(parameters, by_claim=False), name


@pytest.mark.parametrize("kind", KINDS)
def test_the_rom_is_the_classes_business(checked: Cluster, kind: str) -> None:
    said, by_claim = refusal(checked, object_of(kind, {**HEAD, "rom": True})), kind != "DeviceClass"
    assert (
        ("only a DeviceClass can say rom" in said)
        == by_claim
        == refused_by_driver({**HEAD, "rom": True}, by_claim=by_claim)
    )
    assert bool(said) == by_claim


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_of_other_drivers_and_objects_without_any_are_none_of_its_business(
    checked: Cluster, kind: str
) -> None:
    assert refusal(checked, object_of(kind, {"sibling": 1}, "gpu.nvidia.com")) == ""
    bare = object_of(kind, {})
    spec = bare["spec"] if kind == "DeviceClass" else bare["spec"].get("spec", bare["spec"])["devices"]
    del spec["config"]
    assert refusal(checked, bare) == ""
