"""Builds the tree of a guest from its plan."""

from __future__ import annotations

from collections.abc import Mapping

from launcherkit.model.plan import Plan, PlannedDevice, PlannedFunction
from launcherkit.model.tree import Bridge, GuestTree
from launcherkit.topology.host_topology import GuestBridge, GuestFunction, Stayed, TreeGuest


def guest_of(name: str, plan: Plan, tree: GuestTree) -> TreeGuest:
    """The tree of a VM's guest.

    Args:
        name: the VM's.
        plan: from its translation.
        tree: of the translated document.
    """
    placed: dict[tuple[int, ...], list[GuestFunction]] = {}
    unplaced: list[GuestFunction] = []
    for device in plan.devices:
        for function in device.functions:
            way = () if function.guest is None else tree.way(function.guest.address)
            rooted = bool(way) and way[0].is_root
            where = placed.setdefault(tuple(bridge.number for bridge in way), []) if rooted else unplaced
            where.append(_function(function, device))
    stayed = tuple(Stayed(each.address, each.why) for device in plan.devices for each in device.stayed)
    return TreeGuest(name, _bridges(placed, 0, tree.bridges), tuple(unplaced), stayed, plan.window)


def _function(function: PlannedFunction, device: PlannedDevice) -> GuestFunction:
    claim = function.attachment.claim or device.primary.attachment.claim
    return GuestFunction(
        str(function.source),
        claim.name if claim else "",
        function.attachment.role,
        function.attachment.why,
        None if function.guest is None else str(function.guest.address),
    )


def _bridges(
    placed: Mapping[tuple[int, ...], list[GuestFunction]], depth: int, bridges: Mapping[int, Bridge]
) -> tuple[GuestBridge, ...]:
    """The bridges directly below one point of the tree, through which all paths go."""
    below: dict[int, dict[tuple[int, ...], list[GuestFunction]]] = {}
    for way, functions in placed.items():
        if len(way) > depth:
            below.setdefault(way[depth], {})[way] = functions
    return tuple(
        GuestBridge(
            index=index,
            model=bridges[index].model,
            bus_number=bridges[index].bus_number,
            cell=bridges[index].node,
            bridges=_bridges(ways, depth + 1, bridges),
            functions=tuple(each for way, them in ways.items() if len(way) == depth + 1 for each in them),
        )
        for index, ways in sorted(below.items())
    )
