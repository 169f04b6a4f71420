"""The Helm chart: Helm's own library lints it, fills it in with values, installs, upgrades and removes it on the API.

It gives what kustomize gives, whichever components are switched on, in whatever namespace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from deploy.chart import CHART, NEEDS, SINCE, switch
from launcherkit import __version__
from tests.api.applying import STAND_INS, applied
from tests.api.test_manifests import OVERLAYS, kustomized
from tests.cluster.test_manifests import CRDS
from tests.support.cluster import Cluster, Refused
from tests.support.kubernetes_types import wrong
from tests.test_deploy_plugin import COMPONENTS

helm = pytest.importorskip("helm_python", reason="Helm's library isn't here: `./dev test api` installs it")
pytestmark = pytest.mark.api

LABELS = {
    "app.kubernetes.io/name": "launcherkit-plugin",
    "app.kubernetes.io/instance": "gpu",
    "app.kubernetes.io/version": __version__,
    "app.kubernetes.io/managed-by": "Helm",
    "helm.sh/chart": f"launcherkit-plugin-{__version__}",
}
ALL = {switch(name): name != "give-back" for name in COMPONENTS}
ACCOUNT = "system:serviceaccount:{}:{}".format


def rendered(values: dict[str, Any]) -> dict[str, str]:
    """The files that `helm template` makes of the templates."""
    with helm.Chart.load(str(CHART)) as chart:
        files: dict[str, str] = chart.render(values, name="gpu", namespace="gpus")
    return {path.removeprefix("launcherkit-plugin/templates/"): text for path, text in files.items()}


def objects(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects that the chart makes."""
    texts = [text for name, text in rendered(values).items() if name.endswith(".yaml")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def daemon_set(values: dict[str, Any]) -> dict[str, Any]:
    (found,) = [each for each in objects(values) if each["kind"] == "DaemonSet"]
    return found


def pod_spec(values: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = daemon_set(values)["spec"]["template"]["spec"]
    return spec


def containers(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in pod_spec(values)["containers"]}


# What it is made of


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_chart_gives_what_kustomize_builds_in_the_namespace_of_the_release(
    api: Cluster, tmp_path: Path, overlay: str
) -> None:
    components = OVERLAYS[overlay]
    text = kustomized(api, tmp_path, components)
    text = text.replace("namespace: launcherkit\n", "namespace: gpus\n")
    text = text.replace(ACCOUNT("launcherkit", "launcherkit-plugin"), ACCOUNT("gpus", "launcherkit-plugin"))
    built = [each for each in yaml.safe_load_all(text) if each["kind"] != "Namespace"]
    for each in built:
        each["metadata"]["labels"] = {**each["metadata"].get("labels", {}), **LABELS}
    switches = {switch(name): name in components for name in COMPONENTS}
    assert in_order(objects({"components": switches})) == in_order(built)


def in_order(value: Any) -> Any:
    """Lists in an order of their own: kustomize puts a patch's items first, the chart last."""
    if isinstance(value, dict):
        return {key: in_order(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((in_order(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return value


@pytest.mark.parametrize("values", [{}, {"components": ALL}], ids=["by default", "with all components"])
def test_helm_has_nothing_to_say_against_the_chart(values: dict[str, Any]) -> None:
    report = helm.lint(str(CHART), values, strict=True, namespace="gpus")
    assert (report["messages"], report["errors"]) == ([], [])


@pytest.mark.parametrize("version", ["v1.34.0", "v1.35.0", "v1.36.0"])
def test_helm_has_nothing_to_say_against_all_components_on_a_kubernetes_of_today(version: str) -> None:
    report = helm.lint(str(CHART), {"components": ALL}, strict=True, kube_version=version)
    assert (report["messages"], report["errors"]) == ([], [])


# What the values do


def test_the_image_is_one_by_tag_by_version_or_by_digest() -> None:
    here = {"repository": "registry.example.com/plugin"}
    digest = f"sha256:{'0' * 64}"
    given = [{}, {"tag": "1.2"}, {"digest": digest}, {"tag": "1.2", "digest": digest}]
    images = [{each["image"] for each in containers({"image": here | more}).values()} for more in given]
    assert images == [
        {f"registry.example.com/plugin:{__version__}"},
        {"registry.example.com/plugin:1.2"},
        {f"registry.example.com/plugin@{digest}"},
        {f"registry.example.com/plugin@{digest}"},
    ]


def test_images_are_pulled_as_the_values_say() -> None:
    values = {"image": {"pullPolicy": "Always"}, "imagePullSecrets": [{"name": "mine"}]}
    assert {each["imagePullPolicy"] for each in containers(values).values()} == {"Always"}
    assert pod_spec(values)["imagePullSecrets"] == [{"name": "mine"}]
    assert "imagePullSecrets" not in pod_spec({})


PLACE: dict[str, Any] = {
    "nodeSelector": {"kubernetes.io/os": "linux", "gpu": "yes"},
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
            }
        }
    },
    "tolerations": [{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}],
    "priorityClassName": "mine",
}


def test_the_pods_run_where_the_values_say() -> None:
    assert PLACE.items() <= pod_spec(PLACE).items()


def test_the_pods_run_everywhere_where_the_values_leave_nothing() -> None:
    spec = pod_spec({"nodeSelector": None, "affinity": None, "tolerations": [], "priorityClassName": ""})
    assert not {"nodeSelector", "affinity", "tolerations"} & spec.keys()
    assert spec["priorityClassName"] == ""


def test_labels_and_annotations_of_the_pods_are_beside_those_that_find_them() -> None:
    made = daemon_set({"podLabels": {"team": "a"}, "podAnnotations": {"b": "c"}})
    metadata = made["spec"]["template"]["metadata"]
    assert metadata == {
        "labels": {"app.kubernetes.io/name": "launcherkit-plugin", "team": "a"},
        "annotations": {"b": "c"},
    }
    assert made["spec"]["selector"]["matchLabels"].items() <= metadata["labels"].items()


def test_pods_are_replaced_as_the_values_say() -> None:
    values = {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}}
    assert daemon_set(values)["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_each_container_has_resources_arguments_and_variables_of_its_own() -> None:
    def of(memory: str, name: str) -> dict[str, Any]:
        resources = {"limits": {"memory": memory}}
        return {"resources": resources, "extraArgs": [f"--{name}"], "extraEnv": [{"name": name, "value": "1"}]}

    values = of("1Gi", "a") | {"sidecars": {"cluster": of("2Gi", "b"), "web": of("3Gi", "c")}}
    before, after = containers({}), containers(values)
    for name, memory, letter in (("plugin", "1Gi", "a"), ("cluster", "2Gi", "b"), ("web", "3Gi", "c")):
        assert after[name]["resources"]["limits"]["memory"] == memory
        assert after[name]["args"] == [*before[name]["args"], f"--{letter}"]
        assert after[name]["env"] == [*before[name]["env"], {"name": letter, "value": "1"}]
    assert after["plugin"]["resources"]["requests"] == before["plugin"]["resources"]["requests"]


def test_an_account_of_ones_own_has_the_rights_and_is_not_made() -> None:
    values = {"components": ALL, "serviceAccount": {"create": False, "name": "mine"}}
    made = objects(values)
    assert "ServiceAccount" not in {each["kind"] for each in made}
    assert pod_spec(values)["serviceAccountName"] == "mine"
    subjects = [subject for each in made for subject in each.get("subjects", ())]
    account = {"kind": "ServiceAccount", "name": "mine", "namespace": "gpus"}
    assert subjects
    assert all(subject == account for subject in subjects)
    policies = [each for each in made if each["kind"] == "ValidatingAdmissionPolicy"]
    # What parameters a claim may have doesn't depend on who writes it.
    policies = [each for each in policies if each["metadata"]["name"] != "launcherkit-claim-parameters"]
    for policy in policies:
        (condition,) = policy["spec"]["matchConditions"]
        assert f'"{ACCOUNT("gpus", "mine")}"' in condition["expression"]
    assert len(policies) == 4


def test_the_account_that_is_made_has_its_name_and_annotations() -> None:
    values = {"serviceAccount": {"name": "mine", "annotations": {"a": "b"}}}
    (account,) = [each for each in objects(values) if each["kind"] == "ServiceAccount"]
    assert (account["metadata"]["name"], account["metadata"]["annotations"]) == ("mine", {"a": "b"})


@pytest.mark.parametrize("config", [{"auto": "gpu"}, "auto: gpu\n"], ids=["a map", "a text"])
def test_the_configuration_is_a_map_or_a_text(config: object) -> None:
    (made,) = [each for each in objects({"config": config}) if each["kind"] == "ConfigMap"]
    assert made["data"]["plugin.yaml"] == "auto: gpu\n"


FOREIGN = {"Plugin", "PodMonitor", "PrometheusRule"}
"""Kinds of others."""


def test_what_the_values_give_is_what_kubernetes_has() -> None:
    """By its client's types, which know more kinds than the API of these tests."""
    more = {"podLabels": {"a": "b"}, "podAnnotations": {"c": "d"}, "imagePullSecrets": [{"name": "mine"}]}
    for values in ({}, PLACE, more, {"components": ALL}):
        made = [each for each in objects(values) if each["kind"] not in FOREIGN]
        assert [problem for each in made for problem in wrong(each, f"V1{each['kind']}")] == []


# What is refused, and how


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"image": {"name": "a"}}, "at '/image': additional properties 'name' not allowed"),
        ({"nodeselector": {}}, "additional properties 'nodeselector' not allowed"),
        ({"image": {"tag": 1.2}}, "at '/image/tag': got number, want string"),
        ({"image": {"digest": "0123"}}, "at '/image/digest': '0123' does not match pattern"),
        ({"image": {"pullPolicy": "Sometimes"}}, "at '/image/pullPolicy': value must be one of"),
        ({"components": {"bind": True}}, "at '/components': additional properties 'bind' not allowed"),
        ({"components": {"binding": "yes"}}, "at '/components/binding': got string, want boolean"),
        ({"tolerations": [{"key": "a", "effects": "NoSchedule"}]}, "additional properties 'effects' not allowed"),
        ({"nodeSelector": {"gpu": True}}, "at '/nodeSelector/gpu': got boolean, want string"),
        ({"extraArgs": "--dra"}, "at '/extraArgs': got string, want array"),
        ({"extraEnv": [{"value": "a"}]}, "at '/extraEnv/0': missing property 'name'"),
        ({"imagePullSecrets": ["a"]}, "at '/imagePullSecrets/0': got string, want object"),
        ({"podLabels": {"app.kubernetes.io/name": "a"}}, "invalid propertyName 'app.kubernetes.io/name'"),
        ({"config": ""}, "at '/config': minLength: got 0, want 1"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name must be an account that exists"),
    ],
)
def test_a_value_that_can_not_be_right_is_refused_by_its_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmError) as refused:
        rendered(values)
    assert said in str(refused.value)


@pytest.mark.parametrize(("name", "other"), [(name, other) for name, others in NEEDS.items() for other in others])
def test_a_component_without_one_that_it_changes_is_refused_by_name(name: str, other: str) -> None:
    switches = {switch(each): each == name or (each in NEEDS[name] and each != other) for each in COMPONENTS}
    with pytest.raises(helm.HelmError, match=f"{switch(name)} needs .*{switch(other)}"):
        rendered({"components": switches})


@pytest.mark.parametrize("name", SINCE)
def test_a_component_that_needs_a_newer_kubernetes_is_refused_by_name(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    on = {switch(each): each in (name, "cluster") for each in COMPONENTS}
    older = f"v1.{int(SINCE[name].partition('.')[2]) - 1}.9"
    refusal = f"components.{switch(name)} needs Kubernetes {SINCE[name]}, and this is {older}"
    helm.lint(str(CHART), {"components": on}, kube_version=older)  # what a template refuses is no error to it
    assert refusal in capfd.readouterr().err
    helm.lint(str(CHART), {"components": on | {switch(name): False}}, kube_version=older)
    assert refusal not in capfd.readouterr().err


# What is said afterwards


def test_the_notes_say_how_to_check_and_what_is_next() -> None:
    notes = rendered({})["NOTES.txt"]
    assert "kubectl -n gpus rollout status daemonset/launcherkit-plugin" in notes
    assert "grep -E 'DevicesFound|NothingToAdvertise'" in notes
    assert "permittedHostDevices" in notes


def test_the_notes_warn_of_an_image_that_nobody_can_pull() -> None:
    warning = "image.repository is still the placeholder"
    assert warning in rendered({})["NOTES.txt"]
    assert warning not in rendered({"image": {"repository": "registry.example.com/a"}})["NOTES.txt"]


@pytest.mark.parametrize("component", ["binding", "vgpu"])
def test_the_notes_say_what_comes_before_the_end_where_the_host_is_changed(component: str) -> None:
    advice = "--set components.giveBack=true"
    assert advice in rendered({"components": {component: True}})["NOTES.txt"]
    assert advice not in rendered({})["NOTES.txt"]


# On an API


class Release(NamedTuple):
    """Helm on a namespace of the API."""

    helm: Any
    """As an admin."""
    server: Cluster
    namespace: str

    def there(self, kind: str, name: str = "launcherkit-plugin") -> dict[str, Any] | None:
        """An object of the namespace, or of none."""
        try:
            return self.server.get(kind, name, f"--namespace={self.namespace}")
        except Refused:
            return None


@pytest.fixture(scope="module")
def kinds(api: Cluster) -> Iterator[None]:
    """Kinds that the chart has and this API server has not."""
    text = yaml.safe_dump_all([*yaml.safe_load_all(CRDS.read_text()), *STAND_INS])
    with applied(api, text):
        api.kubectl("wait", "--for=condition=established", "--timeout=60s", "-f", "-", given=text)
        yield


@pytest.fixture
def release(api: Cluster, kinds: None) -> Iterator[Release]:
    namespace = "gpus"
    with api.served_to() as address, helm.Config(kube_apiserver=address, namespace=namespace) as config:
        try:
            yield Release(config, api, namespace)
        finally:
            config.uninstall("gpu", ignore_not_found=True)
            api.kubectl("delete", "namespace", namespace, "--ignore-not-found")


def installed(release: Release, **values: Any) -> dict[str, Any]:
    done: dict[str, Any] = release.helm.install(
        str(CHART), "gpu", values, namespace=release.namespace, create_namespace=True
    )
    return done


def test_a_release_is_installed_where_it_is_asked_for_and_nowhere_else(release: Release) -> None:
    assert installed(release, components=ALL)["status"] == "deployed"
    assert release.there("daemonset")
    assert release.there("configmap")
    assert "launcherkit" not in {each["metadata"]["name"] for each in release.server.get("namespaces")["items"]}


def test_an_upgrade_changes_what_its_values_change_and_a_rollback_takes_that_back(release: Release) -> None:
    installed(release)
    before = release.there("daemonset")
    assert before is not None
    release.helm.upgrade(str(CHART), "gpu", {"image": {"tag": "2"}, "components": {"binding": True}})
    after = release.there("daemonset")
    assert after is not None
    assert after["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":2")
    assert after["spec"]["template"]["spec"]["hostPID"] is True
    assert after["metadata"]["uid"] == before["metadata"]["uid"], "changed, not replaced"
    release.helm.rollback("gpu", version=1)
    again = release.there("daemonset")
    assert again is not None
    assert again["spec"] == before["spec"]
    assert [each["status"] for each in release.helm.history("gpu")] == ["superseded", "superseded", "deployed"]


def test_a_component_that_is_switched_off_leaves_nothing_of_its_own(release: Release) -> None:
    installed(release, components=ALL)
    assert release.there("clusterrole", "launcherkit-plugin-dra")
    release.helm.upgrade(str(CHART), "gpu", {"components": {"dra": False}})
    assert not release.there("clusterrole", "launcherkit-plugin-dra")
    assert not release.there("validatingadmissionpolicy", "launcherkit-plugin-slices")
    assert release.there("clusterrole")


def test_give_back_is_an_upgrade_that_keeps_the_other_values(release: Release) -> None:
    installed(release, components={"binding": True}, podLabels={"team": "a"})
    release.helm.upgrade(str(CHART), "gpu", {"components": {"giveBack": True}}, reuse_values=True)
    made = release.there("daemonset")
    assert made is not None
    spec = made["spec"]["template"]["spec"]
    (config,) = [volume["configMap"]["name"] for volume in spec["volumes"] if volume["name"] == "config"]
    assert (config, spec["hostPID"]) == ("launcherkit-plugin-give-back", True)
    assert made["spec"]["template"]["metadata"]["labels"]["team"] == "a"


def test_nothing_of_a_release_is_left_when_it_is_uninstalled_but_its_namespace(release: Release) -> None:
    summary = installed(release, components=ALL)
    made = [each for each in yaml.safe_load_all(summary["manifest"]) if each]
    assert len(made) > 20
    release.helm.uninstall("gpu")
    left = [each for each in made if release.there(each["kind"], each["metadata"]["name"])]
    assert left == []
    assert release.there("namespace", release.namespace)


def test_upgrades_with_values_that_are_refused_change_nothing(release: Release) -> None:
    installed(release)
    before = release.there("daemonset")
    with pytest.raises(helm.HelmError, match="nodeselector"):
        release.helm.upgrade(str(CHART), "gpu", {"nodeselector": {}})
    assert release.there("daemonset") == before
    assert len(release.helm.history("gpu")) == 1


@pytest.mark.parametrize("level", ["", "restricted", "privileged"])
def test_the_notes_warn_of_a_namespace_in_which_the_pods_may_not_be_allowed(release: Release, level: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": level} if level else {}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": release.namespace, "labels": labels}}
    with applied(release.server, yaml.safe_dump(namespace)), helm.Chart.load(str(CHART)) as chart:
        notes = release.helm.render(chart, name="gpu", namespace=release.namespace)[
            "launcherkit-plugin/templates/NOTES.txt"
        ]
    assert ("pod-security.kubernetes.io/enforce=privileged" in notes) is (level != "privileged")
