"""Which pods hold the devices of this machine, according to its kubelet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcherkit.errors import SIDECAR_NOT_INSTALLED
from launcherkit.show.topology import HeldDevice, vm_of

if TYPE_CHECKING:
    from launcherkit.rpc.proto.podresources_v1_pb2 import ContainerResources, ListPodResourcesResponse

KUBELET_SOCKET = "var/lib/kubelet/pod-resources/kubelet.sock"
"""Below the root of the host."""


def held_by_pods(socket: str) -> tuple[HeldDevice, ...]:
    """The devices that pods hold, by the kubelet's IDs.

    Args:
        socket: path of the kubelet's PodResources socket.

    Raises:
        POD_RESOURCES_UNREADABLE: nobody answers there.
        SIDECAR_NOT_INSTALLED: the gRPC library is not installed.
    """
    import asyncio

    try:
        from launcherkit.rpc.client import list_pods
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("google", "grpclib"):
            raise
        raise SIDECAR_NOT_INSTALLED(
            f"the module {missing.name} is not installed, and --pods needs it",
            "Install launcherkit with its extra: pip install 'launcherkit[sidecar]'.",
        ) from missing
    return tuple(_held(asyncio.run(list_pods(socket))))


def _held(answer: ListPodResourcesResponse) -> Iterator[HeldDevice]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            yield from _of_container(f"{pod.namespace}/{pod.name}", container)


def _of_container(pod: str, container: ContainerResources) -> Iterator[HeldDevice]:
    vm = vm_of(pod)
    for devices in container.devices:
        for device in devices.device_ids:
            yield HeldDevice(device, devices.resource_name, pod, container.name, "", vm)
    for claim in container.dynamic_resources:
        name = f"{claim.claim_namespace}/{claim.claim_name}"
        for resource in claim.claim_resources:
            yield HeldDevice(resource.device_name, "", pod, container.name, name, vm)
