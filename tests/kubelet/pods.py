"""Pods that ask for devices, and what their containers see of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.support.cluster import Cluster
from tests.support.waiting import until

IMAGE = "registry.local/busybox:1"
"""Has a shell; the program of the tier sees to it."""

_LOOK = r"""
env
find /dev/vfio -type c -exec stat -c "node %n %t %T" {} + 2>/dev/null
"""


class Seen(NamedTuple):
    """What a container has."""

    env: dict[str, str]
    """The variables of devices."""
    nodes: dict[str, tuple[int, int]]
    """Device nodes below ``/dev/vfio``, with their major and minor numbers."""


def container(name: str, **devices: int) -> dict[str, Any]:
    """A container that sleeps, with a shell; ``devices`` are of the resources ``gpus.test/...``."""
    return {
        "name": name,
        "image": IMAGE,
        "command": ["sleep", "100000"],
        "resources": {"limits": {f"gpus.test/{resource}": str(count) for resource, count in devices.items()}},
    }


class Pods:
    """The pods of one test."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self._cluster = cluster
        self._node = node
        self._made: list[str] = []

    def make(self, name: str, *containers: dict[str, Any], scheduled: bool = True, **spec: object) -> str:
        """Create a pod, and give its name.

        Args:
            scheduled: by the scheduler, which looks at what the node has told; else it goes to the node at once.
            spec: more of the pod's.
        """
        self.make_all({name: containers}, scheduled=scheduled, **spec)
        return name

    def make_all(
        self, pods: Mapping[str, tuple[dict[str, Any], ...]], *, scheduled: bool = True, **spec: object
    ) -> None:
        """Create pods, as much at once as can be."""
        where = {} if scheduled else {"nodeName": self._node}
        items = [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "restartPolicy": "Never",
                    "enableServiceLinks": False,
                    "containers": containers,
                    **where,
                    **spec,
                },
            }
            for name, containers in pods.items()
        ]
        self._made += pods
        document = {"apiVersion": "v1", "kind": "List", "items": items}
        self._cluster.kubectl("create", "-f", "-", given=json.dumps(document))

    def run(self, name: str, *containers: dict[str, Any], **spec: Any) -> str:
        """Create a pod and wait until it runs."""
        self.make(name, *containers, **spec)
        self.wait_running(name)
        return name

    def own_pod(self) -> dict[str, str]:
        """The variables by which a plugin knows its own pod, of one that stands in for it.

        Without them the end of a pod is believed only a minute after the last allocation.
        """
        return {"POD_NAMESPACE": "default", "POD_NAME": self.run("plugin", container("plugin"))}

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._cluster.get("pod", name)["status"]
        return found

    def wait_running(self, *names: str) -> None:
        """Wait until pods run.

        Raises:
            AssertionError: one of them can't.
        """
        for name in names:
            until(lambda name=name: self._runs(name), f"pod {name} running", lambda name=name: self.status(name))  # type: ignore[misc]

    def _runs(self, name: str) -> bool:
        status = self.status(name)
        assert status["phase"] not in ("Failed", "Succeeded"), status
        started = [one for one in status.get("containerStatuses", ()) if one["ready"]]
        return status["phase"] == "Running" and bool(started) and len(started) == len(status["containerStatuses"])

    def restarts(self, name: str) -> int:
        """How often containers of a pod have been started again."""
        return sum(one["restartCount"] for one in self.status(name)["containerStatuses"])

    def wait_refused(self, name: str) -> str:
        """Wait until the kubelet has turned a pod away; gives its words."""
        until(
            lambda: self.status(name)["phase"] == "Failed",
            f"the kubelet turn pod {name} away",
            lambda: self.status(name),
        )
        return str(self.status(name).get("message", ""))

    def wait_unschedulable(self, name: str) -> str:
        """Wait until the scheduler has found no node for a pod; gives its words."""

        def why() -> str:
            conditions = self.status(name).get("conditions", [])
            return "".join(one["message"] for one in conditions if one.get("reason") == "Unschedulable")

        return until(why, f"the scheduler turn pod {name} down", lambda: self.status(name))

    def events(self, name: str) -> list[str]:
        """What was said of a pod."""
        return self._cluster.events(name)

    def look(self, name: str, container: str) -> Seen:
        """What a container sees of its devices."""
        lines = self.shell(name, container, _LOOK).splitlines()
        variables = dict(line.split("=", 1) for line in lines if "=" in line)
        nodes = (line.split() for line in lines if line.startswith("node "))
        return Seen(
            {key: value for key, value in variables.items() if "_RESOURCE_" in key},
            {path: (int(major, 16), int(minor, 16)) for _, path, major, minor in nodes},
        )

    def shell(self, name: str, container: str, script: str) -> str:
        """What a script prints in a container, errors too."""
        return self._cluster.kubectl("exec", name, "-c", container, "--", "sh", "-c", f"({script}) 2>&1; true")

    def delete(self, *names: str) -> None:
        """Delete pods, as `kubectl delete --force` does, and don't wait."""
        if names:
            gone = ("--force", "--grace-period=0", "--ignore-not-found", "--wait=false")
            self._cluster.kubectl("delete", "pod", *names, *gone)
        self._made = [name for name in self._made if name not in names]

    def end(self, name: str) -> None:
        """Delete a pod, and wait until the kubelet has ended its containers."""
        self._cluster.kubectl("delete", "pod", name, "--wait=true")
        self._made.remove(name)

    def delete_all(self) -> None:
        self.delete(*self._made)
