"""What the daemon asks of the API server: to read a ResourceClaim and write the status of its devices, to keep the
record of this node in a ConfigMap for `launcherkit rehearse --cluster`, and to review tokens.

Tokens are those that browsers send to the page of the node: are they valid, and may their owners see the page
(TokenReview and SubjectAccessReview)? A token must have the page's audience: one for the API server must not be sent to
a server without TLS.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from launcherkit.errors import shown
from launcherkit.request.fields import text
from launcherkit_plugin.cluster.api import Api, ApiProblem, Json, part, read
from launcherkit_plugin.cluster.publisher import owner_of
from launcherkit_plugin.model.device import ClaimRef
from launcherkit_plugin.telemetry.reporter import Reporter


class Questions:
    """Answers questions of one kind in a few threads, so that a slow API server delays nothing else.

    Args:
        threads: how many are answered at once.
        answered: receives the value of each answering message.
        reporter: receives bugs.
    """

    def __init__(self, threads: int, answered: Callable[[Json], None], reporter: Reporter) -> None:
        self._threads = ThreadPoolExecutor(threads)
        self._answered = answered
        self._reporter = reporter

    def submit(self, number: int, subject: str, find: Callable[[], Json]) -> None:
        """Begin to answer a question.

        Args:
            number: of the question, which the answer repeats.
            subject: the subject of the question, for the report of a bug.
            find: returns the answer. If it raises an `ApiProblem`, that is the answer.
        """
        self._threads.submit(self._answer, number, subject, find)

    def _answer(self, number: int, subject: str, find: Callable[[], Json]) -> None:
        try:
            self._answered({"id": number, **find()})
        except ApiProblem as problem:
            self._answered({"id": number, "error": str(problem)})
        except Exception as bug:
            self._reporter.bug(bug, f" while {subject} was asked for")


ALL_CLAIMS_PATH = "/apis/resource.k8s.io/v1/resourceclaims"
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
    claim_object = server.get(claim_path(claim))
    metadata = part(claim_object, "metadata")
    if metadata.get("uid") != claim.uid:
        raise ApiProblem(404, f"it was deleted, and another one has its name: {shown(metadata.get('uid'))}")
    metadata.pop("managedFields", None)
    return {**claim_object, "metadata": metadata}


def ask_for_claim(value: object, server: Api, questions: Questions) -> None:
    """Begin to read the claim that a message ``get-claim`` asks for.

    Raises:
        ValueError: the message is invalid.
    """
    number = value.get("id") if isinstance(value, dict) else None
    if not isinstance(number, int):
        raise ValueError(f"get-claim: {shown(value)} has no number")
    claim = claim_name(value)
    questions.submit(number, claim_path(claim), lambda: {"object": read_claim(server, claim)})


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

    def add(self, value: object) -> None:
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


CONFIGMAPS_PATH = "/api/v1/namespaces/{}/configmaps"
RECORD_NAME = "launcherkit-node-"
"""The name of the ConfigMap, without the node's name at its end."""
LABEL = "launcherkit.io/record"
_KIND = "node"
RECORD_SELECTOR = f"{LABEL}={_KIND}"
_MANAGER = "launcherkit-plugin"


def wanted_record(value: object) -> dict[str, str]:
    """The data in a message ``node-record``: a record, or why there is none.

    Raises:
        ValueError: the message is invalid.
    """
    match value:
        case {"record": str(text), **others} if not others:
            return {"record": text}
        case {"problem": str(text), **others} if not others:
            return {"problem": text}
    raise ValueError(f"node-record: {shown(value)} has neither a record nor a problem")


class NodeRecordWriter:
    """Writes the record of one node.

    Args:
        server: the API server.
        node: the node's name.
        namespace: of the ConfigMap.
        reporter: logs each writing.
    """

    def __init__(self, server: Api, node: str, namespace: str, reporter: Reporter) -> None:
        self._server = server
        self._node = node
        self._namespace = namespace
        self._reporter = reporter
        self._some = threading.Condition()
        self._wanted: Mapping[str, str] | None = None
        self._written: Mapping[str, str] | None = None

    def want(self, data: Mapping[str, str]) -> None:
        """Set the data to write."""
        with self._some:
            self._wanted = data
            self._some.notify_all()

    def write(self) -> bool:
        """Wait until the data differs from what was written, and write it. Returns True: there may be more.

        Raises:
            ApiProblem: the server doesn't answer, or refuses it.
        """
        with self._some:
            self._some.wait_for(lambda: self._wanted != self._written)
            data = self._wanted
        assert data is not None
        name = RECORD_NAME + self._node
        owner = {key: value for key, value in owner_of(self._server, self._node).items() if key != "controller"}
        metadata = {"name": name, "namespace": self._namespace, "labels": {LABEL: _KIND}, "ownerReferences": [owner]}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"node": self._node, **data}}
        self._server.apply(f"{CONFIGMAPS_PATH.format(self._namespace)}/{name}", body, _MANAGER)
        self._written = data
        self._reporter.log("info", f"the node's record is in the ConfigMap {self._namespace}/{name}")
        return True


TOKENREVIEWS_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESSREVIEWS_PATH = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
AUDIENCE = "page.launcherkit.io"
"""The audience that a token must have: ``kubectl create token NAME --audience page.launcherkit.io``."""
PAGE_URL = "/launcherkit-plugin/page"
"""The ``nonResourceURL`` that the owner must have the right to get. The API server itself serves nothing there."""
TOKENS_AT_ONCE = 2


def ask_for_review(value: object, server: Api, questions: Questions) -> None:
    """Begin to review the token in a message ``review-token``.

    Raises:
        ValueError: the message is invalid. The error doesn't quote it: it may contain a token.
    """
    match value:
        case {"id": int(number), "token": str(token)}:
            questions.submit(number, "a token's review", lambda: review_of(server, token))
        case _:
            raise ValueError("review-token: that has no number and no token")


def review_of(server: Api, token: str) -> Json:
    """The review of a token, as in a message ``token``; raises the same as `refusal_of`."""
    reason = refusal_of(server, token)
    return {"allowed": not reason, "why": reason}


def refusal_of(server: Api, token: str) -> str:
    """Why a token doesn't grant access to the page; empty if it does.

    Raises:
        ApiProblem: the server doesn't answer, or refuses the review.
    """
    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [AUDIENCE]},
    }
    status = read(server.post(TOKENREVIEWS_PATH, review), "status")
    # An authenticator that doesn't support audiences returns none: its tokens are for the API server.
    if status.pop("authenticated") is not True or AUDIENCE not in status.listed("audiences"):
        return f"the token is invalid, has expired, or is not for the audience {AUDIENCE}"
    user = status.inner("user")
    name = user.needed("username", text, "text")
    access = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": name,
            "uid": user.pop("uid") or "",
            "groups": list(user.listed("groups")),
            "extra": user.inner("extra").rest(),
            "nonResourceAttributes": {"path": PAGE_URL, "verb": "get"},
        },
    }
    if read(server.post(ACCESSREVIEWS_PATH, access), "status").pop("allowed") is not True:
        return f"{name} may not get {PAGE_URL}"
    return ""
