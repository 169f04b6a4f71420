"""Draws the tree of a guest: its devices, and where on the host they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from launcherkit.colour import Colours
from launcherkit.errors import LauncherkitError
from launcherkit.model.plan import Window
from launcherkit.show.guest import GuestBridge, GuestFunction, TreeGuest
from launcherkit.show.layout import Line, branched, size, visible
from launcherkit.show.marks import comes_along

_SHORT = {
    "pcie-expander-bus": "expander",
    "pcie-root-port": "root port",
    "pcie-switch-upstream-port": "switch",
    "pcie-switch-downstream-port": "switch port",
}


def guest_lines(guest: TreeGuest, colours: Colours) -> Iterator[Line]:
    """The guest's tree, below its name."""
    yield Line((colours.head("guest"), visible(guest.name)))
    children = [[*_bridge(each, colours)] for each in guest.bridges]
    if guest.unplaced:
        rows = [[Line(guest_function_texts(each, colours))] for each in guest.unplaced]
        children.append([Line(("where libvirt puts it",)), *branched(rows)])
    if guest.window is not None:
        children.append([Line(window_texts(guest.window))])
    yield from branched(children or [[Line(("nothing of this host",))]])


def refused_lines(name: str, errors: Iterable[LauncherkitError], colours: Colours) -> Iterator[Line]:
    """A guest that can't have its devices: the code and subject of each error."""
    yield Line((colours.head("guest"), visible(name), colours.bad("can't start")))
    yield from branched([[Line((colours.bad(each.code), visible(subject_of(each))))] for each in errors])


def subject_of(error: LauncherkitError) -> str:
    """The subject of an error: its device, else whatever else it names."""
    group = "" if error.group is None else f"IOMMU group {error.group}"
    about = (error.device, group, None if error.driver is None else f"bound to {error.driver}")
    return ", ".join(filter(None, about)) or error.resource or error.variable or error.file or error.message


def guest_bridge_text(bridge: GuestBridge) -> str:
    """``root port 5``, ``expander 7, bus e0, NUMA cell 1``."""
    number = "" if not bridge.bus_number else f", bus {bridge.bus_number:02x}"
    cell = "" if bridge.cell is None else f", NUMA cell {bridge.cell}"
    return f"{visible(_SHORT.get(bridge.model, bridge.model))} {bridge.index}{number}{cell}"


def guest_function_texts(function: GuestFunction, colours: Colours) -> tuple[str, str, str]:
    """Its address in the guest, its address on the host, and its request."""
    guest = "not shown" if function.role == "reserved" else function.guest or "address left to libvirt"
    return guest, f"\u2190 {function.source}", colours.good(f"{visible(function.request)}{comes_along(function)}")


def window_texts(window: Window) -> tuple[str, str]:
    """How much of the guest's 64-bit window the BARs need, and what is written for it (P5)."""
    hole = f"<pcihole64> of {size(window.hole)}" if window.hole else ""
    bits = "<maxphysaddr mode='passthrough'>" if window.pass_bits else ""
    written = " and ".join(filter(None, (hole, bits))) or "nothing"
    return f"64-bit window: the BARs need {size(window.need)}", f"written for it: {written}"


def _bridge(bridge: GuestBridge, colours: Colours) -> Iterator[Line]:
    yield Line((colours.faint(guest_bridge_text(bridge)),))
    rows = [[Line(guest_function_texts(each, colours))] for each in bridge.functions]
    yield from branched([*rows, *([*_bridge(each, colours)] for each in bridge.bridges)])
