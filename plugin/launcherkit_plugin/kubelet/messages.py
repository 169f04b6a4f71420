"""What goes over the wire, from the plugin's values and back. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from grpclib import GRPCError, Status

from launcherkit.errors import LauncherkitError
from launcherkit.rpc.refusal import refusal
from launcherkit_plugin.kubelet.proto import deviceplugin_v1beta1_pb2 as wire
from launcherkit_plugin.model.device import Device, Grant, Resource
from launcherkit_plugin.model.errors import (
    BadKubeletRequest,
    CdiNotWritten,
    DeviceUnhealthy,
    GroupSplit,
    UnknownDevice,
    WorkHangs,
)

VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"

PERMISSIONS = "mrw"
"""Of a device node in the container's device cgroup. libvirt gives QEMU a ``/dev`` of its own and makes the nodes in
it, which takes ``m``; KubeVirt's and NVIDIA's plugins give the same."""


def options() -> wire.DevicePluginOptions:
    """What the kubelet may ask us."""
    return wire.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


def device_list(resource: Resource) -> wire.ListAndWatchResponse:
    """All devices of a resource, in the order of their IDs (K1)."""
    return wire.ListAndWatchResponse(devices=[_device(resource.devices[name]) for name in sorted(resource.devices)])


def _device(device: Device) -> wire.Device:
    nodes = [] if device.numa_node is None else [wire.NUMANode(ID=device.numa_node)]
    return wire.Device(
        ID=device.id,
        health=HEALTHY if device.healthy else UNHEALTHY,
        topology=wire.TopologyInfo(nodes=nodes) if nodes else None,
    )


def allocation(grant: Grant, dev_root: str) -> wire.ContainerAllocateResponse:
    """The kubelet's answer for one container.

    Args:
        grant: what the container gets.
        dev_root: what stands before a node's path on the host; empty where the node is what it is.
    """
    return wire.ContainerAllocateResponse(
        envs=dict(grant.env),
        devices=[
            wire.DeviceSpec(container_path=node, host_path=dev_root + node, permissions=PERMISSIONS)
            for node in grant.nodes
        ],
        cdi_devices=[wire.CDIDevice(name=name) for name in grant.cdi],
    )


def wanted(resource: str, request: wire.AllocateRequest) -> list[list[str]]:
    """The device IDs of each container.

    Raises:
        BadKubeletRequest: for no container, of no device, or a device more than once.
    """
    containers = [list(container.devices_ids) for container in request.container_requests]
    every = [device for container in containers for device in container]
    if not containers or not all(containers):
        raise BadKubeletRequest(f"{resource}: an Allocate without a device", _NOT_A_KUBELET)
    if len(set(every)) < len(every):
        twice = next(device for device in every if every.count(device) > 1)
        raise BadKubeletRequest(f"{resource}: an Allocate asks for {twice[:100]!r} more than once", _NOT_A_KUBELET)
    return containers


def preference(
    resource: str, request: wire.ContainerPreferredAllocationRequest
) -> tuple[Sequence[str], Sequence[str], int]:
    """What is available, what must be among it, and how many are wanted.

    Raises:
        BadKubeletRequest: what can't be had at all.
    """
    available, must = request.available_deviceIDs, request.must_include_deviceIDs
    size = request.allocation_size
    if not len(must) <= size <= len(available) or not set(must) <= set(available):
        raise BadKubeletRequest(
            f"{resource}: a preference of {size} out of {len(available)} devices, with {len(must)} of them given",
            _NOT_A_KUBELET,
        )
    return available, must, size


_NOT_A_KUBELET = "No kubelet asks for that; see who else has the folder of the device plugins mounted."


def refused(error: LauncherkitError) -> GRPCError:
    """An error as the kubelet reads it; it stands in the pod's events."""
    first = next(iter(error.leaves()))
    return refusal(error, next((status for kind, status in _STATUS if isinstance(first, kind)), None))


_STATUS: tuple[tuple[type[LauncherkitError], Status], ...] = (
    (UnknownDevice, Status.NOT_FOUND),
    (BadKubeletRequest, Status.INVALID_ARGUMENT),
    (DeviceUnhealthy, Status.FAILED_PRECONDITION),
    (GroupSplit, Status.FAILED_PRECONDITION),
    (WorkHangs, Status.UNAVAILABLE),
    (CdiNotWritten, Status.UNAVAILABLE),
)
