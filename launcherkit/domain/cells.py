"""Reads the guest's NUMA cells, and which nodes and CPUs of the host stand behind each (P4)."""

from __future__ import annotations

from collections.abc import Iterator

from lxml import etree

from launcherkit.domain.hostdev import number
from launcherkit.model.cpuset import parse_cpuset
from launcherkit.model.domain import GuestCell


def read_cells(root: etree._Element) -> tuple[GuestCell, ...]:
    """The cells of a ``<domain>``, by number; a set that can't be read is as if it weren't there.

    A vCPU that is pinned to no CPU of its own may run on the domain's ``<vcpu cpuset>``, which ties no cell to a node.
    """
    elements = root.findall("cpu/numa/cell")
    if not elements:
        return ()
    nodes = dict(_by_number(root, "numatune/memnode", "cellid", "nodeset"))
    pins = dict(_by_number(root, "cputune/vcpupin", "vcpu", "cpuset"))
    cells = []
    for position, element in enumerate(elements):
        said = number(element.get("id"))
        cell = position if said is None else said
        vcpus = _cpuset(element.get("cpus"))
        cpus = frozenset([cpu for vcpu in vcpus for cpu in pins.get(vcpu, ())])
        cells.append(GuestCell(cell, nodes.get(cell, frozenset()), cpus))
    return tuple(sorted(cells))


def _by_number(root: etree._Element, path: str, key: str, value: str) -> Iterator[tuple[int, frozenset[int]]]:
    for element in root.iterfind(path):
        found = number(element.get(key))
        if found is not None:
            yield found, _cpuset(element.get(value))


def _cpuset(text: str | None) -> frozenset[int]:
    try:
        return parse_cpuset(text or "")
    except ValueError:
        return frozenset()
