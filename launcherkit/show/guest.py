"""The tree of a VM's guest, made from its plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from launcherkit.model.domain import GuestTree
from launcherkit.model.plan import NotAttached, Plan, PlannedDevice, PlannedFunction, Role, Window


@dataclass(frozen=True, slots=True)
class GuestFunction:
    """A function or mediated device of a guest, and its place."""

    source: str
    """Its address on the host, or the UUID of a mediated device."""
    request: str
    """The name of the request that it, or its primary, answers."""
    role: Role
    why: str
    """Why it is attached, in words."""
    guest: str | None
    """Its address in the guest; None if libvirt chooses it, or the guest doesn't see it."""


@dataclass(frozen=True, slots=True)
class GuestBridge:
    """A PCI controller of a guest that leads to its devices."""

    index: int
    model: str
    bus_number: int | None
    cell: int | None
    """The guest's NUMA cell, for a root bus."""
    bridges: tuple[GuestBridge, ...]
    functions: tuple[GuestFunction, ...]


@dataclass(frozen=True, slots=True)
class TreeGuest:
    """A VM's devices."""

    name: str
    bridges: tuple[GuestBridge, ...]
    unplaced: tuple[GuestFunction, ...]
    """Devices that libvirt places, those behind ports that libvirt places, and those that the guest doesn't see."""
    stayed: tuple[NotAttached, ...]
    """Functions of its cards that are not attached."""
    window: Window | None
    """The 64-bit PCI window that is needed, and what is written for it; None if the default has room (P5)."""

    def functions(self) -> Iterator[GuestFunction]:
        """All its devices."""
        for bridge in self.bridges:
            yield from _functions_of(bridge)
        yield from self.unplaced


def _functions_of(bridge: GuestBridge) -> Iterator[GuestFunction]:
    yield from bridge.functions
    for below in bridge.bridges:
        yield from _functions_of(below)


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
            buses = () if function.guest is None else tree.buses(function.guest.address)
            rooted = bool(buses) and tree.controllers[buses[0]].is_root
            (placed.setdefault(buses, []) if rooted else unplaced).append(_function(function, device))
    stayed = tuple(absent for device in plan.devices for absent in device.not_attached)
    return TreeGuest(name, _bridges(placed, 0, tree), tuple(unplaced), stayed, plan.window)


def _function(function: PlannedFunction, device: PlannedDevice) -> GuestFunction:
    match = function.attachment.match or device.primary.attachment.match
    return GuestFunction(
        str(function.source),
        match.name if match else "",
        function.attachment.role,
        function.attachment.why,
        None if function.guest is None else str(function.guest.address),
    )


def _bridges(
    placed: Mapping[tuple[int, ...], list[GuestFunction]], depth: int, tree: GuestTree
) -> tuple[GuestBridge, ...]:
    """The bridges directly below one point of the tree, through which all paths go.

    Args:
        placed: the functions by the buses that lead to them, from the root bus on.
        depth: how many of these buses are above.
        tree: tells what leads to each bus.
    """
    below: dict[int, dict[tuple[int, ...], list[GuestFunction]]] = {}
    for buses, functions in placed.items():
        if len(buses) > depth:
            below.setdefault(buses[depth], {})[buses] = functions
    return tuple(
        GuestBridge(
            index=bus,
            model=tree.controllers[bus].model,
            bus_number=tree.controllers[bus].bus_number,
            cell=tree.controllers[bus].cell,
            bridges=_bridges(paths, depth + 1, tree),
            functions=tuple(each for buses, those in paths.items() if len(buses) == depth + 1 for each in those),
        )
        for bus, paths in sorted(below.items())
    )
