"""The webhook, called over TLS by the API server of a Kubernetes of today, beside no admission policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from deploy.own_ca import certified
from deploy.render import injections
from tests.api.applying import applied, apply, delete
from tests.cluster.test_webhook import registration
from tests.plugin.webhook.test_patch import HOOKED, LEFT, LICENCE, SIDECAR, hooked
from tests.plugin.webhook.test_server import Webhook
from tests.support.cluster import Cluster, Refused
from tests.support.launcher_pods import LABEL, VALUES, kata_pod, launcher_pod
from tests.support.waiting import until
from tests.test_deploy import added_container

pytestmark = pytest.mark.api

YES = launcher_pod(**{LABEL: "true"})
IMAGE = str(added_container()["image"])


@pytest.fixture(scope="module")
def called(api: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Webhook]]:
    """The server with the webhook, once it is called."""
    webhook = Webhook(tmp_path_factory.mktemp("webhook"))
    for name, text in injections(VALUES).items():
        (webhook.folder / "injections" / f"{name}.yaml").write_text(text)
    webhook.give({"resources": "nvidia.com/", "image": IMAGE})
    webhook.give({"runtimeClasses": "kata", "resources": "nvidia.com/", "image": "a", "secret": "s"}, LICENCE.name)
    with webhook.running(), applied(api, yaml.safe_dump(registration(webhook.port, webhook.authority))):
        until(lambda: added(api.taken(YES)), "the webhook be called")
        yield api, webhook


def added(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """The hook's containers in a pod."""
    return [each for each in pod["spec"].get("initContainers", ()) if each["name"] == SIDECAR]


PODS = {name: pod for name, pod in (HOOKED | LEFT).items() if "has it" not in name and "RuntimeClass" not in name}


@pytest.mark.parametrize("name", PODS)
def test_it_adds_the_native_sidecar_to_the_pods_that_ask_for_our_devices(
    called: tuple[Cluster, Webhook], name: str
) -> None:
    stored = called[0].taken(PODS[name])
    assert len(added(stored)) == (name in HOOKED)
    for container in added(stored):
        (wanted,) = added(hooked(PODS[name]))
        assert {key: container[key] for key in wanted.keys() - {"env"}} == {
            key: wanted[key] for key in wanted.keys() - {"env"}
        }
        assert container["restartPolicy"] == "Always"


def test_a_pod_that_has_the_container_is_not_given_a_second_one(called: tuple[Cluster, Webhook]) -> None:
    stored = called[0].taken(hooked(YES))
    assert added(stored) == added(called[0].taken(YES))


def test_a_pod_that_is_really_created_is_stored_with_the_container(called: tuple[Cluster, Webhook]) -> None:
    (stored,) = apply(called[0], [YES])
    try:
        assert added(called[0].get("pod", stored["metadata"]["name"])) == added(stored) != []
    finally:
        delete(called[0], [YES])


def test_a_pod_of_the_runtime_class_gets_the_other_container(called: tuple[Cluster, Webhook]) -> None:
    stored = called[0].taken(kata_pod())["spec"]
    containers = [each["name"] for each in (*stored.get("initContainers", ()), *stored["containers"])]
    assert sorted(containers) == ["cuda", "vgpu-licence"]
    assert {"vgpu-licence", "vgpu-licence-state"} <= {each["name"] for each in stored["volumes"]}


def test_a_pod_is_refused_with_the_reason_where_a_parameter_is_missing(called: tuple[Cluster, Webhook]) -> None:
    server, webhook = called
    image = webhook.folder / "parameters" / "launcherkit-sidecar" / "image"
    image.unlink()
    try:
        with pytest.raises(Refused, match="the ConfigMap launcherkit-sidecar has no key image"):
            server.taken(YES)
    finally:
        webhook.give({"image": IMAGE})
    assert added(server.taken(YES))


def test_the_pods_of_a_whole_list_are_reviewed_at_once(called: tuple[Cluster, Webhook]) -> None:
    pods = [{**YES, "metadata": {**YES["metadata"], "name": f"virt-launcher-{number}"}} for number in range(60)]
    assert all(map(added, called[0].all_taken(pods)))


def test_an_authority_that_did_not_sign_its_certificate_is_a_failure_and_the_policy_for_those_decides(
    called: tuple[Cluster, Webhook],
) -> None:
    server, webhook = called
    stranger, *_ = certified("localhost")
    other = registration(webhook.port, stranger)
    other["metadata"]["name"] = "launcherkit-untrusted"
    (hook,) = other["webhooks"] = [each for each in other["webhooks"] if each["failurePolicy"] == "Fail"]
    with applied(server, json.dumps(other)):
        until(lambda: "certificate signed by unknown authority" in reason(server), "launcher pods be refused")
        hook["failurePolicy"] = "Ignore"
        apply(server, [other])
        until(lambda: reason(server) == "", "they be taken")
    assert added(server.taken(YES))


def reason(server: Cluster) -> str:
    """Why a launcher pod is refused; empty where it isn't."""
    try:
        server.taken(YES)
    except Refused as refused:
        return str(refused)
    return ""
