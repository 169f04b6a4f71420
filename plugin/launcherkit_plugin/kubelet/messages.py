"""Converts the plugin's values to messages on the wire, and back. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from grpclib import GRPCError, Status

from launcherkit.errors import LauncherkitError
from launcherkit.rpc.calls import refusal
from launcherkit_plugin.kubelet.proto import deviceplugin_v1beta1_pb2 as wire
from launcherkit_plugin.model.device import Device, Grant, Resource, without_names
from launcherkit_plugin.model.errors import (
    BAD_KUBELET_REQUEST,
    BINDING_TOO_SLOW,
    CALLER_UNKNOWN,
    CARD_IN_OTHER_USE,
    CDI_NOT_WRITTEN,
    DEVICE_KEPT,
    DEVICE_UNHEALTHY,
    GIVING_BACK_TOO_SLOW,
    GROUP_SPLIT,
    NOT_BOUND_ON_DEMAND,
    NOT_GIVEN_BACK_ON_DEMAND,
    SHARED_REQUEST_TOO_LARGE,
    UNKNOWN_DEVICE,
    WORK_HANGS,
)

VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"


def options(resource: Resource) -> wire.DevicePluginOptions:
    """Which optional methods the kubelet may call.

    PreStartContainer is requested only where it is needed. The kubelet also calls it for containers whose devices of
    that resource name come from a DRA driver, and such a container then doesn't start.
    """
    checked = resource.made_at_start or bool(resource.same_device)
    return wire.DevicePluginOptions(pre_start_required=checked, get_preferred_allocation_available=True)


def device_list(resource: Resource) -> wire.ListAndWatchResponse:
    """All devices of a resource, sorted by ID (K1)."""
    return wire.ListAndWatchResponse(devices=[_device(resource.devices[name]) for name in sorted(resource.devices)])


def _device(device: Device) -> wire.Device:
    nodes = [] if device.numa_node is None else [wire.NUMANode(ID=device.numa_node)]
    return wire.Device(
        ID=device.id,
        health=HEALTHY if device.healthy else UNHEALTHY,
        topology=wire.TopologyInfo(nodes=nodes) if nodes else None,
    )


def allocation(grants: Iterable[Grant], dev_root: str) -> wire.AllocateResponse:
    """The answer to an Allocate.

    Args:
        grants: what each container gets.
        dev_root: prefix of the nodes' paths on the host; usually empty.
    """
    answer = wire.AllocateResponse()
    for grant in grants:
        container = answer.container_responses.add(envs=grant.env, annotations=grant.annotations)
        for node in grant.nodes:
            container.devices.add(container_path=node, host_path=dev_root + node, permissions=grant.permissions)
        for name in grant.cdi:
            container.cdi_devices.add(name=name)
    return answer


def wanted(resource: str, request: wire.AllocateRequest, limit: int) -> list[list[str]]:
    """The device IDs of each container.

    Args:
        resource: its name.
        request: from the kubelet.
        limit: how many devices the kubelet may know.

    Raises:
        BAD_KUBELET_REQUEST: there is no container, a container without devices, a repeated device, or too many devices.
    """
    containers = [list(container.devices_ids) for container in request.container_requests]
    _refuse_above(limit, resource, "an Allocate", sum(map(len, containers)))
    if not containers or not all(containers):
        raise BAD_KUBELET_REQUEST(f"{resource}: an Allocate without a device", _NOT_A_KUBELET, resource=resource)
    asked = list(chain.from_iterable(containers))
    if len(set(asked)) < len(asked):
        device = next(each for each, times in Counter(asked).items() if times > 1)[:100]
        raise BAD_KUBELET_REQUEST(
            f"{resource}: an Allocate asks for {device!r} more than once",
            _NOT_A_KUBELET,
            device=device,
            resource=resource,
        )
    return containers


def preferences(
    resource: str, request: wire.PreferredAllocationRequest, limit: int
) -> list[tuple[Sequence[str], Sequence[str], int]]:
    """For each container: the available IDs, those that the answer must include, and the number wanted.

    Raises:
        BAD_KUBELET_REQUEST: it can't be satisfied, or has more than ``limit`` devices, all that the kubelet may know.
    """
    containers = request.container_requests
    for asked in (len(containers), *(len(each.available_deviceIDs) for each in containers)):
        _refuse_above(limit, resource, "a preference", asked)
    return [_preference(resource, each) for each in containers]


def _preference(
    resource: str, request: wire.ContainerPreferredAllocationRequest
) -> tuple[Sequence[str], Sequence[str], int]:
    available, must = request.available_deviceIDs, request.must_include_deviceIDs
    size = request.allocation_size
    if not len(must) <= size <= len(available) or not set(must) <= set(available):
        raise BAD_KUBELET_REQUEST(
            f"{resource}: a preference of {size} out of {len(available)} devices, with {len(must)} of them given",
            _NOT_A_KUBELET,
            resource=resource,
        )
    return available, must, size


def to_check(resource: str, request: wire.PreStartContainerRequest, limit: int) -> list[str]:
    """The device IDs of the container that is about to start.

    Raises:
        BAD_KUBELET_REQUEST: there are more than ``limit``, which is all the kubelet may know.
    """
    _refuse_above(limit, resource, "a PreStartContainer", len(request.devices_ids))
    return list(request.devices_ids)


def _refuse_above(limit: int, resource: str, call: str, asked: int) -> None:
    if asked > limit:
        raise BAD_KUBELET_REQUEST(
            f"{resource}: {call} of {asked} devices, where there are {limit} at most", _NOT_A_KUBELET, resource=resource
        )


_NOT_A_KUBELET = "No kubelet asks for that; check what else has the folder device-plugins mounted."


def refused(error: LauncherkitError) -> GRPCError:
    """The gRPC error for the kubelet, which shows it in the pod's Events: it names no other pod."""
    first = next(iter(error.leaves()))
    answer = refusal(error, _STATUS.get(first.code))
    return GRPCError(answer.status, without_names(answer.message or ""))


_STATUS: Mapping[str, Status] = {
    UNKNOWN_DEVICE.code: Status.NOT_FOUND,
    BAD_KUBELET_REQUEST.code: Status.INVALID_ARGUMENT,
    DEVICE_UNHEALTHY.code: Status.FAILED_PRECONDITION,
    GROUP_SPLIT.code: Status.FAILED_PRECONDITION,
    CARD_IN_OTHER_USE.code: Status.FAILED_PRECONDITION,
    SHARED_REQUEST_TOO_LARGE.code: Status.INVALID_ARGUMENT,
    WORK_HANGS.code: Status.UNAVAILABLE,
    BINDING_TOO_SLOW.code: Status.UNAVAILABLE,
    NOT_BOUND_ON_DEMAND.code: Status.FAILED_PRECONDITION,
    GIVING_BACK_TOO_SLOW.code: Status.UNAVAILABLE,
    NOT_GIVEN_BACK_ON_DEMAND.code: Status.FAILED_PRECONDITION,
    CDI_NOT_WRITTEN.code: Status.UNAVAILABLE,
    DEVICE_KEPT.code: Status.FAILED_PRECONDITION,
    CALLER_UNKNOWN.code: Status.UNAVAILABLE,
}
