"""ResourceClaims for the daemon: what one says now, and what its status is to say of the node's devices.

Claims are read by a few threads, so that one that waits for a slow server keeps no other waiting; a kubelet allows 45 s
for all claims of a pod. Statuses are written one after another, the last one of each claim; one that can't be written
is tried again after a pause.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from launcherkit.errors import shown
from launcherkit_plugin.cluster.api import ApiProblem, Json, part
from launcherkit_plugin.model.backoff import Backoff
from launcherkit_plugin.model.device import ClaimRef
from launcherkit_plugin.telemetry.reporter import Reporter

CLAIMS_PATH = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
_READERS = 4
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 300.0
_FOR_GOOD = {400, 404, 409, 422}
"""The claim is gone or another one, or the server will never take it."""


class ClaimServer(Protocol):
    """As much of `Api` as is needed."""

    def get(self, path: str, **query: str) -> Json: ...

    def apply(self, path: str, body: Json, manager: str) -> Json: ...


def claim_path(claim: ClaimRef) -> str:
    """Where the API server has it."""
    return f"{CLAIMS_PATH.format(claim.namespace)}/{claim.name}"


def claim_name(value: object) -> ClaimRef:
    """The claim that a message names.

    Raises:
        ValueError: it names none; its namespace and name become part of a path.
    """
    match value:
        case {"namespace": str(namespace), "name": str(name), "uid": str(uid)}:
            if all(re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", each) for each in (namespace, name)):
                return ClaimRef(namespace, name, uid)
    raise ValueError(f"{shown(value)} names no ResourceClaim")


def read_claim(server: ClaimServer, claim: ClaimRef) -> Json:
    """The claim as it is now, without who has changed which field.

    Raises:
        ApiProblem: it is gone, another one has its name, or the server doesn't answer.
    """
    found = server.get(claim_path(claim))
    metadata = part(found, "metadata")
    if metadata.get("uid") != claim.uid:
        raise ApiProblem(404, f"it was deleted, and another one has its name: {shown(metadata.get('uid'))}")
    metadata.pop("managedFields", None)
    return found


class ClaimRequests:
    """Answers what a daemon asks about claims, and writes what it says of them.

    Args:
        server: where the claims are.
        answered: is given the value of a message ``claim``.
        reporter: is told of a status that can't be written.
    """

    def __init__(self, server: ClaimServer, answered: Callable[[Json], None], reporter: Reporter) -> None:
        self._server = server
        self._answered = answered
        self._reporter = reporter
        self._readers = ThreadPoolExecutor(_READERS, "claims")
        self._statuses: dict[ClaimRef, list[Json]] = {}
        self._some = threading.Condition()

    def get(self, value: object) -> None:
        """Begin to read a claim.

        Raises:
            ValueError: that is no request.
        """
        number = value.get("id") if isinstance(value, dict) else None
        if not isinstance(number, int):
            raise ValueError(f"get-claim: {shown(value)} has no number")
        self._readers.submit(self._read, number, claim_name(value))

    def _read(self, number: int, claim: ClaimRef) -> None:
        try:
            self._answered({"id": number, "object": read_claim(self._server, claim)})
        except ApiProblem as problem:
            self._answered({"id": number, "error": str(problem)})
        except Exception as bug:
            self._reporter.bug(bug, f" while {claim_path(claim)} was read")

    def status(self, value: object) -> None:
        """Take what a claim's status is to say.

        Raises:
            ValueError: it says nothing of devices.
        """
        match value:
            case {"devices": list(devices)} if all(isinstance(each, dict) for each in devices):
                with self._some:
                    self._statuses[claim_name(value)] = devices
                    self._some.notify()
                return
        raise ValueError(f"claim-status: {shown(value)} has no list of devices")

    def write(self, wait: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic) -> None:
        """Write statuses for ever."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            with self._some:
                self._some.wait_for(lambda: self._statuses)
                claim, devices = next(iter(self._statuses.items()))
                del self._statuses[claim]
            try:
                apply_status(self._server, claim, devices)
                backoff.succeeded(self)
                self._reporter.well(self)
            except ApiProblem as problem:
                if self._reporter.is_new(self, str(problem)):
                    self._reporter.log(
                        "warning", f"a claim's status can't be written: {problem}", status=problem.status
                    )
                if problem.status not in _FOR_GOOD:
                    with self._some:
                        self._statuses.setdefault(claim, devices)  # unless there is a later one
                    wait(backoff.failed(self, clock()))


def apply_status(server: ClaimServer, claim: ClaimRef, devices: list[Json]) -> None:
    """Say what ``status.devices`` of a claim is to have of this driver; other drivers' devices stay.

    Raises:
        ApiProblem: it is refused; with 409 it is another claim of that name.
    """
    body: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
        "status": {"devices": devices},
    }
    server.apply(f"{claim_path(claim)}/status", body, "launcherkit-plugin")
