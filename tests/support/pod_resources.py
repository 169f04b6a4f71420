"""A kubelet's PodResources, and its checkpoint, for tests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from grpclib.server import Server, Stream

from launcherkit.rpc.client import LIST
from launcherkit.rpc.methods import Servicer
from launcherkit.rpc.proto.podresources_v1_pb2 import (
    ContainerDevices,
    ContainerResources,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
    PodResources,
)

Pods = Mapping[str, Mapping[str, Sequence[str]]]
"""``namespace/name`` to resource to device IDs, all in a container ``compute``."""


def pods_answer(pods: Pods) -> ListPodResourcesResponse:
    """What the kubelet says of some pods; an entry a device, as it does for devices of several NUMA nodes."""
    return ListPodResourcesResponse(
        pod_resources=[
            PodResources(
                namespace=name.partition("/")[0],
                name=name.partition("/")[2],
                containers=[
                    ContainerResources(
                        name="compute",
                        devices=[
                            ContainerDevices(resource_name=resource, device_ids=[device])
                            for resource, devices in resources.items()
                            for device in devices
                        ],
                    )
                ],
            )
            for name, resources in pods.items()
        ]
    )


class PodResourcesLister(Servicer):
    """What a kubelet's PodResources is made of; a subclass has ``List``."""

    service = LIST.containing_service


class PodResourcesService(PodResourcesLister):
    """Answers with ``pods``, which may be replaced."""

    def __init__(self, pods: Pods) -> None:
        self.pods = pods

    async def List(self, stream: Stream[ListPodResourcesRequest, ListPodResourcesResponse]) -> None:
        await stream.recv_message()
        await stream.send_message(pods_answer(self.pods))


@asynccontextmanager
async def serving_pod_resources(path: Path, service: PodResourcesLister) -> AsyncIterator[None]:
    """Serve on a socket, which is removed in the end."""
    server = Server([service])
    path.parent.mkdir(parents=True, exist_ok=True)
    await server.start(path=str(path))
    try:
        yield
    finally:
        server.close()
        await server.wait_closed()
        path.unlink(missing_ok=True)


def write_checkpoint(path: Path, held: Mapping[str, Mapping[str, Sequence[str]]], *, by_node: bool = True) -> None:
    """The checkpoint of a kubelet: pod UID to resource to device IDs; ``by_node`` as from 1.20 on."""
    entries = [
        {
            "PodUID": uid,
            "ContainerName": "compute",
            "ResourceName": resource,
            "DeviceIDs": {"-1": list(devices)} if by_node else list(devices),
            "AllocResp": "",
        }
        for uid, resources in held.items()
        for resource, devices in resources.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1}))
