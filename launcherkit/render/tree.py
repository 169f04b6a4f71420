"""Where each function is on the host, and where it will be in the guest (P2, P4, P5)."""

from __future__ import annotations

from collections.abc import Iterator

from launcherkit.colour import Ink
from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciDetail
from launcherkit.model.host import HostFacts
from launcherkit.model.plan import Plan, PlannedFunction
from launcherkit.model.tree import Bridge, GuestTree
from launcherkit.render.columns import columns, visible
from launcherkit.render.size import size
from launcherkit.topology.build import bar_sizes

_ABOVE_A_SWITCH = 2
"""A root complex and a root port; what comes after them on the way to a device is a switch."""
_SHORT = {
    "pcie-expander-bus": "expander",
    "pcie-root-port": "root port",
    "pcie-switch-upstream-port": "switch",
    "pcie-switch-downstream-port": "its port",
}


def explain_tree(plan: Plan, tree: GuestTree, facts: HostFacts, ink: Ink) -> Iterator[str]:
    """Two lines a PCI function, host and guest, and what is written for the 64-bit window; nothing where there is none.

    Args:
        plan: what the domain gets.
        tree: of the document with the plan in it.
        facts: of the host.
        ink: colours or none.
    """
    functions = [each for device in plan.devices for each in device.functions if isinstance(each.source, PciAddress)]
    if not functions:
        return
    yield ink.head("PCI tree")
    rows = []
    for function in functions:
        rows.append((str(function.source), "host", _on_host(function, facts)))
        rows.append(("", "guest", _in_guest(function, tree)))
    yield from columns(rows)
    if plan.window is not None:
        hole = f"<pcihole64> of {size(plan.window.hole)}" if plan.window.hole else ""
        bits = "<maxphysaddr mode='passthrough'>" if plan.window.pass_bits else ""
        written = " and ".join(filter(None, (hole, bits))) or "nothing"
        yield f"  64-bit window: the BARs need {size(plan.window.need)}; written for it: {written}"


def _on_host(function: PlannedFunction, facts: HostFacts) -> str:
    known = facts.functions.get(function.source) if isinstance(function.source, PciAddress) else None
    if known is None:
        return "not known"
    detail = facts.details.get(known.address)
    parts = [detail.parents[0]] if detail and detail.parents else []
    parts.append("no NUMA node" if known.numa_node is None else f"node {known.numa_node}")
    if detail is not None:
        if len(detail.parents) > _ABOVE_A_SWITCH:
            parts.append(f"switch {detail.parents[_ABOVE_A_SWITCH]}")
        parts += _bars(detail)
    return visible(", ".join(parts))


def _bars(detail: PciDetail) -> list[str]:
    sizes = list(map(size, bar_sizes(detail)))
    return [f"BARs of {' + '.join(sizes)}"] if sizes else []


def _in_guest(function: PlannedFunction, tree: GuestTree) -> str:
    if function.attachment.role == "reserved":
        return "not shown"
    if function.guest is None:
        return "libvirt chooses"
    address = function.guest.address
    way = tree.way(address)
    names = [_name(bridge) for bridge in way]
    if not way or not way[0].is_root:
        names.insert(0, "where libvirt puts the port")
    return ", ".join((*names, f"slot {address.slot:02x}.{address.function}"))


def _name(bridge: Bridge) -> str:
    name = _SHORT.get(bridge.model, bridge.model)
    if bridge.bus_number == 0:
        return name
    if not bridge.is_root:
        return f"{name} {bridge.number}"
    number = "" if bridge.bus_number is None else f"bus {bridge.bus_number:02x}, "
    return f"{name} {bridge.number} ({number}{'no cell' if bridge.node is None else f'cell {bridge.node}'})"
