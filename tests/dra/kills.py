"""Claims that come and go while the driver is killed again and again, at whatever it is doing."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.dra.held import Pod
from tests.dra.node import Node
from tests.dra.runtime import Container
from tests.dra.scheduler import Unschedulable, requested


class Seen(NamedTuple):
    """What came of it."""

    started: int
    """Pods."""
    ended: int


class _Pods(threading.Thread):
    """Starts pods with claims of some classes, one or two at a time, and ends them, until it is told to stop."""

    def __init__(self, node: Node, classes: Sequence[str], chance: random.Random) -> None:
        super().__init__()
        self._node = node
        self._classes = classes
        self._chance = chance
        self._running: dict[str, tuple[Pod, Container]] = {}
        self.stopping = threading.Event()
        self.problem: BaseException | None = None
        self.started = self.ended = 0

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._next()
            while self._running:
                self._end()
        except BaseException as problem:
            self.problem = problem

    def _next(self) -> None:
        if self._running and self._chance.random() < 0.5:
            self._end()
            return
        name = f"claim-{self.started}"
        self._node.claim(name, requested("any", self._chance.choice(self._classes)))
        try:
            pod = self._node.pod(f"pod-{name}", name)
        except Unschedulable:  # all are taken, or the slices have just been wiped
            self._node.api.delete_claim(name)
            if self._running:
                self._end()
            time.sleep(self._node.manager.pace.scan)
            return
        given = self._node.run(pod)
        self.started += 1
        nodes = set(given.nodes) - {"/dev/vfio/vfio"}
        for other, (_, container) in self._running.items():
            assert not nodes & set(container.nodes), f"{pod.name} and {other} share {nodes}"
        assert all(Path(path).exists() for path in given.nodes.values())
        self._running[pod.name] = pod, given

    def _end(self) -> None:
        pod, _ = self._running.pop(self._chance.choice(list(self._running)))
        self._node.delete(pod)
        self._node.api.delete_claim(pod.claims[0])
        self.ended += 1


def kill_and_see(node: Node, kills: int, *classes: str) -> Seen:
    """Start a driver, and kill it so many times: while it starts, or within as long a time after that; later if that
    was too early for it to do anything.

    Args:
        classes: of the claims' requests.

    Raises:
        AssertionError: two pods share a node, or something of a claim is left in the end.
    """
    chance = random.Random(kills)
    began = time.monotonic()
    node.start()
    seconds = 2 * (time.monotonic() - began)
    before = node.left()
    pods = _Pods(node, classes, random.Random(1))
    pods.start()
    try:
        for _ in range(kills):
            done = pods.started + pods.ended
            time.sleep(chance.uniform(0, seconds))
            node.kill()
            node.start(wait=False)
            if pods.started + pods.ended == done:  # on a machine that is busier than it was at first
                seconds *= 1.25
    finally:
        pods.stopping.set()
        pods.join()
    if pods.problem is not None:
        raise pods.problem
    node.wait_until_ready()
    assert node.left() == before
    return Seen(pods.started, pods.ended)
