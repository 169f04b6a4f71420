"""Answers an AdmissionReview of ``admission.k8s.io/v1`` with the patch of an injection. Pure.

The result is the same as that of the admission policy for the same injection.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from launcherkit.request.fields import Fields, Problems, strict_json, string
from launcherkit_plugin.webhook.injection import PARAMETER, Injection, ParameterValues

_MOST_VALUES = 200_000
"""Of a review. Python takes a hundred bytes for each, so 4 MiB of `[],` would be 85 MB."""
PatchStep: TypeAlias = dict[str, Any]
"""An operation of a JSON patch (RFC 6902)."""


class NoParameter(Exception):
    """A parameter that an injection uses isn't set; the message is its key."""


class BadReview(Exception):
    """The request isn't a review of a pod; the message says what is wrong, and where."""


def patch(pod: Mapping[str, Any], injection: Injection, parameters: ParameterValues) -> list[PatchStep]:
    """The steps that apply an injection to a pod; empty if the pod doesn't match, or has one of the additions already.

    Args:
        pod: as the API server sends it; missing lists count as empty.
        injection: what is added to which pods.
        parameters: the values for ``${KEY}``.

    Raises:
        NoParameter: a parameter that is used isn't set.
        BadReview: it isn't a pod.
    """
    return _patch(_read_pod(Fields(pod, "", _Faults())), injection, parameters)


class _Pod(NamedTuple):
    """What injections look at in a pod."""

    labels: Mapping[str, object]
    runtime_class: str
    names: Mapping[str, tuple[str, ...]]
    """Of its containers and volumes, by the field of the pod's spec."""
    resources: frozenset[str]
    """Those that its containers ask for."""
    claims: Mapping[str, Sequence[object]]
    """The claims of each container, by the container's name."""


_LISTS = ("initContainers", "containers", "volumes")


def _read_pod(pod: Fields) -> _Pod:
    spec = pod.inner("spec", required=True)
    entries = {field: spec.objects(field) for field in _LISTS}
    names = {
        field: tuple(entry.required("name", string, "a name", "") for entry in listed)
        for field, listed in entries.items()
    }
    demands = [entry.inner("resources") for entry in entries["containers"]]
    return _Pod(
        pod.inner("metadata").mapping("labels"),
        spec.optional("runtimeClassName", string, "the name of a RuntimeClass") or "",
        names,
        frozenset(resource for demand in demands for resource in demand.mapping("limits")),
        {name: demand.listed("claims") for name, demand in zip(names["containers"], demands, strict=True)},
    )


def _patch(pod: _Pod, injection: Injection, parameters: ParameterValues) -> list[PatchStep]:
    if not _is_meant(pod, injection, parameters) or _has_some(pod, injection):
        return []
    claims = pod.claims.get(injection.claims)
    steps = []
    for field, items in injection.additions().items():
        if not pod.names[field]:
            steps.append(_added(f"/spec/{field}", []))
        for item in items:
            value = _filled(item, parameters)
            if claims and field != "volumes":
                value["resources"] = {**(value.get("resources") or {}), "claims": claims}
            steps.append(_added(f"/spec/{field}/-", value))
    return steps


def _added(path: str, value: object) -> PatchStep:
    return {"op": "add", "path": path, "value": value}


def _is_meant(pod: _Pod, injection: Injection, parameters: ParameterValues) -> bool:
    when = injection.when
    if any(pod.labels.get(name) != value for name, value in when.labels.items()):
        return False
    if when.volume and when.volume not in pod.names["volumes"]:
        return False
    if when.runtime_classes:
        meant = _filled(when.runtime_classes, parameters).split(" ")
        if not pod.runtime_class or pod.runtime_class not in meant:
            return False
    if not when.resources:
        return True
    if when.wanted in pod.labels:
        return bool(pod.labels[when.wanted] == "true")
    beginnings = tuple(filter(None, _filled(when.resources, parameters).split(" ")))
    return any(resource.startswith(beginnings) for resource in pod.resources)


def _has_some(pod: _Pod, injection: Injection) -> bool:
    """Whether the pod was patched before, or has a container or volume with one of the names."""
    add = injection.add
    containers = {item["name"] for item in (*add.init_containers, *add.containers)}
    volumes = {item["name"] for item in add.volumes}
    return not (
        containers.isdisjoint((*pod.names["initContainers"], *pod.names["containers"]))
        and volumes.isdisjoint(pod.names["volumes"])
    )


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


_API_VERSION, _KIND = "admission.k8s.io/v1", "AdmissionReview"


class _Faults(Problems):
    """The first thing that is wrong in a review."""

    def add(self, where: str, message: str) -> None:
        raise BadReview(f"not an AdmissionReview with a pod: {where}: {message}")


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
        review = Fields(strict_json(request), "$", _Faults())
    except ValueError as problem:
        raise BadReview(f"not an AdmissionReview with a pod: {problem}") from problem
    if (review.pop("apiVersion"), review.pop("kind")) != (_API_VERSION, _KIND):
        raise BadReview("not an AdmissionReview of admission.k8s.io/v1")
    asked = review.inner("request", required=True)
    uid = asked.required("uid", string, "the UID of the request", "")
    if asked.pop("operation") != "CREATE" or asked.inner("kind").pop("kind") != "Pod":
        raise BadReview("not about the creation of a pod")
    response = {"uid": uid, **_decided(asked.inner("object", required=True), injection, parameters)}
    return json.dumps({"apiVersion": _API_VERSION, "kind": _KIND, "response": response}).encode()


def _decided(pod: Fields, injection: Injection, parameters: ParameterValues | None) -> dict[str, Any]:
    if parameters is None:
        return {"allowed": True, "warnings": [f"{injection.name}: its ConfigMap is missing, so nothing was added"]}
    try:
        steps = _patch(_read_pod(pod), injection, parameters)
    except NoParameter as missing:
        return {
            "allowed": False,
            "status": {"message": f"launcherkit: the ConfigMap {injection.name} has no key {missing}", "code": 500},
        }
    if not steps:
        return {"allowed": True}
    return {"allowed": True, "patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(steps).encode()).decode()}
