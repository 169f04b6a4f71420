"""A device plugin's end and its return."""

from __future__ import annotations

from collections.abc import Iterator

from launcherkit_lab.conformance.expectation import Expectation, Level, Unmet, judged
from launcherkit_lab.conformance.node import Node
from launcherkit_lab.conformance.sources import DOCS, LAB, MANAGER
from launcherkit_lab.kubelet import CHECKPOINT

GRACE_SECONDS = 30
"""What Kubernetes gives a pod by default between SIGTERM and SIGKILL."""


def _restarted_kubelet(node: Node) -> str:
    before = len(node.kubelet.registrations)
    node.kubelet.restart()
    node.wait_back()
    return f"registered again: {', '.join(sorted(set(node.kubelet.registrations[before:])))}"


def _killed(node: Node) -> str:
    def contents() -> dict[str, tuple[object, ...]]:
        return {str(container): (container.addresses, container.groups) for container in node.each()}

    before = contents()
    node.driver.kill()
    node.become_ready()
    after = contents()
    changed = (
        f"{name} was {before[name]}, and is {after.get(name)}" for name in before if after.get(name) != before[name]
    )
    return judged(changed, f"the same {len(before)} devices")


def _ended(node: Node) -> str:
    code = node.driver.end(GRACE_SECONDS)
    if code is None:
        raise Unmet(f"it had to be killed {GRACE_SECONDS} s after SIGTERM")
    return f"exit code {code}"


def _left(node: Node) -> str:
    node.driver.end(GRACE_SECONDS)

    def problems() -> Iterator[str]:
        for path in sorted(node.kubelet.plugins.iterdir()):
            if path.name not in ("kubelet.sock", CHECKPOINT):
                yield f"{path} is left"

    return judged(problems(), "nothing is left in the kubelet's folder")


EXPECTATIONS = (
    Expectation(
        "DP16",
        Level.MUST,
        "After a restart of the kubelet it registers again, and lists the same devices",
        f"{DOCS}: the kubelet deletes all sockets when it starts",
        _restarted_kubelet,
    ),
    Expectation(
        "DP17",
        Level.MUST,
        "Killed and started again it lists the same devices, by the same IDs",
        f"{MANAGER}: pods keep the IDs that they have",
        _killed,
    ),
    Expectation(
        "DP18",
        Level.SHOULD,
        f"It ends within {GRACE_SECONDS} s of SIGTERM",
        f"{LAB}: a DaemonSet's update waits",
        _ended,
    ),
    Expectation(
        "DP19",
        Level.SHOULD,
        "What was ended leaves nothing in the kubelet's folder",
        f"{LAB}: it was uninstalled",
        _left,
    ),
)
