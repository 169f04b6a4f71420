"""The distances between the guest's NUMA cells (P10). Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from launcherkit.model.address import PciAddress, format_cpuset
from launcherkit.model.domain import GuestCell
from launcherkit.model.host import HostFacts, NumaNode
from launcherkit.model.plan import Note

_NEXT = 11
"""The least that libvirt takes between two cells; 9.0 and 12.8 refuse 10."""


class Distances(NamedTuple):
    """From each cell to each, itself included; empty if none are written. With notes."""

    between: Mapping[int, Mapping[int, int]] = {}
    notes: tuple[Note, ...] = ()


def distances_of(
    cells: Sequence[GuestCell], added: Iterable[int], nodesets: Mapping[PciAddress, frozenset[int]], host: HostFacts
) -> Distances:
    """The distances of the host nodes that the cells stand for: all of them, or none.

    A cell without a distance would be as far as libvirt's default, 20, whatever the others are, so one that can't be
    told leaves all of them to the default.

    Args:
        cells: the document's.
        added: further ones, which are empty.
        nodesets: the cells of each function that is a generic initiator.
        host: with NUMA nodes.
    """
    nodes = dict(_nodes_of(cells, host.numa))
    if sum(not cell.empty for cell in cells) < 2:
        return Distances()
    nodes |= _nodes_of_initiators(nodesets, host)
    if unknown := [cell for cell in (*(cell.id for cell in cells), *added) if cell not in nodes]:
        return Distances(notes=(_not_known(unknown),))
    ordered = sorted(nodes.items())
    figures = {node: host.numa[node].distances for _, node in ordered}
    if unread := [node for node, row in figures.items() if not row]:
        return Distances(notes=(_no_figures(unread[0]),))
    return Distances(
        {
            cell: {other: 10 if other == cell else max(figures[node][at], _NEXT) for other, at in ordered}
            for cell, node in ordered
        }
    )


def _nodes_of(cells: Iterable[GuestCell], numa: Mapping[int, NumaNode]) -> Iterable[tuple[int, int]]:
    """The host node of each cell that has only one."""
    for cell in cells:
        nodes = cell.nodes or frozenset(number for number, node in numa.items() if node.cpus & cell.cpus)
        if len(nodes) == 1 and nodes <= numa.keys():
            yield cell.id, next(iter(nodes))


def _nodes_of_initiators(nodesets: Mapping[PciAddress, frozenset[int]], host: HostFacts) -> dict[int, int]:
    """The host nodes of the cells of GPUs that are alone on their socket, whose memory nodes are those nearest to it.

    sysfs doesn't say which of its nodes are a GPU's.
    """
    with_cpus = [number for number, node in host.numa.items() if node.cpus]
    homes: dict[int, list[int]] = {}
    for number, node in sorted(host.numa.items()):
        if not node.cpus and node.distances and with_cpus:
            homes.setdefault(min((node.distances[home], home) for home in with_cpus)[1], []).append(number)
    nodes: dict[int, int] = {}
    at = {address: host.functions[address].numa_node for address in nodesets if address in host.functions}
    for address, home in at.items():
        cells, own = sorted(nodesets[address]), [] if home is None else homes.get(home, [])
        if len(own) == len(cells) and [*at.values()].count(home) == 1:
            nodes |= zip(cells, own, strict=True)
    return nodes


def _no_figures(node: int) -> Note:
    return Note("numa-distances", f"none are written: those of the host's node {node} aren't known")


def _not_known(cells: Sequence[int]) -> Note:
    word = "cell" if len(cells) == 1 else "cells"
    text = f"which node of the host stands behind the guest's {word} {format_cpuset(frozenset(cells))} isn't known"
    return Note("numa-distances", f"none are written: {text}")
