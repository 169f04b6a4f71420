"""The admission policies of deploy/ on an API server that runs them: what they do to which pods."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from deploy.render import DEPLOY
from launcherkit_plugin.webhook.review import patch
from tests.api.applying import applied, apply, delete
from tests.cluster.test_manifests import CRDS, NAMESPACE, dropped
from tests.plugin.webhook.test_patch import HOOK, HOOKED, LEFT, LICENCE
from tests.support.cluster import Cluster, Refused
from tests.support.json_patch import with_additions
from tests.support.launcher_pods import (
    CONSOLE_LOG,
    LABEL,
    asking_for,
    kata_pod,
    labelled,
    launcher_pod,
    with_claim,
    with_init,
    without_sockets,
)
from tests.support.waiting import until
from tests.test_deploy import added_container

pytestmark = pytest.mark.api

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "kubevirt-plugin.md"
OURS = launcher_pod(**{LABEL: "true"})
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "plugin.yaml").read_text()))


@pytest.fixture(scope="module")
def untouched(api: Cluster) -> dict[str, Any]:
    """What the server makes of the pod before there is a policy: its defaults are in it."""
    return api.taken(OURS)


@pytest.fixture(scope="module")
def server(api: Cluster, untouched: dict[str, Any]) -> Iterator[Cluster]:
    """The API with the policy, once it acts: that takes a moment."""
    with applied(api, CRDS.read_text()):
        api.kubectl("wait", "--for=condition=established", "--timeout=60s", "-f", "-", given=CRDS.read_text())
        apply(api, [NAMESPACE])
        with applied(api, (DEPLOY / "plugin.yaml").read_text(), (DEPLOY / "kata-licence.yaml").read_text()):
            until(lambda: "initContainers" in api.taken(kata_pod())["spec"], "the other policy act")
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


@pytest.mark.parametrize("name", [*HOOKED, *LEFT])
def test_the_policy_does_to_a_pod_what_the_webhook_does(server: Cluster, name: str) -> None:
    pod = (HOOKED | LEFT)[name]
    # What has the container is changed by neither.
    patched = with_additions(pod, patch(pod, HOOK, HOOK.parameters))
    assert settled(server.taken(pod)) == settled(server.taken(patched))
    assert (name in HOOKED) == (patched != pod)


def test_pods_made_at_random_are_changed_as_the_webhook_changes_them(server: Cluster) -> None:
    pods = [random_pod(Random(seed)) for seed in range(150)]
    patched = [with_additions(pod, patch(pod, HOOK, HOOK.parameters)) for pod in pods]
    patched = [with_additions(pod, patch(pod, LICENCE, LICENCE.parameters)) for pod in patched]
    by_policy, by_webhook = (list(map(settled, server.all_taken(each))) for each in (pods, patched))
    assert by_policy == by_webhook
    changed = [one != other for one, other in zip(pods, patched, strict=True)]
    assert 20 < sum(changed) < 130  # some of either kind


def random_pod(random: Random) -> dict[str, Any]:
    """A pod with some of what the injections look at."""
    launcher = random.random() < 0.7
    pod = launcher_pod() if launcher else kata_pod(random.choice(["kata", "kata-qemu", "runc"]))
    if random.random() < 0.6:
        pod = asking_for(pod, *random.sample(RESOURCES, random.randrange(3)))
    for change, chance in CHANGES if launcher else CHANGES[:3]:
        pod = change(pod) if random.random() < chance else pod
    return pod


RESOURCES = ["nvidia.com/A", "nvidia.com.example/B", "example.com/nvidia.com", "devices.kubevirt.io/kvm"]
CHANGES: list[tuple[Callable[[dict[str, Any]], dict[str, Any]], float]] = [
    (lambda pod: labelled(pod, **{LABEL: "true"}), 0.3),
    (lambda pod: labelled(pod, **{LABEL: "false"}), 0.2),
    (lambda pod: labelled(pod, **{"kubevirt.io": "virt-launcher"}), 0.2),
    (without_sockets, 0.2),
    (lambda pod: with_init(pod, CONSOLE_LOG), 0.3),
    (lambda pod: with_init(pod, {"name": HOOK.add.init_containers[0]["name"], "image": "a"}), 0.1),
    (with_claim, 0.2),
]


def test_where_the_parameters_are_gone_nothing_is_added_and_no_pod_refused(server: Cluster) -> None:
    (parameters,) = [each for each in MANIFESTS if each["kind"] == "ConfigMap"]
    with deleted(server, parameters):
        until(lambda: "initContainers" not in server.taken(OURS)["spec"], "the policy miss them")
    until(lambda: "initContainers" in server.taken(OURS)["spec"], "the policy act again")


def test_a_change_of_the_parameters_acts(server: Cluster) -> None:
    (parameters,) = [each for each in MANIFESTS if each["kind"] == "ConfigMap"]
    pod = asking_for(launcher_pod(), "example.com/card")
    changed = {**parameters, "data": {"image": "registry.example/other:2", "resources": "example.com/ nvidia.com/"}}
    apply(server, [changed])
    try:
        until(lambda: "initContainers" in server.taken(pod)["spec"], "the change act")
        (added,) = server.taken(pod)["spec"]["initContainers"]
        assert added["image"] == "registry.example/other:2"
    finally:
        apply(server, [parameters])
    until(lambda: "initContainers" not in server.taken(pod)["spec"], "it be changed back")


def test_a_parameter_that_is_missing_refuses_the_pods_that_need_it(server: Cluster) -> None:
    (parameters,) = [each for each in MANIFESTS if each["kind"] == "ConfigMap"]
    apply(server, [{**parameters, "data": {"resources": "nvidia.com/"}}])
    try:
        until(lambda: refused(server, OURS), "the pod be refused")
        assert "initContainers" not in server.taken(launcher_pod(**{LABEL: "false"}))["spec"]
    finally:
        apply(server, [parameters])
    until(lambda: not refused(server, OURS), "it be taken again")


@contextmanager
def deleted(server: Cluster, document: dict[str, Any]) -> Iterator[None]:
    delete(server, [document])
    try:
        yield
    finally:
        apply(server, [document])


def refused(server: Cluster, pod: dict[str, Any]) -> bool:
    try:
        server.taken(pod)
    except Refused:
        return True
    return False


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
