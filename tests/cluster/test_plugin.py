"""The device plugin's manifests and its cluster process on a real API server, with no rights but the manifests'."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
import yaml

from deploy.chart import NEEDS
from launcherkit_plugin import __version__
from launcherkit_plugin.cluster.socket import ClusterSocket
from launcherkit_plugin.model.wakeups import WakeupQueue
from tests.cluster.test_manifests import CRDS, dropped
from tests.support.cluster import Cluster, Refused
from tests.support.clusterprocess import ClusterProcess
from tests.support.waiting import until
from tests.test_deploy_plugin import BASE, COMPONENTS

pytestmark = pytest.mark.cluster

_SECONDS = 120
NAMESPACE = "launcherkit"
_RESOURCES = ("podmonitor.yaml", "kubevirt-plugin.yaml", "networkpolicy.yaml", "rbac.yaml")
MANIFESTS = [*BASE.glob("*.yaml"), *(folder / name for folder in COMPONENTS.values() for name in _RESOURCES)]
DOCUMENTS = [
    pytest.param(document, id=f"{path.name}:{document['kind']}")
    for path in sorted(path for path in MANIFESTS if path.exists())
    for document in yaml.safe_load_all(path.read_text())
    if path.name not in ("kustomization.yaml", "plugin.yaml")
]
PATCHED = {
    name: folder / "daemonset.yaml" for name, folder in COMPONENTS.items() if (folder / "daemonset.yaml").exists()
}
RIGHTS = [BASE / "serviceaccount.yaml", *(COMPONENTS[name] / "rbac.yaml" for name in ("cluster", "pod-ends"))]


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with the kinds, the namespace, and the plugin's account and rights."""
    given = "\n---\n".join(path.read_text() for path in (CRDS, BASE / "namespace.yaml", *RIGHTS))
    there = cluster.kubectl("get", "namespaces", NAMESPACE, "--ignore-not-found")
    assert not there, f"the namespace {NAMESPACE} is in use: these tests make it, and take it away"
    try:
        cluster.kubectl("apply", "-f", "-", given=given)
        cluster.kubectl("wait", "--for=condition=established", "--timeout=60s", "-f", "-", given=CRDS.read_text())
        yield cluster
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "--wait=true", "-f", "-", given=given)


# The manifests


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_api_server_takes_a_manifest_whole(server: Cluster, document: dict[str, Any]) -> None:
    trial = json.loads(json.dumps(document))
    trial["metadata"]["name"] += "-trial"  # what has the name itself is there already
    assert dropped(trial, server.taken(trial)) == []


@pytest.mark.parametrize("name", PATCHED)
def test_the_api_server_takes_the_daemon_set_with_a_component(server: Cluster, name: str) -> None:
    needed = [PATCHED[other] for other in NEEDS.get(name, ())]
    merged = patched(server, *needed, PATCHED[name])
    merged["metadata"]["name"] += "-trial"
    assert dropped(merged, server.taken(merged)) == []


def patched(server: Cluster, *patches: Path) -> dict[str, Any]:
    """The DaemonSet with patches, as kustomize merges them: kubectl has the same code."""
    merged: dict[str, Any] = yaml.safe_load((BASE / "daemonset.yaml").read_text())
    for path in patches:
        patch = json.dumps(yaml.safe_load(path.read_text()))
        command = ("patch", "--local", "--type=strategic", "-o", "json", "-f", "-", "-p", patch)
        merged = json.loads(server.kubectl(*command, given=json.dumps(merged)))
    return merged


def test_binding_keeps_what_the_base_mounts_and_takes_no_capability_back(server: Cluster) -> None:
    merged = patched(server, PATCHED["binding"])
    (container,) = [each for each in merged["spec"]["template"]["spec"]["containers"] if each["name"] == "plugin"]
    assert container["securityContext"]["capabilities"] == {"add": ["DAC_READ_SEARCH", "SYS_PTRACE"], "drop": ["ALL"]}
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/var/lib/kubelet/device-plugins", "/dev/vfio", "/host/dev/vfio", "/host/sys/bus"} <= mounted


def test_kustomize_builds_the_base_with_every_component(cluster: Cluster, tmp_path: Path) -> None:
    client = json.loads(cluster.kubectl("version", "--client", "-o", "json"))["clientVersion"]
    if int(re.sub(r"\D", "", client["minor"])) < 21:
        pytest.skip(f"components are younger than kubectl {client['gitVersion']}")
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(BASE, tmp_path)],
        "components": [os.path.relpath(folder, tmp_path) for folder in COMPONENTS.values()],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    built = list(yaml.safe_load_all(cluster.kubectl("kustomize", str(tmp_path))))
    (daemon_set,) = [document for document in built if document["kind"] == "DaemonSet"]
    containers = {each["name"]: each for each in daemon_set["spec"]["template"]["spec"]["containers"]}
    assert {each["image"] for each in containers.values()} == {f"registry.example/launcherkit-plugin:{__version__}"}
    container = containers["plugin"]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/var/lib/kubelet/device-plugins", "/host/sys/bus", "/var/run/cdi"} <= mounted
    (config_map,) = [document for document in built if document["kind"] == "ConfigMap"]
    assert config_map["metadata"] == {"name": "launcherkit-plugin", "namespace": NAMESPACE}
    assert {"PodMonitor", "Namespace", "ServiceAccount"} <= {document["kind"] for document in built}


# The process


@pytest.fixture
def kubeconfig(server: Cluster, tmp_path: Path) -> Path:
    """The credentials of the plugin's account."""
    config = json.loads(server.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token(server)}}]
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path


def token(server: Cluster) -> str:
    """A token of the account; a cluster before 1.24 made one unasked, and has no command for it."""
    account = json.loads(server.kubectl("-n", NAMESPACE, "get", "serviceaccount", "launcherkit-plugin", "-o", "json"))
    if not account.get("secrets"):
        return server.kubectl("-n", NAMESPACE, "create", "token", "launcherkit-plugin").strip()
    name = account["secrets"][0]["name"]
    encoded = server.kubectl("-n", NAMESPACE, "get", "secret", name, "-o", "go-template={{.data.token|base64decode}}")
    return encoded.strip()


def kubevirt(permitted: dict[str, Any]) -> str:
    return json.dumps(
        {
            "apiVersion": "kubevirt.io/v1",
            "kind": "KubeVirt",
            "metadata": {"name": "kubevirt", "namespace": NAMESPACE},
            "spec": {"configuration": {"permittedHostDevices": permitted}},
        }
    )


def test_with_the_rights_of_the_manifests_all_is_heard_and_events_are_reported(
    server: Cluster, kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    node = json.loads(server.kubectl("get", "nodes", "-o", "json"))["items"][0]["metadata"]["name"]
    message = f"a device is bound to the driver {uuid4()}"  # no Event of another run is like it
    lines: list[str] = []
    path = tmp_path_factory.mktemp("c") / "c.sock"

    async def soon(what: str, condition: Callable[[], Any]) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                while not condition():
                    await asyncio.sleep(0.1)
        except TimeoutError:
            pytest.fail(f"no {what}: {lines}")

    async def apply(text: str) -> None:
        await asyncio.to_thread(server.kubectl, "apply", "-f", "-", given=text)

    async def scenario() -> None:
        daemon = ClusterSocket(lambda level, text, **more: lines.append(text), WakeupQueue(0.01))
        async with daemon.listening(str(path)):
            daemon.want_kubevirt()
            settings, labels = await daemon.first(_SECONDS)
            assert settings == {}
            assert labels["kubernetes.io/hostname"] == node
            permitted = {"pciHostDevices": [{"pciVendorSelector": "10DE:1EB8", "resourceName": "nvidia.com/T4"}]}
            await apply(kubevirt(permitted))
            await soon("configuration", lambda: daemon.facts[0] == {"permittedHostDevices": permitted})
            await apply(pod_on(node))
            for _ in range(3):
                daemon.event("Warning", "DeviceUnhealthy", message)
            await soon("Events", lambda: counts(server, message) == [3])
            await asyncio.to_thread(
                server.kubectl, "-n", NAMESPACE, "delete", "pod", "short", "--grace-period=0", "--force", "--wait=false"
            )
            await soon("end of the pod", lambda: f"the pod '{NAMESPACE}/short' has ended" in lines)

    with ClusterProcess(path, node, kubeconfig, "--watch-pods") as process:
        asyncio.run(scenario())
        assert "can't" not in process.reported().partition("disconnected")[0].replace("no connection", "")
    assert message in server.kubectl("describe", "node", node)


def pod_on(node: str) -> str:
    """A pod that never starts: its image is nowhere."""
    container = {"name": "c", "image": "registry.example/none:1", "imagePullPolicy": "Never"}
    metadata = {"name": "short", "namespace": NAMESPACE}
    spec = {"nodeName": node, "containers": [container], "tolerations": [{"operator": "Exists"}]}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def counts(server: Cluster, message: str) -> list[int]:
    """How often the Events with a message were told."""
    found = json.loads(server.kubectl("-n", "default", "get", "events", "-o", "json"))["items"]
    return [event["count"] for event in found if event["message"] == message]


@pytest.mark.parametrize(
    ("verb", "group", "resource", "namespace", "allowed"),
    [
        ("create", "", "events", "default", True),
        ("create", "", "events", "kube-system", False),
        ("patch", "", "events", "default", True),
        ("list", "", "nodes", "", True),
        ("watch", "", "nodes", "", True),
        ("list", "kubevirt.io", "kubevirts", "", True),
        ("watch", "kubevirt.io", "kubevirts", "", True),
        ("list", "", "pods", "", True),  # of the component pod-ends
        ("watch", "", "pods", "", True),
        ("get", "", "pods", "", False),
        ("get", "", "events", "default", False),
        ("delete", "", "pods", "", False),
        ("create", "", "pods", NAMESPACE, False),
        ("get", "", "secrets", NAMESPACE, False),
        ("patch", "", "nodes", "", False),
        ("update", "kubevirt.io", "kubevirts", "", False),
    ],
)
def test_the_account_may_do_what_it_needs_and_nothing_else(
    server: Cluster, verb: str, group: str, resource: str, namespace: str, allowed: bool
) -> None:
    asked = {"verb": verb, "group": group, "resource": resource, "namespace": namespace}
    user = f"system:serviceaccount:{NAMESPACE}:launcherkit-plugin"
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": ["system:authenticated"], "resourceAttributes": asked},
    }
    answer = json.loads(server.kubectl("create", "-o", "json", "-f", "-", given=json.dumps(review)))
    assert answer["status"]["allowed"] is allowed


class Right(NamedTuple):
    """A verb that a rule of the manifests allows."""

    role: str
    """Its JSON, of the whole role."""
    rule: int
    verb: str

    @property
    def resource(self) -> str:
        (resource,) = json.loads(self.role)["rules"][self.rule]["resources"]
        return str(resource)

    def role_without(self) -> str:
        role = json.loads(self.role)
        role["rules"][self.rule]["verbs"].remove(self.verb)
        if not role["rules"][self.rule]["verbs"]:
            del role["rules"][self.rule]
        return json.dumps(role)


GIVEN = [
    Right(json.dumps(document), number, verb)
    for path in RIGHTS
    for document in yaml.safe_load_all(path.read_text())
    for number, rule in enumerate(document.get("rules", ()))
    for verb in rule["verbs"]
]


@pytest.fixture
def taken_away(server: Cluster, request: pytest.FixtureRequest) -> Iterator[Right]:
    """A right that the account doesn't have, for the length of a test."""
    right: Right = request.param
    try:
        server.kubectl("apply", "-f", "-", given=right.role_without())
        until(lambda: not may(server, right), f"{right.verb} {right.resource} be taken away")
        yield right
    finally:
        server.kubectl("apply", "-f", "-", given=right.role)
        until(lambda: may(server, right), f"{right.verb} {right.resource} be given back")


def may(server: Cluster, right: Right) -> bool:
    """Whether the account may, as the server decides it."""
    account = f"system:serviceaccount:{NAMESPACE}:launcherkit-plugin"
    where = json.loads(right.role)["metadata"].get("namespace")
    scope = ["--namespace", where] if where else ["--all-namespaces"]
    asked = {"kubevirts": "kubevirts.kubevirt.io"}.get(right.resource, right.resource)
    try:
        answer = server.kubectl("auth", "can-i", right.verb, asked, f"--as={account}", *scope)
    except Refused as no:
        if str(no) not in ("", "no"):
            raise
        return False
    return answer.strip() == "yes"


@pytest.mark.parametrize("taken_away", GIVEN, indirect=True, ids=lambda right: f"{right.verb}-{right.resource}")
def test_no_right_can_be_taken_away_unnoticed(
    server: Cluster, taken_away: Right, kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    node = json.loads(server.kubectl("get", "nodes", "-o", "json"))["items"][0]["metadata"]["name"]
    path = tmp_path_factory.mktemp("c") / "c.sock"
    refusal = f'cannot {taken_away.verb} resource "{taken_away.resource}"'

    async def scenario(process: ClusterProcess) -> None:
        daemon = ClusterSocket(lambda level, text, **more: None, WakeupQueue(0.01))
        async with daemon.listening(str(path)):
            daemon.want_kubevirt()
            for _ in range(3):
                daemon.event("Warning", "DeviceUnhealthy", f"a device is bound to the driver {taken_away.verb}-{path}")
            await asyncio.to_thread(process.wait_for, refusal)

    with ClusterProcess(path, node, kubeconfig, "--watch-pods") as process:
        asyncio.run(scenario(process))
