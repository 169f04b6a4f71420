"""The daemon's side of the connection to the cluster container: a socket to which the container connects.

Whoever can open the socket decides what KubeVirt's configuration is. So only its user and group can open it: in a pod,
the group is the pod's ``fsGroup``, and only the two containers mount the folder.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

from launcherkit.errors import CannotServe, shown
from launcherkit.rpc.unix_socket import socket_at
from launcherkit_plugin.cluster.outbox import Outbox, Specs
from launcherkit_plugin.cluster.protocol import (
    HELLO,
    LINE_BYTES,
    Message,
    answer,
    asking_pods,
    awaiting_claims,
    check_hello,
    labels,
    line_of,
    parse,
    settings,
)
from launcherkit_plugin.model.device import AwaitingClaim, without_names
from launcherkit_plugin.model.errors import (
    CLAIM_UNREADABLE,
    CLUSTER_SOCKET_NOT_MADE,
    NO_CLUSTER,
    TOKEN_NOT_REVIEWED,
    NoCluster,
)
from launcherkit_plugin.model.same_device import AskingPod
from launcherkit_plugin.model.wakeups import Wakeup, WakeupQueue
from launcherkit_plugin.telemetry.reporter import EventType, Log

ClusterSettings: TypeAlias = tuple[Mapping[str, Any] | None, Mapping[str, str]]
"""KubeVirt's settings, empty without KubeVirt and None while they are unknown; and the node's labels."""

HELLO_SECONDS = 10.0
_MESSAGE_CHARACTERS = 1024
"""The longest message that events.k8s.io allows."""


class ClusterSocket:
    """Sends messages to the cluster container, and keeps what it sends. Also a
    `launcherkit_plugin.telemetry.reporter.Recorder`.

    If several containers connect, the last one is used. Unless it listens, Events are dropped, and nothing is known.
    """

    def __init__(self, log: Log, wakeups: WakeupQueue) -> None:
        self._log = log
        self._wakeups = wakeups
        self.listens = False
        """Whether a cluster container can connect."""
        self._wanted: list[str] = []
        self._down = Outbox()
        self._some = asyncio.Event()
        self._told_of_pods: Callable[[Mapping[str, AskingPod], Mapping[str, AskingPod]], object] = lambda _, __: None
        self._handled: dict[str, Any] = {}
        self._known = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        # Random: the container may still have an answer for an earlier daemon, whose numbers must differ from ours.
        self._requests = int.from_bytes(os.urandom(6))

    @asynccontextmanager
    async def listening(self, path: str) -> AsyncIterator[None]:
        """Listen until the block ends.

        Raises:
            CLUSTER_SOCKET_NOT_MADE: another process answers there, or the socket can't be created.
        """
        with socket_at(path, lambda path: _not_made(path, "another process answers there"), _not_made) as (made, _):
            server = await asyncio.start_unix_server(self._attend, sock=made, limit=LINE_BYTES)
            self.listens = True
            try:
                yield
            finally:
                server.close()
                if self._writer is not None:
                    self._writer.transport.abort()

    def event(self, type: EventType, reason: str, message: str) -> None:  # noqa: A002  # Kubernetes' name
        """Queue an Event; never waits. Those of a Node are in the namespace ``default``, so it names no pod."""
        if self.listens:
            body = {"type": type, "reason": reason, "message": without_names(message)[:_MESSAGE_CHARACTERS]}
            self._down.event(body)
            self._some.set()

    def publish_slices(self, driver: str, specs: Specs) -> None:
        """Set the ResourceSlices of a driver on this node; never waits.

        Args:
            driver: its name, such as ``pci.launcherkit.io``.
            specs: the ``spec`` of each slice, without ``driver``, ``nodeName`` and ``pool``; if empty, all slices are
                deleted. The caller must not change them afterwards.
        """
        if self.listens:
            self._down.slices(driver, specs)
            self._some.set()

    def publish_record(self, body: Mapping[str, str]) -> None:
        """Publish this node's record, ``{"record": ...}`` or ``{"problem": ...}``; never waits."""
        if self.listens:
            self._down.record(body)
            self._some.set()

    async def get_claim(self, namespace: str, name: str, uid: str, seconds: float) -> dict[str, Any]:
        """A ResourceClaim as the API server has it now. The container may connect while this waits.

        Raises:
            CLAIM_UNREADABLE: it doesn't exist, another one has its name, or there was no answer within ``seconds``.
        """
        try:
            return await self._ask("get-claim", {"namespace": namespace, "name": name, "uid": uid}, seconds)
        except _NotAnswered as problem:
            raise CLAIM_UNREADABLE(
                f"the ResourceClaim {namespace}/{name} can't be read: {problem}",
                "The kubelet tries again by itself. If it goes on, see the log of the container `cluster`: it must be "
                "connected, reach the API server, and be allowed to get resourceclaims, which the component `dra` "
                "allows.",
                file=f"ResourceClaim {namespace}/{name}",
            ) from None

    async def review_token(self, token: str, seconds: float) -> str | None:
        """Have the cluster review a token for the page of the node: None admits its owner, a text says why not.

        Raises:
            TOKEN_NOT_REVIEWED: there was no answer within ``seconds``.
        """
        try:
            review = await self._ask("review-token", {"token": token}, seconds)
        except _NotAnswered as problem:
            raise TOKEN_NOT_REVIEWED(
                f"the token can't be reviewed: {problem}",
                "See the log of the container `cluster`: it must be connected, reach the API server, and be allowed to "
                "create tokenreviews and subjectaccessreviews, which the component `page` allows.",
            ) from None
        return None if review["allowed"] else str(review["why"])

    async def _ask(self, name: str, body: Mapping[str, object], seconds: float) -> dict[str, Any]:
        """Ask the cluster container a question and return the answer.

        Raises:
            _NotAnswered: there is no answer; says why.
        """
        if not self.listens:
            raise _NotAnswered("nothing here connects to the cluster")
        self._requests += 1
        number = self._requests
        self._answers[number] = asyncio.get_running_loop().create_future()
        self._down.ask(number, name, body)
        self._some.set()
        try:
            return await asyncio.wait_for(self._answers[number], seconds)
        except TimeoutError:
            reason = "has not answered" if self._writer is not None else "is not connected"
            raise _NotAnswered(f"the cluster's process {reason} within {seconds:g} s") from None
        finally:
            del self._answers[number]
            self._down.answered(number)

    def claim_status(self, namespace: str, name: str, uid: str, devices: Sequence[Mapping[str, Any]]) -> None:
        """Set this driver's devices in ``status.devices`` of a claim; never waits.

        Args:
            namespace, name, uid: of the claim.
            devices: each with ``driver``, ``pool``, ``device``, and ``conditions`` or ``data``.
        """
        if self.listens:
            self._down.status(uid, {"namespace": namespace, "name": name, "uid": uid, "devices": list(devices)})
            self._some.set()

    def want_kubevirt(self) -> None:
        """Ask for KubeVirt's settings and the node's labels, now and whenever they change."""
        self._want("kubevirt")

    def want_pods(self, told: Callable[[Mapping[str, AskingPod], Mapping[str, AskingPod]], object]) -> None:
        """Ask for the pods of the node, and those with the label `same_device.LABEL` that are on it or on none.

        Args:
            told: called with both, by ``namespace/name``, once both are known and whenever they change.
        """
        self._told_of_pods = told
        self._want("pods")

    def want_claims(self) -> None:
        """Ask for the claims whose pods wait for devices of this node; they become `awaiting`."""
        self._want("claims")

    @property
    def awaiting(self) -> Sequence[AwaitingClaim] | None:
        """Those claims as they were sent last; None: they are not known."""
        return self._handled.get("awaiting")

    def _want(self, name: str) -> None:
        if name not in self._wanted:
            self._wanted.append(name)
            if self._writer is not None:
                self._writer.write(line_of("want", self._wanted))

    @property
    def facts(self) -> ClusterSettings:
        """What the cluster container sent last, even if it isn't connected any more."""
        if "kubevirt" not in self._wanted or not self._known.is_set():
            return None, {}
        return self._handled["kubevirt"] or {}, self._handled["labels"]

    async def first(self, seconds: float) -> ClusterSettings:
        """Wait for the facts.

        Raises:
            NoCluster: they did not come within ``seconds``, or there is no cluster socket.
        """
        if not self.listens:
            raise no_cluster_socket()
        try:
            await asyncio.wait_for(self._known.wait(), seconds)
        except TimeoutError:
            raise NO_CLUSTER(
                f"the cluster's process has not sent KubeVirt's configuration within {seconds:.0f} s",
                "See the log of the container `cluster`: it must reach the API server, and its service account must be "
                "allowed to list kubevirts and nodes. What the file itself configures is advertised meanwhile.",
                key="kubevirt.cluster",
            ) from None
        return self.facts

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._writer = writer
        writer.write(line_of("hello", HELLO) + (line_of("want", self._wanted) if self._wanted else b""))
        self._down.again()
        feeding = asyncio.create_task(self._feed(writer))
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                check_hello(parse(await reader.readline()))
            self._log("info", "the cluster's process has connected")
            while line := await reader.readline():
                self._handle(parse(line))
            self._log("warning", "the cluster's process has disconnected")
        except TimeoutError:
            self._log("warning", "the cluster's process sends nothing; disconnected")
        except (ValueError, OSError) as problem:
            reason = getattr(problem, "strerror", None) or problem
            self._log("warning", f"the cluster's process was disconnected: {reason}")
        finally:
            feeding.cancel()
            writer.transport.abort()
            if self._writer is writer:
                self._writer = None
            with suppress(asyncio.CancelledError, OSError):
                await feeding

    async def _feed(self, writer: asyncio.StreamWriter) -> None:
        while True:
            self._some.clear()
            while line := self._down.next():
                writer.write(line)
                await writer.drain()
            await self._some.wait()

    def _handle(self, message: Message) -> None:
        match message.name:
            case "pod":
                self._log("info", f"the pod {shown(message.value)} has ended")
                self._wakeups.notify(Wakeup.PODS)
                return
            case "claim" | "token":
                self._handle_answer(message)
                return
            case "pods" | "asking":
                self._handled[message.name] = asking_pods(message)
                if {"pods", "asking"} <= self._handled.keys():
                    self._told_of_pods(self._handled["pods"], self._handled["asking"])
                return
            case "awaiting":
                self._handled["awaiting"] = awaiting_claims(message)
                self._wakeups.notify(Wakeup.PODS)
                return
            case "kubevirt":
                self._handled["kubevirt"] = settings(message)
            case "labels":
                self._handled["labels"] = labels(message)
            case _:
                return  # a message of a later version
        if {"kubevirt", "labels"} <= self._handled.keys():
            self._known.set()
            self._wakeups.notify(Wakeup.CONFIG)

    def _handle_answer(self, message: Message) -> None:
        number, result, error = answer(message)
        waiting = self._answers.get(number)
        if waiting is None or waiting.done():
            return  # nobody waits any more
        if result is None:
            waiting.set_exception(_NotAnswered(error))
        else:
            waiting.set_result(result)


class _NotAnswered(Exception):
    """There is no answer; the text says why."""


def no_cluster_socket() -> NoCluster:
    """The error if the configuration needs the cluster, but there is no cluster socket."""
    return NO_CLUSTER(
        "the configuration needs KubeVirt's settings from the cluster, but nothing here connects to one",
        "Add the component `cluster` to the kustomization, or name a file: `kubevirt: {file: ...}`. What the "
        "file itself configures is advertised meanwhile.",
        key="kubevirt.cluster",
    )


def _not_made(path: str, reason: str) -> CannotServe:
    return CLUSTER_SOCKET_NOT_MADE(
        f"{path}: the socket for the cluster's process can't be created: {reason}",
        "Mount a folder into both containers, writable for this user, and give a socket in it with --cluster-socket.",
        file=path,
        key="--cluster-socket",
    )
