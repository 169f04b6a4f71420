"""Reads the host's NUMA nodes: their CPUs and distances (P4)."""

from __future__ import annotations

from collections.abc import Sequence

from launcherkit.model.cpuset import parse_cpuset
from launcherkit.model.host import NumaNode
from launcherkit.sources.file_tree import Tree

_NODES = "sys/devices/system/node"


def read_numa(tree: Tree) -> dict[int, NumaNode]:
    """The nodes by number; empty if the kernel was built without NUMA."""
    numbers = sorted(
        int(name[4:])
        for name in tree.names(_NODES)
        if name.startswith("node") and name[4:].isascii() and name[4:].isdigit() and len(name) < 10
    )
    with tree.below(_NODES) as nodes:
        return {number: _read_node(nodes, f"node{number}", numbers) for number in numbers}


def _read_node(nodes: Tree, name: str, numbers: list[int]) -> NumaNode:
    try:
        cpus = parse_cpuset((nodes.read(f"{name}/cpulist") or b"").decode("ascii", "replace"))
    except ValueError:
        cpus = frozenset()
    figures = (nodes.read(f"{name}/distance") or b"").split()
    readable = all(figure.isdigit() and len(figure) < 10 for figure in figures)
    return NumaNode(cpus, distances_of(numbers, [int(figure) for figure in figures]) if readable else {})


def distances_of(numbers: Sequence[int], figures: Sequence[int]) -> dict[int, int]:
    """The distances by node, from one figure for each node in order; empty if the numbers don't match."""
    return dict(zip(numbers, figures, strict=True)) if len(numbers) == len(figures) else {}
