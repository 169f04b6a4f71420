"""Finds the NUMA cell of the guest for a node of the host (P4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from launcherkit.model.domain import GuestCell
from launcherkit.model.host import NumaNode


class Nearest(NamedTuple):
    """A cell, and its host node if that isn't the device's own."""

    cell: int
    instead: int | None = None


class CellMap:
    """The guest's cells by host node, as in KubeVirt: by ``<memnode>`` first, else by the pinned vCPUs."""

    def __init__(self, cells: Sequence[GuestCell], numa: Mapping[int, NumaNode]) -> None:
        self._numa = numa
        self._by_memory = _unambiguous((node, cell.id) for cell in cells for node in cell.nodes)
        # A host CPU to which vCPUs of two cells are pinned says nothing about either.
        self._by_cpu = _unambiguous((cpu, cell.id) for cell in cells for cpu in cell.cpus)

    def find(self, node: int) -> Nearest | None:
        """The cell for a device on a host node.

        No vCPU can be pinned to a node without CPUs. If no memory is bound to it either, the cell is that of the
        nearest node that has one, and of equally near ones the lowest.
        """
        own = self._own(node)
        if own is not None:
            return Nearest(own)
        there = self._numa.get(node)
        if there is None or there.cpus:
            return None
        others = [(distance, other) for other, distance in there.distances.items() if other != node]
        for _, other in sorted(others):
            cell = self._own(other)
            if cell is not None:
                return Nearest(cell, other)
        return None

    def _own(self, node: int) -> int | None:
        if node in self._by_memory:
            return self._by_memory[node]
        there = self._numa.get(node)
        return next((self._by_cpu[cpu] for cpu in sorted(there.cpus) if cpu in self._by_cpu), None) if there else None


def _unambiguous(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """The value of each key that has only one."""
    found: dict[int, set[int]] = {}
    for key, value in pairs:
        found.setdefault(key, set()).add(value)
    return {key: next(iter(values)) for key, values in found.items() if len(values) == 1}


def describe_cells(cells: Iterable[GuestCell]) -> str:
    """The cells with what they are bound to, for messages."""
    return "; ".join(f"cell {cell.id}: {_bound(cell)}" for cell in cells if not cell.empty)


def _bound(cell: GuestCell) -> str:
    if cell.nodes:
        return f"host node {', '.join(map(str, sorted(cell.nodes)))}"
    return "vCPUs pinned" if cell.cpus else "bound to nothing"
