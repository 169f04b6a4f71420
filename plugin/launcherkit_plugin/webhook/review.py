"""AdmissionReview of ``admission.k8s.io/v1``: what the API server asks, and the answer."""

from __future__ import annotations

import base64
import json
from typing import Any

from launcherkit_plugin.webhook.injection import Injection, ParameterValues
from launcherkit_plugin.webhook.patch import NoParameter, patch


class BadReview(Exception):
    """What was sent is no review of a pod; the text says what is wrong."""


def answer(request: bytes, injection: Injection, parameters: ParameterValues | None) -> bytes:
    """The answer to a review of a pod that is to be made.

    Args:
        request: the body of the API server's request.
        injection: the one that the request's path names.
        parameters: None where their ConfigMap is missing, and nothing is added.

    Raises:
        BadReview: it isn't what an API server sends.
    """
    try:
        review = json.loads(request)
        asked = review["request"]
        uid, pod = asked["uid"], asked["object"]
        if review["apiVersion"] != "admission.k8s.io/v1" or review["kind"] != "AdmissionReview":
            raise BadReview("not an AdmissionReview of admission.k8s.io/v1")
        if asked["kind"]["kind"] != "Pod" or asked["operation"] != "CREATE":
            raise BadReview("not about a pod that is to be made")
        told = {"uid": uid, **_decided(pod, injection, parameters)}
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as problem:
        raise BadReview("not an AdmissionReview with a pod") from problem
    return json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": told}).encode()


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
