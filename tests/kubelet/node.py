"""What the kubelet knows, asked of itself and of the API server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from launcherkit.rpc.proto import podresources_v1_pb2 as podresources
from tests.support.cluster import Cluster
from tests.support.waiting import PATIENCE, until

Answer = TypeVar("Answer", bound=Message)

Known = Mapping[str, set[str]]
"""IDs of the healthy devices by resource."""
Counts = Mapping[str, tuple[int, int]]
"""Capacity and allocatable by resource."""


class Node:
    """The one node of the cluster, whose kubelet runs on this machine."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        (found,) = cluster.get("nodes")["items"]
        self.name: str = found["metadata"]["name"]
        self.kubelet_dir = Path(cluster.environment()["CLUSTER_KUBELET_DIR"])
        """As this process sees it."""
        self.checkpoint = self.kubelet_dir / "device-plugins/kubelet_internal_checkpoint"

    def counts(self, *resources: str) -> Counts:
        """As the node tells the scheduler."""
        status = self._cluster.get("node", self.name)["status"]
        totals, free = status["capacity"], status["allocatable"]
        return {name: (int(totals.get(name, 0)), int(free.get(name, 0))) for name in resources}

    def wait_counts(self, expected: Counts) -> None:
        until(lambda: self.counts(*expected) == expected, f"counts of {expected}", lambda: self.counts(*expected))

    def written(self) -> int:
        """A mark of what the kubelet has written down last; another one each time."""
        return self.checkpoint.stat().st_mtime_ns if self.checkpoint.exists() else 0

    def healthy(self) -> dict[str, set[str]]:
        """The healthy devices, as the kubelet has written them down when it was last told of any, or gave any away."""
        if not self.written():
            return {}
        registered = json.loads(self.checkpoint.read_text())["Data"]["RegisteredDevices"]
        return {resource: set(ids or ()) for resource, ids in registered.items()}

    def wait_healthy(self, expected: Known, *, since: int = 0, nudge: Callable[[], object] = lambda: None) -> None:
        """Wait until the kubelet knows exactly these devices of some resources, by what it has written down.

        Args:
            since: what was written before doesn't count; see `written`.
            nudge: changes anything about any device. Several resources that register at once are written down by
                several threads, and an older state may be the last; with the next change all is written again.
        """

        def different() -> dict[str, set[str] | None]:
            healthy = self.healthy() if self.written() != since else {}
            return {name: healthy.get(name) for name, ids in expected.items() if healthy.get(name) != ids}

        until(
            lambda: not different(),
            f"the kubelet know {dict(expected)}",
            lambda: f"instead of that {different()}",
            nudge=nudge,
        )

    def holders(self) -> dict[str, dict[str, set[str]]]:
        """What PodResources says: pods (``name/container``) to resources to device IDs."""
        answer = call(
            self.kubelet_dir / "pod-resources/kubelet.sock",
            "/v1.PodResourcesLister/List",
            podresources.ListPodResourcesRequest(),
            podresources.ListPodResourcesResponse,
        )
        found: dict[str, dict[str, set[str]]] = {}
        for pod in answer.pod_resources:
            for container in pod.containers:
                for devices in container.devices:
                    resources = found.setdefault(f"{pod.name}/{container.name}", {})
                    resources.setdefault(devices.resource_name, set()).update(devices.device_ids)
        return found

    def events(self) -> list[str]:
        """What was said of the node."""
        return self._cluster.events(self.name)

    def restart_kubelet(self) -> None:
        self._cluster.restart_kubelet()


def call(socket: Path, method: str, request: Message, answer: type[Answer]) -> Answer:
    """A gRPC call over a socket, by Google's library, as the kubelet's own are.

    Raises:
        grpc.RpcError: it was refused.
    """
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix:{socket}", options) as channel:
        stub = channel.unary_unary(
            method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        result: Answer = stub(request, timeout=PATIENCE)
    return result
