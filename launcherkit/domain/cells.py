"""Reads the guest's NUMA cells, and which nodes and CPUs of the host back each (P4); adds empty ones (P7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lxml import etree

from launcherkit.domain import elements
from launcherkit.domain.edits import Edit, append_children
from launcherkit.domain.hostdev import number, read_cpuset
from launcherkit.domain.style import Style, indentation_of
from launcherkit.domain.tags import Places
from launcherkit.model.domain import GuestCell


def read_cells(root: etree._Element) -> tuple[GuestCell, ...]:
    """The cells of a ``<domain>``, by number; an invalid set counts as missing.

    A vCPU without a ``<vcpupin>`` may run on the whole ``<vcpu cpuset>`` of the domain, which ties no cell to a node.
    """
    elements = root.findall("cpu/numa/cell")
    if not elements:
        return ()
    nodes = dict(_by_number(root, "numatune/memnode", "cellid", "nodeset"))
    pins = dict(_by_number(root, "cputune/vcpupin", "vcpu", "cpuset"))
    cells = []
    for position, element in enumerate(elements):
        given = number(element.get("id"))
        cell = position if given is None else given
        vcpus = read_cpuset(element.get("cpus"))
        cpus = frozenset([cpu for vcpu in vcpus for cpu in pins.get(vcpu, ())])
        empty = not vcpus and cell not in nodes and number(element.get("memory")) == 0
        cells.append(GuestCell(cell, nodes.get(cell, frozenset()), cpus, empty))
    return tuple(sorted(cells))


def _by_number(root: etree._Element, path: str, key: str, value: str) -> Iterator[tuple[int, frozenset[int]]]:
    for element in root.iterfind(path):
        found = number(element.get(key))
        if found is not None:
            yield found, read_cpuset(element.get(value))


def cells_edit(root: etree._Element, places: Places, style: Style, cells: Iterable[int]) -> Edit:
    """Add cells without CPUs and memory, given by number; the document must have cells already."""
    *_, last = root.iterfind("cpu/numa/cell")
    (numa,) = last.iterancestors("numa")
    texts = [elements.quoted(f"<cell id='{cell}' memory='0' unit='KiB'/>", style) for cell in cells]
    beside = style._replace(indent=indentation_of(places.data, places.of(last).start))
    return append_children(places.data, places.of(numa), texts, beside, depth=0)
