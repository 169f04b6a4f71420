"""Answers an AdmissionReview of ``admission.k8s.io/v1`` with the patch of an injection. Pure.

The result is the same as that of the admission policy for the same injection.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from launcherkit_plugin.webhook.injection import PARAMETER, Injection, ParameterValues

_MOST_VALUES = 200_000
"""Of a review. Python takes a hundred bytes for each, so 4 MiB of `[],` would be 85 MB."""
PatchStep: TypeAlias = dict[str, Any]
"""An operation of a JSON patch (RFC 6902)."""


class NoParameter(Exception):
    """A parameter that an injection uses isn't set; the message is its key."""


def patch(pod: Mapping[str, Any], injection: Injection, parameters: ParameterValues) -> list[PatchStep]:
    """The steps that apply an injection to a pod; empty if the pod doesn't match, or has one of the additions already.

    Args:
        pod: as the API server sends it; missing lists count as empty.
        injection: what is added to which pods.
        parameters: the values for ``${KEY}``.

    Raises:
        NoParameter: a parameter that is used isn't set.
    """
    spec = pod["spec"]
    if not _is_meant(pod, injection, parameters) or _has_some(spec, injection):
        return []
    claims = next((_claims(each) for each in _containers(spec) if each["name"] == injection.claims), [])
    steps = []
    for field, items in injection.additions().items():
        if not spec.get(field):
            steps.append(_added(f"/spec/{field}", []))
        for item in items:
            value = _filled(item, parameters)
            if claims and field != "volumes":
                value["resources"] = {**value.get("resources", {}), "claims": claims}
            steps.append(_added(f"/spec/{field}/-", value))
    return steps


def _added(path: str, value: object) -> PatchStep:
    return {"op": "add", "path": path, "value": value}


def _is_meant(pod: Mapping[str, Any], injection: Injection, parameters: ParameterValues) -> bool:
    when, spec = injection.when, pod["spec"]
    labels = pod.get("metadata", {}).get("labels") or {}
    if any(labels.get(name) != value for name, value in when.labels.items()):
        return False
    if when.volume and all(each["name"] != when.volume for each in spec.get("volumes") or ()):
        return False
    if when.runtime_classes:
        name = spec.get("runtimeClassName")
        if not name or name not in _filled(when.runtime_classes, parameters).split(" "):
            return False
    if not when.resources:
        return True
    if when.wanted in labels:
        return bool(labels[when.wanted] == "true")
    beginnings = tuple(filter(None, _filled(when.resources, parameters).split(" ")))
    return any(name.startswith(beginnings) for each in _containers(spec) for name in _limits(each))


def _has_some(spec: Mapping[str, Any], injection: Injection) -> bool:
    """Whether the pod was patched before, or has a container or volume with one of the names."""
    add = injection.add
    names = {item["name"] for item in (*add.init_containers, *add.containers)}
    there = (*(spec.get("initContainers") or ()), *_containers(spec))
    volumes = {item["name"] for item in add.volumes}
    return any(each["name"] in names for each in there) or any(
        each["name"] in volumes for each in spec.get("volumes") or ()
    )


def _containers(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    return spec.get("containers") or []


def _limits(container: Mapping[str, Any]) -> Iterator[str]:
    yield from (container.get("resources") or {}).get("limits") or ()


def _claims(container: Mapping[str, Any]) -> list[object]:
    return (container.get("resources") or {}).get("claims") or []


def _filled(value: Any, parameters: ParameterValues) -> Any:
    """A value of an injection with its parameters replaced, at any depth."""
    if isinstance(value, dict):
        return {key: _filled(item, parameters) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, parameters) for item in value]
    if isinstance(value, str) and (parameter := PARAMETER.fullmatch(value)):
        try:
            return parameters[parameter[1]]
        except KeyError:
            raise NoParameter(parameter[1]) from None
    return value


class BadReview(Exception):
    """The request isn't a review of a pod; the message says what is wrong."""


def answer(request: bytes | bytearray, injection: Injection, parameters: ParameterValues | None) -> bytes:
    """The answer to a review of a pod's creation.

    Args:
        request: the body of the API server's request.
        injection: the one that the request's path names.
        parameters: None if their ConfigMap is missing; then nothing is added.

    Raises:
        BadReview: the request isn't such a review.
    """
    if sum(map(request.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise BadReview(f"more than {_MOST_VALUES} values")
    try:
        review = json.loads(request)
        asked = review["request"]
        uid, pod = asked["uid"], asked["object"]
        if review["apiVersion"] != "admission.k8s.io/v1" or review["kind"] != "AdmissionReview":
            raise BadReview("not an AdmissionReview of admission.k8s.io/v1")
        if asked["kind"]["kind"] != "Pod" or asked["operation"] != "CREATE":
            raise BadReview("not about the creation of a pod")
        response = {"uid": uid, **_decided(pod, injection, parameters)}
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as problem:
        raise BadReview("not an AdmissionReview with a pod") from problem
    return json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}).encode()


def _decided(pod: dict[str, Any], injection: Injection, parameters: ParameterValues | None) -> dict[str, Any]:
    if parameters is None:
        return {"allowed": True, "warnings": [f"{injection.name}: its ConfigMap is missing, so nothing was added"]}
    try:
        steps = patch(pod, injection, parameters)
    except NoParameter as missing:
        return {
            "allowed": False,
            "status": {"message": f"launcherkit: the ConfigMap {injection.name} has no key {missing}", "code": 500},
        }
    if not steps:
        return {"allowed": True}
    return {"allowed": True, "patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(steps).encode()).decode()}
