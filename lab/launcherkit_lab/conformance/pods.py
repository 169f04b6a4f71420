"""Many pods: none has what another has, whatever is killed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from threading import Thread

from launcherkit_lab.conformance.expectation import Expectation, Level, NotTried, Unmet, judged
from launcherkit_lab.conformance.machine import Given
from launcherkit_lab.conformance.node import Node
from launcherkit_lab.conformance.sources import LAB, MANAGER, VFIO
from launcherkit_lab.kubelet import Holding, NotAdmitted

_PAUSE_SECONDS = 0.1
"""Between two attempts of a pod that is refused though no other has a device."""


def shared(container: Given, others: Mapping[str, Given]) -> Iterator[str]:
    """What a container has that another has, too."""
    for pod, other in others.items():
        same = container.groups & other.groups
        addresses = set(container.addresses) & set(other.addresses)
        if same or addresses:
            both_have = [*(f"group {group}" for group in sorted(same)), *sorted(addresses)]
            yield f"{container}: {', '.join(both_have)} belongs to {pod}, with {other}"


def _apart(node: Node) -> str:
    devices = [(resource, key) for resource in node.resources for key in node.healthy(resource)]
    if len(devices) < 2:
        raise NotTried("there are not two healthy devices; take a machine with two cards")
    holders: dict[str, Given] = {}
    refusals: list[str] = []

    def problems() -> Iterator[str]:
        with ExitStack() as stack:
            for resource, key in devices:
                try:
                    container = stack.enter_context(node.pod(resource, [key]))
                except Unmet as refusal:  # which is how a plugin keeps a group whole
                    refusals.append(str(refusal))
                    continue
                yield from shared(container, holders)
                holders[container.holding.pod] = container

    shared_by_pods = [*problems()]
    if len(holders) < 2 and not shared_by_pods:
        raise (NotTried if holders else Unmet)(f"{len(holders)} of {len(devices)} devices can be had: {refusals[0]}")
    return judged(shared_by_pods, f"{len(holders)} pods at a time have nothing in common")


class _Churn:
    """Pods that come and go, while the driver is killed."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.holders: dict[str, Given] = {}
        self.most = self.kills = 0
        self._refusal = ""
        self._random = random.Random(35)  # the same every time, so that it can be repeated

    def end(self) -> None:
        """A pod ends, any."""
        pod = self._random.choice(sorted(self.holders))
        self.node.kubelet.delete(pod)
        del self.holders[pod]

    def start(self, pod: str, resource: str, *, killing: bool) -> Iterator[str]:
        """Start a pod, if need be after others have ended; what it shares with another."""
        killer = Thread(target=self.node.driver.kill)
        if killing:
            killer.start()
            self.kills += 1
        deadline = time.monotonic() + self.node.limits.patience
        while (holding := self._admit(pod, resource)) is None:
            if time.monotonic() > deadline:
                raise Unmet(f"{pod} was refused for {self.node.limits.patience:.0f} s: {self._refusal}")
            if killing:
                self._recover(killer)
            if self.holders:
                self.end()
            else:
                time.sleep(_PAUSE_SECONDS)
        if killing:
            self._recover(killer)
        container = self.node.read(holding)
        yield from shared(container, self.holders)
        self.holders[pod] = container
        self.most = max(self.most, len(self.holders))

    def _admit(self, pod: str, resource: str) -> Holding | None:
        try:
            (holding,) = self.node.kubelet.admit(pod, [("compute", resource, 1)])
        except NotAdmitted as refusal:
            self._refusal = str(refusal)
            return None
        return holding

    def _recover(self, killer: Thread) -> None:
        killer.join()
        if not self.node.driver.running:
            self.node.become_ready()


def _churned(node: Node) -> str:
    churn, limits = _Churn(node), node.limits
    killed_at = {round((number + 0.5) * limits.pods / limits.kills) for number in range(limits.kills)}

    def problems() -> Iterator[str]:
        for number in range(limits.pods):
            resource = node.resources[number % len(node.resources)]
            yield from churn.start(f"churn-{number}", resource, killing=number in killed_at)

    shared_by_pods = [*problems()]
    return judged(shared_by_pods, f"{limits.pods} pods, {churn.kills} kills, {churn.most} pods at a time at most")


EXPECTATIONS = (
    Expectation(
        "DP14",
        Level.MUST,
        "No two pods have the same function, or parts of one IOMMU group",
        f"{VFIO}, Groups: a group has one owner",
        _apart,
    ),
    Expectation(
        "DP15",
        Level.MUST,
        "No two pods have the same while pods come and go and the plugin is killed",
        f"{LAB}; {MANAGER}: what a pod has stays its own while the plugin is gone",
        _churned,
    ),
)
