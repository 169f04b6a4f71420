"""Requests of the daemon about ResourceClaims: reading one, and writing the status of its devices."""

from __future__ import annotations

import re
import threading
from typing import Any

from launcherkit.errors import shown
from launcherkit_plugin.cluster.api import Api, ApiProblem, Json, part
from launcherkit_plugin.cluster.questions import Questions
from launcherkit_plugin.model.device import ClaimRef
from launcherkit_plugin.telemetry.reporter import Reporter

CLAIMS_PATH = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
CLAIMS_AT_ONCE = 4
"""How many are read at once: the kubelet allows 45 s for all claims of a pod."""
STATUS_FAILS = "a claim's status can't be written: {}"
_FOR_GOOD = {400, 404, 409, 422}
"""HTTP statuses after which writing isn't retried: the claim is gone or another one, or the status is invalid."""


def claim_path(claim: ClaimRef) -> str:
    """The path of a claim at the API server."""
    return f"{CLAIMS_PATH.format(claim.namespace)}/{claim.name}"


def claim_name(value: object) -> ClaimRef:
    """The claim that a message names.

    Raises:
        ValueError: it names none, or its names can't be part of a path.
    """
    match value:
        case {"namespace": str(namespace), "name": str(name), "uid": str(uid)}:
            if all(re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", each) for each in (namespace, name)):
                return ClaimRef(namespace, name, uid)
    raise ValueError(f"{shown(value)} names no ResourceClaim")


def read_claim(server: Api, claim: ClaimRef) -> Json:
    """The claim as it is now, without ``managedFields``.

    Raises:
        ApiProblem: it is gone, another one has its name, or the server doesn't answer.
    """
    found = server.get(claim_path(claim))
    metadata = part(found, "metadata")
    if metadata.get("uid") != claim.uid:
        raise ApiProblem(404, f"it was deleted, and another one has its name: {shown(metadata.get('uid'))}")
    metadata.pop("managedFields", None)
    return found


def ask_for_claim(value: object, server: Api, questions: Questions) -> None:
    """Begin to read the claim that a message ``get-claim`` asks for.

    Raises:
        ValueError: the message is invalid.
    """
    number = value.get("id") if isinstance(value, dict) else None
    if not isinstance(number, int):
        raise ValueError(f"get-claim: {shown(value)} has no number")
    claim = claim_name(value)
    questions.take(number, claim_path(claim), lambda: {"object": read_claim(server, claim)})


class ClaimStatusWriter:
    """Writes the status of claims, one after the other. If several come for a claim, only the last is written.

    Args:
        server: the API server.
        reporter: receives errors of statuses that will never be written.
    """

    def __init__(self, server: Api, reporter: Reporter) -> None:
        self._server = server
        self._reporter = reporter
        self._statuses: dict[ClaimRef, list[Json]] = {}
        self._some = threading.Condition()

    def take(self, value: object) -> None:
        """Queue the status in a message ``claim-status``.

        Raises:
            ValueError: the message is invalid.
        """
        match value:
            case {"devices": list(devices)} if all(isinstance(each, dict) for each in devices):
                with self._some:
                    self._statuses[claim_name(value)] = devices
                    self._some.notify()
                return
        raise ValueError(f"claim-status: {shown(value)} has no list of devices")

    def write(self) -> bool:
        """Wait for a status and write it. Returns True: there may be more.

        Raises:
            ApiProblem: it can't be written now; it stays queued.
        """
        with self._some:
            self._some.wait_for(lambda: self._statuses)
            claim, devices = next(iter(self._statuses.items()))
            del self._statuses[claim]
        try:
            apply_status(self._server, claim, devices)
        except ApiProblem as problem:
            if problem.status not in _FOR_GOOD:
                with self._some:
                    self._statuses.setdefault(claim, devices)  # unless there is a later one
                raise
            self._reporter.once(self, "warning", STATUS_FAILS.format(problem), status=problem.status)
        else:
            self._reporter.solved(self)
        return True


def apply_status(server: Api, claim: ClaimRef, devices: list[Json]) -> None:
    """Set ``status.devices`` of a claim for this driver; entries of other drivers stay.

    Raises:
        ApiProblem: it is refused; with 409, it is another claim with that name.
    """
    body: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
        "status": {"devices": devices},
    }
    server.apply(f"{claim_path(claim)}/status", body, "launcherkit-plugin")
