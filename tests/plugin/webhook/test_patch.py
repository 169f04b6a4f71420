"""What an injection does to which pods. tests/api has a server make the same of them by the policy."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from deploy.render import injections
from launcherkit_plugin.webhook.injection import Injection
from launcherkit_plugin.webhook.review import BadReview, NoParameter, answer, patch
from tests.support.json_patch import with_additions
from tests.support.launcher_pods import (
    CONSOLE_LOG,
    LABEL,
    VALUES,
    asking_for,
    kata_pod,
    labelled,
    launcher_pod,
    with_claim,
    with_init,
    without_sockets,
    without_volumes,
)

INJECTIONS = {name: Injection(**yaml.safe_load(text)) for name, text in injections(VALUES).items()}
HOOK, LICENCE = INJECTIONS["launcherkit-sidecar"], INJECTIONS["kata-vgpu-licence"]
SIDECAR = "plugin-sidecar-launcherkit"
YES = launcher_pod(**{LABEL: "true"})

HOOKED = {
    "with the label": YES,
    "with the label, for other devices": asking_for(YES, "example.com/other"),
    "with the label, by a claim": with_claim(YES),
    "without the label, for our devices": launcher_pod(),
    "beside another": with_init(YES, CONSOLE_LOG),
}
LEFT = {
    "whose label says no": launcher_pod(**{LABEL: "false"}),
    "without the label, for other devices": asking_for(launcher_pod(), "example.com/other", "amd.com/nvidia.com"),
    "without the label, by a claim": with_claim(launcher_pod()),
    "with the label on another pod": labelled(YES, **{"kubevirt.io": "virt-handler"}),
    "where the gate Plugins is off": without_sockets(YES),
    "with no volume at all": without_volumes(YES),
    "that has it": with_init(YES, {"name": SIDECAR, "image": "a"}),
    "of a RuntimeClass": kata_pod(),
}


def hooked(pod: dict[str, Any]) -> dict[str, Any]:
    return with_additions(pod, patch(pod, HOOK, HOOK.parameters))


@pytest.mark.parametrize("pod", HOOKED.values(), ids=HOOKED)
def test_a_launcher_pod_that_asks_for_our_devices_gets_the_hook_and_nothing_else(pod: dict[str, Any]) -> None:
    changed = hooked(pod)
    *others, added = changed["spec"].pop("initContainers")
    assert (added["name"], added["image"]) == (SIDECAR, VALUES["images"]["sidecar"])  # type: ignore[index]
    assert changed["spec"] == {key: value for key, value in pod["spec"].items() if key != "initContainers"}
    assert others == pod["spec"].get("initContainers", [])


@pytest.mark.parametrize("pod", LEFT.values(), ids=LEFT)
def test_any_other_pod_stays(pod: dict[str, Any]) -> None:
    assert patch(pod, HOOK, HOOK.parameters) == []


@pytest.mark.parametrize("pod", HOOKED.values(), ids=HOOKED)
def test_what_was_patched_is_not_patched_again(pod: dict[str, Any]) -> None:
    assert patch(hooked(pod), HOOK, HOOK.parameters) == []


def test_parameters_are_filled_in_at_any_depth() -> None:
    add = {
        "containers": [
            {
                "name": "a",
                "image": "${image}",
                "args": ["--log", "${level}", ["${image}"]],
                "env": [{"name": "LEVEL", "value": "${level}"}],
                "ports": [{"containerPort": 8080}],
            }
        ]
    }
    fields = {"name": "one", "when": {}, "parameters": {"image": "x", "level": "y"}, "add": add}
    injection = Injection.model_validate(fields)
    changed = with_additions(launcher_pod(), patch(launcher_pod(), injection, {"image": "b:1", "level": "debug"}))
    assert changed["spec"]["containers"][-1] == {
        "name": "a",
        "image": "b:1",
        "args": ["--log", "debug", ["b:1"]],
        "env": [{"name": "LEVEL", "value": "debug"}],
        "ports": [{"containerPort": 8080}],
    }
    with pytest.raises(NoParameter, match="level"):
        patch(launcher_pod(), injection, {"image": "b:1"})


def test_the_claims_of_the_launcher_are_the_hooks_too() -> None:
    (container,) = hooked(with_claim(YES))["spec"]["initContainers"]
    assert container["resources"]["claims"] == [{"name": "gpu", "request": "card"}]
    assert container["resources"]["limits"]
    (container,) = hooked(YES)["spec"]["initContainers"]
    assert "claims" not in container["resources"]


def test_parameters_choose_the_image_and_the_resources() -> None:
    chosen = {"image": "registry.example/other:2", "resources": "amd.com/  example.com/"}
    assert patch(launcher_pod(), HOOK, chosen) == []
    steps = patch(asking_for(launcher_pod(), "example.com/other"), HOOK, chosen)
    assert steps[-1]["value"]["image"] == "registry.example/other:2"
    assert patch(launcher_pod(), HOOK, chosen | {"resources": ""}) == []


def test_a_parameter_that_is_missing_is_named_where_it_is_needed() -> None:
    with pytest.raises(NoParameter, match="image"):
        patch(YES, HOOK, {"resources": "nvidia.com/"})
    assert patch(launcher_pod(**{LABEL: "false"}), HOOK, {}) == []


def test_a_kata_pod_with_a_card_gets_the_licence_daemon_and_its_volumes() -> None:
    pod = kata_pod()
    changed = with_additions(pod, patch(pod, LICENCE, LICENCE.parameters))
    (daemon,) = changed["spec"]["initContainers"]
    assert daemon["name"] == "vgpu-licence"
    secret, state = changed["spec"]["volumes"]
    assert secret["secret"]["secretName"] == "vgpu-licence"
    assert "emptyDir" in state
    assert changed["spec"]["containers"] == pod["spec"]["containers"]


@pytest.mark.parametrize(
    "pod",
    [kata_pod("runc"), asking_for(kata_pod(), "cpu"), YES, kata_pod() | {"spec": {"containers": [{"name": "a"}]}}],
    ids=["another class", "no card", "a launcher", "no class"],
)
def test_no_other_pod_gets_the_licence_daemon(pod: dict[str, Any]) -> None:
    assert patch(pod, LICENCE, LICENCE.parameters) == []


def test_a_pod_with_something_of_one_of_the_names_stays() -> None:
    pod = kata_pod()
    pod["spec"]["volumes"] = [{"name": "vgpu-licence", "emptyDir": {}}]
    assert patch(pod, LICENCE, LICENCE.parameters) == []


def test_without_native_sidecars_the_container_is_an_ordinary_one() -> None:
    text = injections({**VALUES, "nativeSidecars": False})["launcherkit-sidecar"]
    steps = patch(YES, Injection(**yaml.safe_load(text)), HOOK.parameters)
    assert [step["path"] for step in steps] == ["/spec/containers/-"]
    assert "restartPolicy" not in steps[0]["value"]


def test_a_review_with_more_values_than_any_pod_has_is_not_read() -> None:
    with pytest.raises(BadReview, match="more than 200000 values"):
        answer(json.dumps({"request": [0] * 200_000}).encode(), HOOK, None)


POD = {"spec": {"containers": [{"name": "compute", "resources": {"limits": {"nvidia.com/GA102": "1"}}}]}}


def review(pod: object, **request: object) -> bytes:
    asked = {"uid": "u", "operation": "CREATE", "kind": {"kind": "Pod"}, "object": pod, **request}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}).encode()


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (b"{", "not an AdmissionReview with a pod: Expecting property name"),
        (b"[]", r"with a pod: \$: a list is not an object"),
        (b'{"kind": 1, "kind": 2}', "the key 'kind' appears twice in one object"),
        (b'{"apiVersion": "v1", "kind": "Pod"}', "not an AdmissionReview of admission.k8s.io/v1"),
        (review(POD, uid=7), r"\$.request.uid: 7 is not the UID of the request"),
        (review(POD, operation="UPDATE"), "not about the creation of a pod"),
        (review(POD, kind={"kind": "Node"}), "not about the creation of a pod"),
        (review(None), r"\$.request.object: missing: an object"),
        (review({}), r"\$.request.object.spec: missing: an object"),
        (review({"spec": {"containers": {}}}), r"\$.request.object.spec.containers: an object is not a list"),
        (review({"spec": {"containers": [{}]}}), r"spec.containers\[0\].name: missing: a name"),
        (review({"spec": {"volumes": [1]}}), r"spec.volumes\[0\]: 1 is not an object"),
        (review(POD | {"metadata": {"labels": []}}), "object.metadata.labels: a list is not an object"),
        (
            review({"spec": {"containers": [{"name": "a", "resources": {"limits": 1}}]}}),
            r"spec.containers\[0\].resources.limits: 1 is not an object",
        ),
    ],
)
def test_what_is_no_review_of_a_pod_is_refused_with_the_place_that_is_wrong(body: bytes, wrong: str) -> None:
    with pytest.raises(BadReview, match=wrong):
        answer(body, HOOK, HOOK.parameters)


def test_a_review_of_a_pod_with_nulls_for_lists_is_answered() -> None:
    body = review({"spec": {"containers": [{"name": "a", "resources": None}], "volumes": None, "initContainers": None}})
    assert json.loads(answer(body, HOOK, HOOK.parameters))["response"] == {"uid": "u", "allowed": True}
