"""What a container gets of a device plugin, and what it is refused."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from launcherkit_lab.conformance.advertisement import functions
from launcherkit_lab.conformance.expectation import Expectation, Level, NotTried, Unmet, judged
from launcherkit_lab.conformance.machine import CONTAINER, IOMMUFD, VFIO, Given, Machine
from launcherkit_lab.conformance.node import Node
from launcherkit_lab.conformance.sources import API, DOCS, KUBEVIRT, LAB, MANAGER
from launcherkit_lab.conformance.sources import VFIO as VFIO_RST
from launcherkit_lab.kubelet import NotAdmitted
from launcherkit_lab.proto import deviceplugin_v1beta1_pb2 as wire

_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]")
_UNKNOWN = "no-such-device"


def _variables(node: Node) -> str:
    alone: dict[str, tuple[str, ...]] = {}

    def problems() -> Iterator[str]:
        for container in node.several():
            ids, resource = container.holding.ids, container.holding.resource
            name = node.variable(resource)
            if not container.addresses:
                others = ", ".join(sorted(container.variables)) or "none"
                yield f"{container}: no variable {name}; there are: {others}"
            for address in container.addresses:
                if not _ADDRESS.fullmatch(address) or not node.machine.exists(address):
                    yield f"{container}: {name} names {address!r}, and the machine has no such function"
            if len(ids) == 1:
                alone[f"{resource}/{ids[0]}"] = container.addresses
            elif set(container.addresses) != {address for key in ids for address in alone[f"{resource}/{key}"]}:
                yield f"{container}: {name}={','.join(container.addresses)} isn't what each has alone"

    return judged(problems(), ", ".join(node.variable(resource) for resource in node.resources))


def vfio_nodes(container: Given, machine: Machine) -> tuple[set[str], set[str]]:
    """The nodes of a container's groups: by group, and by function; the latter empty where the kernel has none."""
    members = [address for group in container.groups for address in machine.members(group) if machine.on_vfio(address)]
    cdevs = {path for address in members if (path := machine.cdev(address))}
    by_group = {CONTAINER, *(str(VFIO / group) for group in container.groups)}
    return by_group, {IOMMUFD, *cdevs} if cdevs else set()


def _nodes(node: Node) -> str:
    def problems() -> Iterator[str]:
        for container in node.several():
            groups = {node.machine.group(address) for address in container.addresses if node.machine.exists(address)}
            by_group, by_function = vfio_nodes(
                container._replace(groups=frozenset(filter(None, groups)) or container.groups), node.machine
            )
            nodes = set(container.nodes)
            if not (by_group <= nodes or (by_function and by_function <= nodes)):
                way = by_function if by_function and IOMMUFD in nodes else by_group
                yield f"{container}: lacks {', '.join(sorted(way - nodes))}"
            strange = {path for path in nodes if Path(path).is_relative_to(VFIO)} - by_group - by_function
            if strange:
                yield f"{container}: has {', '.join(sorted(strange))}, which is none of its groups"
            for device in container.devices:
                if not {"r", "w"} <= set(device.permissions):
                    yield f"{container}: {device.path} may not be read and written: {device.permissions!r}"

    return judged(problems(), "every container has the nodes of its groups")


def _usable(node: Node) -> str:
    def problems() -> Iterator[str]:
        for container in node.each():
            paths = [device.host_path for device in container.devices]
            yield from (f"{container}: {problem}" for path in paths if (problem := node.machine.unusable(path)))

    return judged(problems(), "every node can be opened")


def _nothing_else(node: Node) -> str:
    def problems() -> Iterator[str]:
        for container in node.each():
            others = [path for path in container.nodes if path != IOMMUFD and not Path(path).is_relative_to(VFIO)]
            if others or container.mounts:
                yield f"{container}: has {', '.join([*others, *container.mounts])}, too"

    return judged(problems(), "a container has VFIO's nodes alone")


def _availabilities(node: Node, resources: list[str]) -> Iterator[tuple[str, list[str]]]:
    """All devices of each resource, and all but the first, as when a pod has that."""
    for resource in resources:
        healthy = node.healthy(resource)
        yield from ((resource, available) for available in (healthy, healthy[1:]) if available)


def _preferred(node: Node) -> str:
    offered = [name for name in node.resources if node.kubelet.options(name).get_preferred_allocation_available]

    def problems() -> Iterator[str]:
        for resource, available in _availabilities(node, offered):
            for size in range(1, len(available) + 1):
                must = available[-1:]
                request = wire.PreferredAllocationRequest()
                request.container_requests.add(
                    available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
                )
                answer = node.kubelet.call(
                    resource, "GetPreferredAllocation", request, wire.PreferredAllocationResponse
                )
                asked = f"{resource}: {size} of {', '.join(available)} with {', '.join(must)}"
                if len(answer.container_responses) != 1:
                    yield f"{asked}: {len(answer.container_responses)} answers"
                    continue
                ids = list(answer.container_responses[0].deviceIDs)
                if len(set(ids)) != len(ids) or not set(must) <= set(ids) <= set(available) or len(ids) > size:
                    yield f"{asked}: {', '.join(ids) or 'nothing'}"

    return judged(problems(), f"offered for {', '.join(offered) or 'no resource'}")


def _refused(node: Node, resource: str, key: str) -> str:
    registered = len(node.kubelet.registrations)
    try:
        answer = node.kubelet.call_allocate(resource, [key])
    except NotAdmitted as refusal:
        if str(refusal).startswith("DEADLINE_EXCEEDED"):
            raise Unmet(f"asked for {key} of {resource} the plugin doesn't answer: {refusal}") from refusal
        try:
            node.kubelet.call(resource, "GetDevicePluginOptions", wire.Empty(), wire.DevicePluginOptions)
        except NotAdmitted as gone:
            raise Unmet(f"asked for {key} of {resource} the plugin is gone: {refusal}; then: {gone}") from gone
        if len(node.kubelet.registrations) > registered:
            raise Unmet(f"asked for {key} of {resource} the plugin began anew: {refusal}") from refusal
        return str(refusal)
    handed = [device.host_path for one in answer.container_responses for device in one.devices]
    handed += [device.name for one in answer.container_responses for device in one.cdi_devices]
    raise Unmet(f"{key} of {resource} was allocated: {', '.join(handed) or 'without a node'}")


def _unknown(node: Node) -> str:
    return _refused(node, node.resources[0], _UNKNOWN)


def _victim(node: Node) -> tuple[str, str, str]:
    """A device whose function can lose its driver: resource, ID, address."""
    for container in node.each():
        for address in functions(node, container):
            if node.machine.on_vfio(address):
                return container.holding.resource, container.holding.ids[0], address
    raise NotTried("no device says which function it is")


def _health(node: Node) -> str:
    resource, key, address = _victim(node)

    def wait(health: str, event: str) -> float:
        """Seconds till it is so."""
        began = time.monotonic()
        node.kubelet.wait(
            lambda: bool(node.kubelet.devices(resource).get(key)) == (health == "Healthy"),
            f"{key} of {resource} is not {health} {node.limits.patience:.0f} s after {address} was {event}",
        )
        if (seconds := time.monotonic() - began) > node.limits.health_seconds:
            raise Unmet(f"it took {seconds:.1f} s till {key} was {health} after {address} was {event}")
        return seconds

    with node.machine.unbound(address):
        gone = wait("Unhealthy", "unbound")
    return f"Unhealthy after {gone:.1f} s, Healthy after {wait('Healthy', 'bound again'):.1f} s"


def _unhealthy(node: Node) -> str:
    resource, key, address = _victim(node)
    with node.machine.unbound(address):
        node.kubelet.wait(
            lambda: not node.kubelet.devices(resource).get(key), f"{key} never became Unhealthy without a driver"
        )
        return _refused(node, resource, key)


EXPECTATIONS = (
    Expectation(
        "DP6",
        Level.MUST,
        "The variable that KubeVirt reads names the functions, all of them, and they exist",
        KUBEVIRT,
        _variables,
    ),
    Expectation(
        "DP7",
        Level.MUST,
        "A container has the nodes of every IOMMU group of its devices, and of no other group",
        f"{VFIO_RST}, Usage Example and IOMMUFD",
        _nodes,
    ),
    Expectation(
        "DP8",
        Level.MUST,
        "These nodes can be opened, and the kernel says that the groups are viable",
        f"{VFIO_RST}, VFIO_GROUP_GET_STATUS",
        _usable,
    ),
    Expectation(
        "DP9", Level.SHOULD, "A container has no other device and no mount", f"{LAB}: it needs none", _nothing_else
    ),
    Expectation(
        "DP10",
        Level.MUST,
        "GetPreferredAllocation, if it is offered, keeps to what it was asked",
        f"{API}, PreferredAllocationRequest",
        _preferred,
    ),
    Expectation(
        "DP11",
        Level.MUST,
        "Allocate refuses an ID that was never listed",
        f"{API}, AllocateRequest: a failure fails the start of the pod; else it starts without its device",
        _unknown,
    ),
    Expectation(
        "DP12",
        Level.MUST,
        "A device whose function loses its driver becomes Unhealthy, then Healthy again, in time",
        f"{API}, ListAndWatch; {DOCS}: health",
        _health,
    ),
    Expectation(
        "DP13",
        Level.MUST,
        "Allocate refuses a device that is Unhealthy",
        f"{API}, AllocateResponse; {MANAGER}: the list may be on its way when a pod is admitted",
        _unhealthy,
    ),
)
