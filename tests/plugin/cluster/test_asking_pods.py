"""What the daemon is told of pods that ask for devices."""

from __future__ import annotations

from typing import Any

import pytest

from launcherkit_plugin.cluster.protocol import Message, asking_pods
from launcherkit_plugin.cluster.serve import asking_pod
from launcherkit_plugin.codec import encode
from launcherkit_plugin.model.same_device import AskingPod, Owner

GPU = "nvidia.com/GPU"
POD: dict[str, Any] = {
    "metadata": {
        "name": "virt-launcher-one-x7k2p",
        "namespace": "vms",
        "labels": {"launcherkit.io/same-device": "required", "kubevirt.io": "virt-launcher"},
        "ownerReferences": [{"kind": "VirtualMachineInstance", "name": "one", "uid": "u-1"}],
    },
    "spec": {
        "nodeName": "node-1",
        "containers": [
            {"name": "compute", "resources": {"limits": {GPU: "2", "memory": "2Gi", "devices.kubevirt.io/kvm": "1"}}},
            {"name": "side", "resources": {"limits": {GPU: 1}}},
            {"name": "plain"},
        ],
    },
    "status": {"phase": "Running"},
}


def of(**changes: Any) -> AskingPod:
    """The pod with some parts changed."""
    pod = {**POD, **{key: {**POD[key], **part} for key, part in changes.items()}}
    found = asking_pod(pod)
    return asking_pods(Message("pods", {"name": found["pod"]}))["name"]


def test_a_launcher_asks_for_its_vm_and_for_all_containers() -> None:
    assert asking_pod(POD) == {
        "name": "vms/virt-launcher-one-x7k2p",
        "node": "node-1",
        "pod": encode(AskingPod(Owner("vms", "one"), "required", {GPU: 3, "devices.kubevirt.io/kvm": 1})),
    }


def test_a_pod_that_no_vm_controls_stands_for_itself() -> None:
    owners = [{"kind": "StatefulSet", "name": "set", "uid": "u-2"}]
    assert of(metadata={"ownerReferences": owners}).owner == Owner("vms", "virt-launcher-one-x7k2p")
    assert of(metadata={"ownerReferences": None}).owner == Owner("vms", "virt-launcher-one-x7k2p")


@pytest.mark.parametrize("labels", [{}, {"launcherkit.io/same-device": "always"}, None])
def test_another_label_or_value_is_none(labels: dict[str, str] | None) -> None:
    assert of(metadata={"labels": labels}).wish == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"status": {"phase": "Succeeded"}},
        {"status": {"phase": "Failed"}},
        {"metadata": {"deletionTimestamp": "2026-11-25T12:00:00Z"}},
    ],
)
def test_a_pod_that_has_ended_or_is_being_deleted_asks_for_nothing_more(changes: dict[str, Any]) -> None:
    assert not of().ended
    assert of(**changes).ended


def test_a_pod_without_a_node_has_none() -> None:
    assert asking_pod({"metadata": POD["metadata"], "spec": {}})["node"] == ""


@pytest.mark.parametrize("value", [7, [], {"vms/a": {}}, {"vms/a": {**encode(of()), "wish": "always"}}])
def test_what_is_no_list_of_pods_is_an_error(value: object) -> None:
    with pytest.raises(ValueError, match=r"pods: .* is not an object|is no "):
        asking_pods(Message("pods", value))
