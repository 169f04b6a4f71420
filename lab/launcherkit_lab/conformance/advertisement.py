"""What a device plugin tells the kubelet of the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from launcherkit_lab.conformance.expectation import Expectation, Level, Unmet, judged
from launcherkit_lab.conformance.machine import Given
from launcherkit_lab.conformance.node import Node
from launcherkit_lab.conformance.sources import API, DOCS, LAB, MANAGER, VFIO

MAX_ID = 63


def _registers(node: Node) -> str:
    """`Node.prepare` has waited for it; it must last."""
    with suppress(TimeoutError):
        node.kubelet.wait(
            lambda: not all(map(node.kubelet.devices, node.resources)), seconds=node.limits.steady_seconds
        )
        raise Unmet("ListAndWatch has ended, though the plugin lives: the kubelet takes all devices for gone")
    return ", ".join(f"{len(node.kubelet.devices(resource))} devices of {resource}" for resource in node.resources)


def _names(node: Node) -> str:
    def problems() -> Iterator[str]:
        for resource in node.resources:
            listed = node.kubelet.listed(resource)
            yield from (
                f"{resource}: {key} is listed {count} times" for key, count in Counter(listed).items() if count > 1
            )
            yield from (f"{resource}: an ID of {len(key)} characters: {key}" for key in listed if len(key) > MAX_ID)
            if "" in listed:
                yield f"{resource}: an ID without a character"

    return judged(problems(), f"{sum(len(node.kubelet.listed(resource)) for resource in node.resources)} IDs")


def functions(node: Node, container: Given) -> list[str]:
    """What a container has: the functions of its variable, or else those of its groups that have a VFIO driver."""
    members = [address for group in sorted(container.groups) for address in node.machine.members(group)]
    return [*container.addresses] or [address for address in members if node.machine.on_vfio(address)]


def _fit(node: Node) -> str:
    def problems() -> Iterator[str]:
        for container in node.each():
            if not (addresses := functions(node, container)):
                yield f"{container}: neither a variable nor a device node says which device it is"
            yield from (f"{container}: {problem}" for one in addresses if (problem := node.machine.unfit(one)))

    return judged(problems(), "every healthy device can go to a guest")


def _complete(node: Node) -> str:
    selected = set(node.machine.having(node.models))
    fit = {address for address in selected if not node.machine.unfit(address)}
    if not selected:
        raise Unmet(f"the machine has no function {', '.join(node.models)}")
    offered: set[str] = set()
    for container in node.each():
        offered.update(functions(node, container))

    def problems() -> Iterator[str]:
        for address in sorted(fit - offered):
            yield f"{address} could go to a guest, and is not listed as healthy"
        for address in sorted(offered - selected):
            mates = node.machine.members(node.machine.group(address) or "")
            if selected.isdisjoint(mates):  # the others of a card's group may be named with it
                yield f"{address} is offered, and is none of {', '.join(node.models)}"

    return judged(problems(), ", ".join(sorted(fit)))


def _topology(node: Node) -> str:
    def problems() -> Iterator[str]:
        for container in node.each():
            (key,), resource = container.holding.ids, container.holding.resource
            said = node.kubelet.topology(resource).get(key)
            nodes = {node.machine.node(address) for address in functions(node, container)}
            if {said} != nodes:
                yield f"{container}: NUMA node {said} is said, {', '.join(map(str, nodes))} is in sysfs"

    return judged(problems(), "the NUMA nodes are those of sysfs")


EXPECTATIONS = (
    Expectation(
        "DP1",
        Level.MUST,
        "It registers every resource by v1beta1, and lists devices as the kubelet takes them",
        f"{API}, RegisterRequest; {MANAGER}",
        _registers,
    ),
    Expectation("DP2", Level.MUST, "IDs are unique, and of 1 to 63 characters", f"{API}, Device", _names),
    Expectation(
        "DP3",
        Level.MUST,
        "Every healthy device can go to a guest: a VFIO driver has it, and its group is viable",
        f"{VFIO}, Groups",
        _fit,
    ),
    Expectation(
        "DP4",
        Level.MUST,
        "All selected functions that can go to a guest are offered, and no others",
        f"{DOCS}: the list of the devices of the node",
        _complete,
    ),
    Expectation(
        "DP5",
        Level.SHOULD,
        "A device has the NUMA node of its function, and none where sysfs has none",
        f"{API}, TopologyInfo; {LAB}: the Topology Manager aligns CPUs by it",
        _topology,
    ),
)
