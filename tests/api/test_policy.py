"""The MutatingAdmissionPolicy of deploy/plugin.yaml, on an API server that runs it: what it does to which pods."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.render import DEPLOY
from tests.api.applying import applied
from tests.cluster.test_manifests import CRDS, dropped
from tests.support.cluster import Cluster
from tests.support.waiting import until
from tests.test_deploy import VALUES, added_container

pytestmark = pytest.mark.api

LABEL = str(VALUES["label"])
NAME = added_container()["name"]
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "kubevirt-plugin.md"
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


OURS = launcher_pod(**{LABEL: "true"})


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
    changed["metadata"]["labels"] |= labels
    return changed


@pytest.fixture(scope="module")
def untouched(api: Cluster) -> dict[str, Any]:
    """What the server makes of the pod before there is a policy: its defaults are in it."""
    return api.taken(OURS)


@pytest.fixture(scope="module")
def server(api: Cluster, untouched: dict[str, Any]) -> Iterator[Cluster]:
    """The API with the policy, once it acts: that takes a moment."""
    with applied(api, CRDS.read_text()):
        api.kubectl("wait", "--for=condition=established", "--timeout=60s", "-f", "-", given=CRDS.read_text())
        with applied(api, (DEPLOY / "plugin.yaml").read_text()):
            until(lambda: "initContainers" in api.taken(OURS)["spec"], "the policy act")
            yield api


def settled(pod: dict[str, Any]) -> dict[str, Any]:
    """Without what is another each time."""
    changed = deepcopy(pod)
    for key in ("uid", "creationTimestamp", "managedFields", "resourceVersion"):
        changed["metadata"].pop(key, None)
    return changed


@pytest.mark.parametrize("there", [(), (CONSOLE_LOG,)], ids=["alone", "beside_another"])
def test_a_launcher_pod_gets_the_container_that_the_manifest_says_and_nothing_else(
    server: Cluster, untouched: dict[str, Any], there: tuple[dict[str, Any], ...]
) -> None:
    stored = server.taken(with_init(OURS, *there) if there else OURS)
    *others, added = stored["spec"].pop("initContainers")
    assert dropped(added_container(), added) == []
    assert [each["name"] for each in others] == [each["name"] for each in there]
    # All else is as it was, but that a server adds to a pod whose list of init containers it has been given.
    assert settled(stored) == settled(untouched)


def test_the_container_is_the_one_that_the_page_shows(server: Cluster) -> None:
    (block,) = re.findall(r"```yaml\n(name: plugin-sidecar-.*?)```", PAGE.read_text(), re.DOTALL)
    (added,) = server.taken(OURS)["spec"]["initContainers"]
    assert dropped(yaml.safe_load(block), added) == []


def test_a_pod_that_has_the_container_already_stays(server: Cluster) -> None:
    once = server.taken(OURS)
    again = settled(once)
    again.pop("status", None)
    assert settled(server.taken(again)) == settled(once)


OTHERS = {
    "a launcher without the label": launcher_pod(),
    "a launcher whose label says no": launcher_pod(**{LABEL: "false"}),
    "another pod with the label": labelled(OURS, **{"kubevirt.io": "virt-handler"}),
    "a launcher where the gate Plugins is off": without_sockets(OURS),
    "a pod with no volume at all": without_volumes(OURS),
}


@pytest.mark.parametrize("pod", OTHERS.values(), ids=OTHERS)
def test_no_other_pod_is_changed(server: Cluster, untouched: dict[str, Any], pod: dict[str, Any]) -> None:
    stored = server.taken(pod)
    assert "initContainers" not in stored["spec"]
    assert dropped(pod, stored) == []


def test_what_is_no_pod_is_not_changed(server: Cluster) -> None:
    template = {"metadata": {"labels": OURS["metadata"]["labels"]}, "spec": {**OURS["spec"], "restartPolicy": "Always"}}
    selector = {"matchLabels": {"kubevirt.io": "virt-launcher"}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "launchers", "namespace": "default", "labels": OURS["metadata"]["labels"]},
        "spec": {"selector": selector, "template": template},
    }
    assert "initContainers" not in server.taken(deployment)["spec"]["template"]["spec"]
