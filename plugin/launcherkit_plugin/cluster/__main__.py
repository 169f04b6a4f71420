"""``python -m launcherkit_plugin.cluster NODE``: the process that talks to the API server, for `client`.

Threads, for the Kubernetes client waits: one for each thing that is watched; the first one posts Events and ends all of
them with the end of its input.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NoReturn

from kubernetes.config.incluster_config import SERVICE_TOKEN_FILENAME

from launcherkit.process.edge import guarded
from launcherkit_plugin.cluster.api import Api, ApiProblem, configured
from launcherkit_plugin.cluster.correlator import Event
from launcherkit_plugin.cluster.facts import (
    KUBEVIRT_PATH,
    NODES_PATH,
    PODS_PATH,
    kubevirt_configuration,
    living_pods,
    node_labels,
)
from launcherkit_plugin.cluster.follow import follow
from launcherkit_plugin.cluster.privileges import drop_privileges, readable_by_all
from launcherkit_plugin.cluster.teller import Teller
from launcherkit_plugin.telemetry.log import Lines, Log

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 300.0
_NOT_FOUND = 404


class Upwards:
    """Lines to the daemon, from any thread; a value that is told already is not told again."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._told: dict[str, object] = {}

    def value(self, name: str, value: object) -> None:
        """What something is now."""
        with self._lock:
            if name not in self._told or self._told[name] != value:
                self._told[name] = value
                self._line({name: value})

    def happened(self, name: str, value: object) -> None:
        """What has happened."""
        with self._lock:
            self._line({name: value})

    def _line(self, message: Mapping[str, object]) -> None:
        rest = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            os._exit(0)  # the daemon is gone


def run(node: str, watch_kubevirt: bool, env: Mapping[str, str]) -> int:
    """Serve the daemon until its end."""
    configuration = configured(env)
    api = Api(configuration)
    if not env.get("KUBECONFIG") and readable_by_all(SERVICE_TOKEN_FILENAME):
        drop_privileges()  # of this thread, and so of those that it starts
    log = Lines(env, time.time)
    upwards = Upwards(sys.stdout.fileno())
    watched: list[Callable[[], None]] = [lambda: watch_pods(api, node, upwards)]
    if watch_kubevirt:
        watched += [lambda: watch_configuration(api, upwards), lambda: watch_labels(api, node, upwards)]
    for each in watched:
        threading.Thread(target=persist_or_end, args=(each, log, env), daemon=True).start()
    teller = Teller(api, node, f"{time.time_ns():x}", time.time, log)
    for event in events(sys.stdin.buffer):
        teller.tell(event)
    return 0


def events(lines: Iterable[bytes]) -> Iterator[Event]:
    """The Events that the daemon sends, until it ends."""
    for line in lines:
        kind, reason, message = json.loads(line)["event"]
        yield Event(kind, reason, message)


def persist_or_end(watch: Callable[[], None], log: Log, env: Mapping[str, str]) -> None:
    """A thread that has a bug takes the process with it: the daemon starts another one."""
    os._exit(guarded(lambda: persist(watch, log, time.sleep), env))


def persist(watch: Callable[[], None], log: Log, wait: Callable[[float], None]) -> NoReturn:
    """Watch for ever: what ends by a problem is begun again after a pause, which grows while the problem stays."""
    pause, last = _FIRST_PAUSE, ""
    while True:
        began = time.monotonic()
        try:
            watch()
        except ApiProblem as problem:
            if time.monotonic() - began > _LONGEST_PAUSE:
                pause = _FIRST_PAUSE
            if str(problem) != last:
                log("warning", f"the cluster can't be watched: {problem}", status=problem.status)
            last = str(problem)
        wait(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


def watch_configuration(api: Api, upwards: Upwards) -> None:
    """KubeVirt's host devices. A cluster without KubeVirt may get it later."""
    try:
        for objects in follow(api, KUBEVIRT_PATH, "", time.sleep):
            upwards.value("kubevirt", kubevirt_configuration(objects.values()))
    except ApiProblem as problem:
        if problem.status != _NOT_FOUND:
            raise
        upwards.value("kubevirt", None)


def watch_labels(api: Api, node: str, upwards: Upwards) -> None:
    """The labels of the node, by which KubeVirt's configuration tells nodes apart."""
    for objects in follow(api, NODES_PATH, f"metadata.name={node}", time.sleep):
        upwards.value("labels", node_labels(objects.values()))


def watch_pods(api: Api, node: str, upwards: Upwards) -> None:
    """The ends of the node's pods: the daemon looks again, and sooner than it would (G3)."""
    before: dict[str, str] = {}
    for objects in follow(api, PODS_PATH, f"spec.nodeName={node}", time.sleep):
        now = living_pods(objects)
        for uid in before.keys() - now.keys():
            upwards.happened("pod", before[uid])
        before = now


def main() -> int:
    """The process."""
    node, *rest = sys.argv[1:]
    return guarded(lambda: run(node, rest == ["--kubevirt"], os.environ), os.environ)


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main())  # threads that wait for the server are not waited for
