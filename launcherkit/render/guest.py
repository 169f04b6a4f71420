"""The tree of a guest on a terminal: what it gets, and from where."""

from __future__ import annotations

from collections.abc import Iterator

from launcherkit.colour import Ink
from launcherkit.render.columns import visible
from launcherkit.render.lines import Line, branched
from launcherkit.render.marks import comes_along
from launcherkit.topology.tree import GuestBridge, GuestFunction, TreeGuest

_SHORT = {
    "pcie-expander-bus": "expander",
    "pcie-root-port": "root port",
    "pcie-switch-upstream-port": "switch",
    "pcie-switch-downstream-port": "switch port",
}


def guest_lines(guest: TreeGuest, ink: Ink) -> Iterator[Line]:
    """The guest below its name."""
    yield Line((ink.head("guest"), visible(guest.name)))
    children = [[*_bridge(each, ink)] for each in guest.bridges]
    if guest.unplaced:
        rows = [[Line(guest_function_words(each, ink))] for each in guest.unplaced]
        children.append([Line(("where libvirt puts it",)), *branched(rows)])
    yield from branched(children or [[Line(("nothing of this host",))]])


def guest_bridge_words(bridge: GuestBridge) -> str:
    """``root port 5``, ``expander 7, bus e0, NUMA cell 1``."""
    number = "" if not bridge.bus_number else f", bus {bridge.bus_number:02x}"
    cell = "" if bridge.cell is None else f", NUMA cell {bridge.cell}"
    return f"{visible(_SHORT.get(bridge.model, bridge.model))} {bridge.index}{number}{cell}"


def guest_function_words(function: GuestFunction, ink: Ink) -> tuple[str, str, str]:
    """Where it is in the guest, where on the host, and for which request."""
    guest = "not shown" if function.role == "reserved" else function.guest or "address left to libvirt"
    return guest, f"\u2190 {function.source}", ink.good(f"{visible(function.request)}{comes_along(function)}")


def _bridge(bridge: GuestBridge, ink: Ink) -> Iterator[Line]:
    yield Line((ink.faint(guest_bridge_words(bridge)),))
    rows = [[Line(guest_function_words(each, ink))] for each in bridge.functions]
    yield from branched([*rows, *([*_bridge(each, ink)] for each in bridge.bridges)])
