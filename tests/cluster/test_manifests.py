"""The manifests of deploy/, held against Kubernetes' own schemas: a real API server takes them, and drops nothing.

What an older one can't be asked about is the admission policy (Kubernetes 1.36): tests/api does, and the container that
it adds is tried here in a pod.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.render import DEPLOY
from tests.support.cluster import Cluster, Refused
from tests.test_deploy import VALUES, added_container

pytestmark = pytest.mark.cluster

CRDS = Path(__file__).with_name("crds.yaml")
TOO_YOUNG = {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "DeviceClass", "ResourceClaimTemplate"}
FOREIGN = {"Issuer", "Certificate"}
"""cert-manager's kinds, which nothing here has."""
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": VALUES["pluginNamespace"]}}
MANIFESTS = [path for path in sorted(DEPLOY.glob("*.yaml")) if path.name != "values.yaml"]
DOCUMENTS = [
    pytest.param(document, id=f"{path.name}:{document['kind']}")
    for path in MANIFESTS
    for document in yaml.safe_load_all(path.read_text())
    if document["kind"] not in TOO_YOUNG | FOREIGN
]


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with KubeVirt's kinds."""
    try:
        cluster.kubectl("apply", "-f", "-", given=CRDS.read_text())
        cluster.kubectl("apply", "-f", "-", given=json.dumps(NAMESPACE))
        cluster.kubectl("wait", "--for=condition=established", "--timeout=60s", "-f", "-", given=CRDS.read_text())
        yield cluster
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", given=CRDS.read_text())


def dropped(given: object, stored: object, path: str = "$") -> list[str]:
    """The paths of what was given and not stored: a server drops a field that it doesn't know in silence."""
    if isinstance(given, dict) and isinstance(stored, dict):
        missing = [f"{path}.{key}" for key in given if key not in stored]
        return missing + [
            each for key in given if key in stored for each in dropped(given[key], stored[key], f"{path}.{key}")
        ]
    if isinstance(given, list) and isinstance(stored, list) and len(given) <= len(stored):
        # It adds to the end of some lists: every pod gets a volume with a token.
        pairs = zip(given, stored, strict=False)
        return [each for number, pair in enumerate(pairs) for each in dropped(*pair, f"{path}[{number}]")]
    return [] if in_bytes(given) == in_bytes(stored) else [path]


def in_bytes(value: object) -> object:
    """An amount as a number, for a server writes 5120Mi as 5Gi and 1 as "1"; any other value as it is."""
    found = re.fullmatch(r"(\d+)(?:([KMG])i)?", value) if isinstance(value, str) else None
    return int(found[1]) * 1024 ** (" KMG".index(found[2] or " ")) if found else value


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_api_server_takes_a_manifest_whole(server: Cluster, document: dict[str, Any]) -> None:
    assert dropped(document, server.taken(document)) == []


def test_the_api_server_takes_a_launcher_pod_with_the_container_that_the_policy_adds(
    server: Cluster, added: dict[str, Any]
) -> None:
    pod = launcher_pod(added)
    assert dropped(pod, server.taken(pod)) == []


def test_a_field_that_kubernetes_does_not_know_is_noticed(server: Cluster, added: dict[str, Any]) -> None:
    added["securityContext"]["readOnlyRoot"] = True
    with pytest.raises(Refused, match="readOnlyRoot"):
        server.taken(launcher_pod(added))


def test_a_value_that_kubernetes_does_not_allow_is_noticed(server: Cluster, added: dict[str, Any]) -> None:
    added["securityContext"]["seccompProfile"] = {"type": "Default"}
    with pytest.raises(Refused, match="seccompProfile"):
        server.taken(launcher_pod(added))


@pytest.fixture
def added(server: Cluster, record_property: Callable[[str, object], None]) -> dict[str, Any]:
    """The container that the policy adds. A server older than native sidecars (1.28) knows no restart policy of it."""
    container = added_container()
    try:
        server.kubectl("explain", "pod.spec.initContainers.restartPolicy")
    except Refused:
        record_property("instead", "a native sidecar -> an ordinary init container")
        del container["restartPolicy"]
    return container


def launcher_pod(container: dict[str, Any]) -> dict[str, Any]:
    """A pod as KubeVirt makes it, as far as the container leans on it: its user, and the volume of the sockets."""
    compute = {"name": "compute", "image": "registry.example/virt-launcher:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "virt-launcher-gpu-vm", "labels": {"kubevirt.io": "virt-launcher"}},
        "spec": {
            "securityContext": {"runAsUser": 107, "runAsGroup": 107, "fsGroup": 107},
            "containers": [compute],
            "initContainers": [container],
            "volumes": [{"name": "kubevirt-plugin-sockets", "emptyDir": {}}],
        },
    }
