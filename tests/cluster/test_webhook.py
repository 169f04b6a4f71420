"""The webhook, called by an API server that is older than admission policies."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.render import DEPLOY, injections
from tests.api.applying import delete
from tests.plugin.webhook.test_patch import HOOKED, LEFT, LICENCE
from tests.plugin.webhook.test_server import PATH, Webhook
from tests.support.cluster import Cluster, Refused
from tests.support.launcher_pods import LABEL, VALUES, kata_pod, launcher_pod
from tests.support.waiting import until
from tests.test_deploy import added_container

pytestmark = pytest.mark.cluster

YES = launcher_pod(**{LABEL: "true"})
SIDECAR = added_container()["name"]


def registration(port: int, authority: bytes) -> dict[str, Any]:
    """The manifest's, for a server on this machine."""
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "webhook-own-ca.yaml").read_text())
    for hook in found["webhooks"]:
        service = hook["clientConfig"].pop("service")
        hook["clientConfig"]["url"] = f"https://localhost:{port}{service['path']}"
        hook["clientConfig"]["caBundle"] = base64.b64encode(authority).decode()
    return found


@pytest.fixture(scope="module")
def called(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Webhook]]:
    """The server with the webhook, whose containers are ordinary ones: it knows no native sidecars."""
    webhook = Webhook(tmp_path_factory.mktemp("webhook"))
    for name, text in injections({**VALUES, "nativeSidecars": False}).items():
        (webhook.folder / "injections" / f"{name}.yaml").write_text(text)
    kata = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}, "handler": "kata"}
    webhook.give({"runtimeClasses": "kata", "resources": "nvidia.com/", "image": "a", "secret": "s"}, LICENCE.name)
    with webhook.running():
        registered = registration(webhook.port, webhook.authority)
        try:
            for document in (kata, registered):
                cluster.kubectl("apply", "-f", "-", given=json.dumps(document))
            until(lambda: has_sidecar(cluster.taken(YES)), "the webhook be called")
            yield cluster, webhook
        finally:
            for document in (registered, kata):  # an older kubectl takes no two JSON documents
                delete(cluster, [document])


def has_sidecar(pod: dict[str, Any]) -> bool:
    return SIDECAR in [each["name"] for each in pod["spec"]["containers"]]


def without_restart_policies(pod: dict[str, Any]) -> dict[str, Any]:
    """Of init containers: the server refuses what it doesn't know of them."""
    changed = deepcopy(pod)
    for each in changed["spec"].get("initContainers", []):
        each.pop("restartPolicy", None)
    return changed


PODS = {name: pod for name, pod in (HOOKED | LEFT).items() if "claim" not in name and "has it" not in name}


@pytest.mark.parametrize("name", PODS)
def test_it_adds_the_container_to_the_pods_that_ask_for_our_devices(called: tuple[Cluster, Webhook], name: str) -> None:
    stored = called[0].taken(without_restart_policies(PODS[name]))
    assert has_sidecar(stored) == (name in HOOKED)


def test_a_pod_of_the_runtime_class_gets_the_other_container(called: tuple[Cluster, Webhook]) -> None:
    stored = called[0].taken(kata_pod())["spec"]
    assert [each["name"] for each in stored["containers"]] == ["cuda", "vgpu-licence"]
    assert {"vgpu-licence", "vgpu-licence-state"} <= {each["name"] for each in stored["volumes"]}


def test_a_pod_is_refused_with_the_reason_where_a_parameter_is_missing(called: tuple[Cluster, Webhook]) -> None:
    cluster, webhook = called
    image: Path = webhook.folder / "parameters" / PATH[1:] / "image"
    text = image.read_text()
    image.unlink()
    try:
        with pytest.raises(Refused, match="the ConfigMap launcherkit-sidecar has no key image"):
            cluster.taken(YES)
    finally:
        image.write_text(text)
    assert has_sidecar(cluster.taken(YES))


def test_the_policy_for_failures_decides_while_it_is_down(
    cluster: Cluster, tmp_path: Path, called: tuple[Cluster, Webhook]
) -> None:
    down = registration(1, called[1].authority)  # nobody listens there
    down["metadata"]["name"] = "launcherkit-down"
    (hook,) = [each for each in down["webhooks"] if each["failurePolicy"] == "Fail"]
    down["webhooks"] = [hook]
    cluster.kubectl("apply", "-f", "-", given=json.dumps(down))
    try:
        until(lambda: refused(cluster), "launcher pods be refused")
        hook["failurePolicy"] = "Ignore"
        cluster.kubectl("apply", "-f", "-", given=json.dumps(down))
        until(lambda: not refused(cluster), "they be taken")
    finally:
        delete(cluster, [down])


def refused(cluster: Cluster) -> bool:
    try:
        cluster.taken(YES)
    except Refused as reason:
        return "failed calling webhook" in str(reason)
    return False
