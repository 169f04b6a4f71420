"""The process that talks to the API server for the daemon: ``launcherkit-plugin cluster``.

It uses threads, because the Kubernetes client blocks: one for each kind of object that is watched or written. The main
thread posts Events. It outlives the daemon, and connects again.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, NoReturn

from launcherkit.errors import shown
from launcherkit.process.edge import guarded
from launcherkit_plugin.cluster.api import Api, ApiProblem, Json, follow, only, part, read
from launcherkit_plugin.cluster.events import Event, EventPoster
from launcherkit_plugin.cluster.outbox import Specs
from launcherkit_plugin.cluster.protocol import HELLO, LINE_BYTES, POOL_BYTES, Message, check_hello, line_of, parse
from launcherkit_plugin.cluster.publisher import LONGEST_PAUSE, NODES_PATH, SlicePublisher, wanted_slices
from launcherkit_plugin.cluster.requests import (
    ALL_CLAIMS_PATH,
    STATUS_FAILS,
    ClaimStatusWriter,
    NodeRecordWriter,
    Questions,
    ask_for_claim,
    ask_for_review,
    wanted_record,
)
from launcherkit_plugin.codec import encode
from launcherkit_plugin.model.backoff import Backoff
from launcherkit_plugin.model.device import AwaitedDevice, AwaitingClaim, ClaimRef
from launcherkit_plugin.model.same_device import LABEL, AskingPod, Owner, wish_of
from launcherkit_plugin.telemetry.reporter import Reporter

KUBEVIRT_PATH = "/apis/kubevirt.io/v1/kubevirts"
PODS_PATH = "/api/v1/pods"
_SECTIONS = ("permittedHostDevices", "mediatedDevicesConfiguration")
_NOT_KUBEVIRT = "DisableMDEVConfiguration"


_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 300.0
_RECORD_PAUSE = 5.0
_DIAL_PAUSE = 0.5
"""Between attempts to reach the daemon: it costs little, and slices that vanished while it was away wait for it."""
_NOT_FOUND = 404


class ClusterProcess(NamedTuple):
    """The parts of the process."""

    api: Api
    node: str
    """The node's name."""
    daemon: DaemonConnection
    events: EventPoster
    claims: Questions
    tokens: Questions
    statuses: ClaimStatusWriter
    slices: dict[str, SlicePublisher]
    """By the name of the driver, for each driver for which the daemon has sent slices."""
    records: NodeRecordWriter
    reporter: Reporter
    env: Mapping[str, str]
    watched: set[str]
    """The names of the threads that run, each of which watches or writes something."""


def serve(process: ClusterProcess, path: str, *, pods: bool) -> NoReturn:
    """Connect to the daemon, and connect again whenever the connection ends.

    Args:
        process: its parts.
        path: of the daemon's socket.
        pods: watch the node's pods, which needs the right to list pods.
    """
    if pods:
        _watch("pods", lambda: watch_pods(process.api, process.node, process.daemon), process)
    while True:
        try:
            end = _attend(process, path)
        except (OSError, ValueError) as problem:
            end = getattr(problem, "strerror", None) or str(problem)
        process.reporter.once(path, "warning", f"{path}: no connection to the daemon: {end}; trying again")
        time.sleep(_DIAL_PAUSE)


def _attend(process: ClusterProcess, path: str) -> str:
    """Serve one connection; returns how it ended.

    Raises:
        OSError, ValueError: there is no daemon, it has another version, or it sent something invalid.
    """
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(path)
        with daemon.makefile("rb") as lines:
            check_hello(parse(lines.readline(LINE_BYTES + 1)))
            process.reporter.log("info", f"connected to the daemon at {path}")
            process.reporter.solved(path)
            process.daemon.connect(daemon)
            try:
                while line := lines.readline(POOL_BYTES + 1):
                    _handle(parse(line, POOL_BYTES), process)
            finally:
                process.daemon.disconnect()
                for publisher in process.slices.values():
                    publisher.want(None)
    return "it has disconnected"


def _handle(message: Message, process: ClusterProcess) -> None:
    if message.name == "event":
        process.events.post(event_of(message.value))
    elif message.name == "want":
        api, daemon = process.api, process.daemon
        if "kubevirt" in message.value:
            _watch("kubevirt", lambda: watch_configuration(api, daemon), process)
            _watch("labels", lambda: watch_labels(api, process.node, daemon), process)
        if "pods" in message.value:
            fails = "pods can't be watched, and devices can't be kept for VMs: {}"
            _watch("pods here", lambda: watch_pods_here(api, process.node, daemon), process, fails=fails)
            _watch("asking pods", lambda: watch_asking_pods(api, process.node, daemon), process, fails=fails)
        if "claims" in message.value:
            fails = "claims can't be watched, and no pod waits for a device: {}"
            _watch("claims", lambda: watch_claims(api, process.node, daemon), process, fails=fails)
    elif message.name == "slices":
        _publish(*wanted_slices(message.value), process)
    elif message.name == "node-record":
        process.records.want(wanted_record(message.value))
        fails = "the node's record can't be written: {}; trying again"
        _watch("the node's record", process.records.write, process, fails=fails, first=_RECORD_PAUSE)
    elif message.name == "get-claim":
        ask_for_claim(message.value, process.api, process.claims)
    elif message.name == "review-token":
        ask_for_review(message.value, process.api, process.tokens)
    elif message.name == "claim-status":
        process.statuses.add(message.value)
        _watch("statuses", process.statuses.write, process, fails=STATUS_FAILS)


def _publish(driver: str, specs: Specs, process: ClusterProcess) -> None:
    if driver not in process.slices:
        process.slices[driver] = SlicePublisher(process.api, process.node, driver, process.reporter)
    publisher = process.slices[driver]
    publisher.want(specs)
    _watch(f"slices of {driver}", publisher.watch, process, longest=LONGEST_PAUSE)
    _watch(f"writing {driver}", publisher.write, process)


def event_of(value: object) -> Event:
    """The Event in a message.

    Raises:
        ValueError: it has none.
    """
    match value:
        case {"type": "Normal" | "Warning" as kind, "reason": str(reason), "message": str(message)}:
            return Event(kind, reason, message)
    raise ValueError(f"event: {shown(value)} is not an Event")


def _watch(name: str, work: Callable[[], object], process: ClusterProcess, **how: Any) -> None:
    """Start a thread unless it runs. A bug in a thread ends the process, and its container is restarted."""
    if name not in process.watched:
        process.watched.add(name)
        going_on = partial(persist, work, process.reporter, **how)
        ending = lambda: os._exit(guarded(going_on, process.env))  # noqa: E731
        threading.Thread(target=ending, daemon=True, name=name).start()


def persist(
    work: Callable[[], object],
    reporter: Reporter,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    *,
    fails: str = "the cluster can't be watched: {}",
    first: float = _FIRST_PAUSE,
    longest: float = _LONGEST_PAUSE,
) -> NoReturn:
    """Repeat work forever. After a failure there is a pause, which doubles until the work succeeds.

    Args:
        work: returns True if it succeeded, and is then called again at once. Work that ran for longer than the longest
            pause counts as a success, too.
        reporter: receives failures; a lasting one is reported once.
        wait, clock: in seconds.
        fails: the message of a failure; ``{}`` stands for the reason.
        first, longest: the first and the longest pause, in seconds.
    """
    backoff = Backoff(first, longest)
    while True:
        began = clock()
        try:
            if work() is True:
                backoff.succeeded(work)
                reporter.solved(work)
                continue
        except ApiProblem as problem:
            if clock() - began > longest:
                backoff.succeeded(work)
                reporter.solved(work)
            reporter.once(work, "warning", fails.format(problem), status=problem.status)
        wait(backoff.failed(work, clock()))


_OF_KUBEVIRT = only("metadata.name", "metadata.namespace", "spec.configuration")
_OF_NODE = only("metadata.labels")
_OF_POD = only("metadata.name", "metadata.namespace", "status.phase")


def watch_configuration(api: Api, daemon: DaemonConnection) -> None:
    """Watch KubeVirt's configuration. A cluster without KubeVirt may get it later."""
    try:
        for objects in follow(api, KUBEVIRT_PATH, "", _OF_KUBEVIRT, time.sleep):
            daemon.set("kubevirt", kubevirt_configuration(objects.values()))
    except ApiProblem as problem:
        if problem.status != _NOT_FOUND:
            raise
        daemon.set("kubevirt", None)


def watch_labels(api: Api, node: str, daemon: DaemonConnection) -> None:
    """Watch the labels of the node, by which KubeVirt's configuration selects nodes."""
    for objects in follow(api, NODES_PATH, f"metadata.name={node}", _OF_NODE, time.sleep):
        daemon.set("labels", node_labels(objects.values()))


def watch_pods(api: Api, node: str, daemon: DaemonConnection) -> None:
    """Watch the node's pods: when one ends, the daemon's next turn comes sooner (G3)."""
    before: dict[str, str] = {}
    for objects in follow(api, PODS_PATH, f"spec.nodeName={node}", _OF_POD, time.sleep):
        now = living_pods(objects)
        for uid in before.keys() - now.keys():
            daemon.send("pod", before[uid])
        before = now


def watch_pods_here(api: Api, node: str, daemon: DaemonConnection) -> None:
    """Watch what the pods of the node ask for."""
    for objects in follow(api, PODS_PATH, f"spec.nodeName={node}", asking_pod, time.sleep):
        daemon.set("pods", _by_name(objects.values()))


def watch_asking_pods(api: Api, node: str, daemon: DaemonConnection) -> None:
    """Watch the pods with the `LABEL` that are on the node or may come to it."""
    for objects in follow(api, PODS_PATH, "", asking_pod, time.sleep, label=LABEL):
        daemon.set("asking", _by_name(pod for pod in objects.values() if pod["node"] in ("", node)))


def watch_claims(api: Api, node: str, daemon: DaemonConnection) -> None:
    """Watch the claims whose pods wait for devices of the node (KEP-5007)."""
    for objects in follow(api, ALL_CLAIMS_PATH, "", partial(awaiting_claim, node), time.sleep):
        daemon.set("awaiting", [objects[uid]["claim"] for uid in sorted(objects) if objects[uid]])


def awaiting_claim(node: str, item: Json) -> Json:
    """The `AwaitingClaim` of a claim; empty if no pod waits for a device of the node in it."""
    results = part(item, "status", "allocation", "devices").get("results") or ()
    devices = tuple(
        AwaitedDevice(*(str(result.get(key) or "") for key in ("driver", "request", "pool", "device", "shareID")))
        for result in results
        if result.get("pool") == node and result.get("bindingConditions")
    )
    if not devices:
        return {}
    uid = str(part(item, "metadata").get("uid"))
    return {"claim": encode(AwaitingClaim(ClaimRef(*_name(item), uid), devices))}


def asking_pod(item: Json) -> Json:
    """The `AskingPod` of a pod, with its ``name`` and ``node``."""
    metadata, spec, name = part(item, "metadata"), part(item, "spec"), _name(item)
    owners = [part(owner) for owner in metadata.get("ownerReferences") or ()]
    vms = [str(owner.get("name")) for owner in owners if owner.get("kind") == "VirtualMachineInstance"]
    asks: Counter[str] = Counter()
    for container in spec.get("containers") or ():
        for resource, number in part(container, "resources", "limits").items():
            if "/" in resource and str(number).isdecimal():
                asks[resource] += int(number)
    wish, node = wish_of(part(metadata, "labels").get(LABEL)), str(spec.get("nodeName") or "")
    ended = part(item, "status").get("phase") in ("Succeeded", "Failed") or "deletionTimestamp" in metadata
    owner = Owner(name[0], vms[0] if vms else name[1])
    pod = AskingPod(owner, wish, asks, ended)
    return {"name": "/".join(name), "node": node, "pod": encode(pod)}


def _by_name(pods: Iterable[Json]) -> Json:
    return {pod["name"]: pod["pod"] for pod in pods}


class DaemonConnection:
    """Sends values to the daemon: each when it changes, and all of them when the daemon connects. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, object] = {}
        self._daemon: socket.socket | None = None

    def connect(self, daemon: socket.socket) -> None:
        """Greet a daemon and send it all values.

        Raises:
            OSError: it has already disconnected.
        """
        with self._lock:
            daemon.sendall(b"".join([line_of("hello", HELLO), *(line_of(*pair) for pair in self._values.items())]))
            self._daemon = daemon

    def disconnect(self) -> None:
        """Note that the daemon has disconnected."""
        with self._lock:
            self._daemon = None

    def set(self, name: str, value: object) -> None:
        """Set a value, and send it if it has changed."""
        with self._lock:
            if name not in self._values or self._values[name] != value:
                self._values[name] = value
                self._tell(name, value)

    def send(self, name: str, value: object) -> None:
        """Send a message once; it isn't kept for a daemon that connects later."""
        with self._lock:
            self._tell(name, value)

    def _tell(self, name: str, value: object) -> None:
        if self._daemon is not None:
            with suppress(OSError):  # the reading thread notices that it has disconnected
                self._daemon.sendall(line_of(name, value))


def kubevirt_configuration(objects: Iterable[Json]) -> Json | None:
    """The part of KubeVirt's ``spec.configuration`` about host devices; None without KubeVirt.

    A cluster has one KubeVirt resource. If there are several, the first by namespace and name is used.
    """
    ordered = sorted(objects, key=lambda item: _name(item))
    if not ordered:
        return None
    configuration = read(ordered[0], "spec", "configuration")
    sections = {section: devices for section in _SECTIONS if (devices := configuration.pop(section)) is not None}
    gates = configuration.inner("developerConfiguration").pop("featureGates")
    # The only gate that decides who creates mediated devices, KubeVirt or the plugin.
    ours = isinstance(gates, list) and _NOT_KUBEVIRT in gates
    return sections | ({"developerConfiguration": {"featureGates": [_NOT_KUBEVIRT]}} if ours else {})


def node_labels(objects: Iterable[Json]) -> dict[str, str]:
    """The labels of the node."""
    return {key: str(value) for item in objects for key, value in part(item, "metadata", "labels").items()}


def living_pods(objects: Mapping[str, Json]) -> dict[str, str]:
    """From UID to ``namespace/name``, of the pods that haven't ended and so may hold devices."""
    return {
        uid: "/".join(_name(item))
        for uid, item in objects.items()
        if read(item, "status").pop("phase") not in ("Succeeded", "Failed")
    }


def _name(item: Json) -> tuple[str, str]:
    """Namespace and name."""
    metadata = read(item, "metadata")
    return str(metadata.pop("namespace") or ""), str(metadata.pop("name") or "")
