"""Pods as virt-controller makes them, and as they are when something of them is missing."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from deploy.render import read_values

VALUES = read_values()
LABEL = str(VALUES["label"])
"""With the value "true" it asks for the hook's container."""
CONSOLE_LOG = {
    "name": "guest-console-log",
    "image": "registry.example/virt-launcher:1",
    "restartPolicy": "Always",
    "command": ["/usr/bin/virt-tail"],
}


def launcher_pod(**metadata_labels: str) -> dict[str, Any]:
    """A pod as virt-controller makes it with the gate Plugins, which has copied the labels of the VM's template."""
    volumes = ["private", "public", "sockets", "ephemeral-disks", "container-disks", "libvirt-runtime", "hotplug-disks"]
    mounts = {
        "private": "/var/run/kubevirt-private",
        "public": "/var/run/kubevirt",
        "ephemeral-disks": "/var/run/kubevirt-ephemeral-disks",
        "container-disks": "/var/run/kubevirt/container-disks",
        "hotplug-disks": "/var/run/kubevirt/hotplug-disks",
        "libvirt-runtime": "/var/run/libvirt",
        "sockets": "/var/run/kubevirt/sockets",
        "kubevirt-plugin-sockets": "/var/run/kubevirt-plugin",
    }
    compute = {
        "name": "compute",
        "image": "registry.example/virt-launcher:1",
        "command": ["/usr/bin/virt-launcher-monitor", "--qemu-timeout", "300s", "--name", "gpu-vm"],
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "resources": {
            "limits": {"devices.kubevirt.io/kvm": "1", str(VALUES["resource"]): "1"},
            "requests": {
                "cpu": "100m",
                "memory": "4500Mi",
                "devices.kubevirt.io/kvm": "1",
                str(VALUES["resource"]): "1",
            },
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
            "runAsGroup": 107,
            "runAsNonRoot": True,
            "runAsUser": 107,
        },
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
    }
    labels = {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "0e9c4f1c", "vm.kubevirt.io/name": "gpu-vm"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "virt-launcher-gpu-vm-x2x8p",
            "namespace": "default",
            "labels": {**labels, **metadata_labels},
            "annotations": {"kubevirt.io/domain": "gpu-vm", "kubectl.kubernetes.io/default-container": "compute"},
        },
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "hostname": "gpu-vm",
            "nodeSelector": {"kubevirt.io/schedulable": "true"},
            "readinessGates": [{"conditionType": "kubevirt.io/virtual-machine-unpaused"}],
            "securityContext": {"fsGroup": 107, "runAsGroup": 107, "runAsNonRoot": True, "runAsUser": 107},
            "terminationGracePeriodSeconds": 60,
            "containers": [compute],
            "volumes": [{"name": name, "emptyDir": {}} for name in [*volumes, "kubevirt-plugin-sockets"]],
        },
    }


def with_init(pod: dict[str, Any], *containers: dict[str, Any]) -> dict[str, Any]:
    changed = deepcopy(pod)
    changed["spec"]["initContainers"] = list(containers)
    return changed


def without_sockets(pod: dict[str, Any]) -> dict[str, Any]:
    """As it is where KubeVirt's gate Plugins is off."""
    changed = deepcopy(pod)
    spec, volume = changed["spec"], "kubevirt-plugin-sockets"
    spec["volumes"] = [each for each in spec["volumes"] if each["name"] != volume]
    (compute,) = spec["containers"]
    compute["volumeMounts"] = [each for each in compute["volumeMounts"] if each["name"] != volume]
    return changed


def without_volumes(pod: dict[str, Any]) -> dict[str, Any]:
    changed = without_sockets(pod)
    del changed["spec"]["volumes"], changed["spec"]["containers"][0]["volumeMounts"]
    return changed


def labelled(pod: dict[str, Any], **labels: str) -> dict[str, Any]:
    changed = deepcopy(pod)
    changed["metadata"].setdefault("labels", {}).update(labels)
    return changed


def asking_for(pod: dict[str, Any], *resources: str) -> dict[str, Any]:
    """A pod whose first container asks for these extended resources alone."""
    changed = deepcopy(pod)
    amounts = dict.fromkeys(resources, "1")
    changed["spec"]["containers"][0]["resources"] = {"limits": amounts, "requests": amounts}
    return changed


def with_claim(pod: dict[str, Any]) -> dict[str, Any]:
    """A pod whose device comes by a claim, as virt-controller writes it."""
    changed = asking_for(pod, "devices.kubevirt.io/kvm")
    changed["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    changed["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu", "request": "card"}]
    return changed


def kata_pod(runtime_class: str = "kata") -> dict[str, Any]:
    """A pod of a RuntimeClass, with a card."""
    container = {"name": "cuda", "image": "registry.example/cuda:1"}
    spec = {"runtimeClassName": runtime_class, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "cuda", "namespace": "default"}, "spec": spec}
    return asking_for(pod, str(VALUES["resource"]))
