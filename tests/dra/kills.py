"""Claims that come and go while the driver is killed again and again, each time as it changes something."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from launcherkit_plugin.dra.claim_files import ClaimPlaces
from tests.dra.held import Pod
from tests.dra.node import DRIVER, Node
from tests.dra.runtime import Container
from tests.dra.scheduler import Unschedulable, requested
from tests.support.dying import rounds
from tests.support.waiting import PATIENCE

MOST_CHANGES = 24
"""Of a life: those of two claims, or more. With few of them hardly a claim would ever be prepared."""

_PATIENCE = 10 * PATIENCE
"""A driver may be killed several times before a claim of a pod is prepared."""


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
        self.started = 0

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
        given = self._node.run(pod, patience=_PATIENCE)
        self.started += 1
        nodes = set(given.nodes) - {"/dev/vfio/vfio"}
        for other, (_, container) in self._running.items():
            assert not nodes & set(container.nodes), f"{pod.name} and {other} share {nodes}"
        assert all(Path(path).exists() for path in given.nodes.values())
        self._running[pod.name] = pod, given

    def _end(self) -> None:
        pod, _ = self._running.pop(self._chance.choice(list(self._running)))
        self._node.delete(pod, patience=_PATIENCE)
        self._node.api.delete_claim(pod.claims[0])


def kill_and_see(node: Node, kills: int, *classes: str, host: Sequence[str] = ()) -> None:
    """Let a driver live so many times; each life ends at a change that it would make.

    Changes are counted in turn in all folders of the driver, those of claims alone, and the host's. It's chance whether
    a pod starts within a life: there are more lives, until pods have in a tenth of them.

    Args:
        classes: of the claims' requests.
        host: folders in which the driver changes the host.

    Raises:
        AssertionError: a life has ended otherwise, two pods share a node, or something of a claim is left in the end.
    """
    chance = random.Random(kills)
    node.start()
    before = node.left()
    node.kill()
    places = ClaimPlaces(DRIVER, str(node.manager.registry.parent), str(node.folder / "cdi"))
    claims = [places.records, places.cdi]
    folders: list[Sequence[str | Path]] = [[node.folder, *host], claims, host or claims]
    pods = _Pods(node, classes, random.Random(1))
    pods.start()
    try:
        for number in rounds(kills, lambda: bool(pods.problem) or pods.started > kills / 10):
            life = node.live(folders[number % len(folders)], chance.randint(1, MOST_CHANGES))
            assert life.last is not None, f"life {number} has ended with {life.code}"
        node.start(wait=False)
    finally:
        pods.stopping.set()
        pods.join()
        if pods.problem is not None:
            raise pods.problem
    node.wait_until_ready()
    assert node.left() == before
