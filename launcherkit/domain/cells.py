"""The guest's NUMA cells, with the host's nodes and CPUs that back each (P4), and empty ones that are added (P7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lxml import etree

from launcherkit.domain.xml import Document, Edit, Style, append_children, indentation_of
from launcherkit.model.address import number, read_cpuset
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
        declared = number(element.get("id"))
        cell = position if declared is None else declared
        vcpus = read_cpuset(element.get("cpus"))
        cpus = frozenset([cpu for vcpu in vcpus for cpu in pins.get(vcpu, ())])
        empty = not vcpus and cell not in nodes and number(element.get("memory")) == 0
        cells.append(GuestCell(cell, nodes.get(cell, frozenset()), cpus, empty))
    return tuple(sorted(cells))


def _by_number(root: etree._Element, path: str, key: str, value: str) -> Iterator[tuple[int, frozenset[int]]]:
    for element in root.iterfind(path):
        index = number(element.get(key))
        if index is not None:
            yield index, read_cpuset(element.get(value))


def cells_edit(document: Document, style: Style, cells: Iterable[int]) -> Edit:
    """Add cells without CPUs and memory, given by number; the document must have cells already."""
    *_, last = document.root.iterfind("cpu/numa/cell")
    (numa,) = last.iterancestors("numa")
    texts = [style.quoted(f"<cell id='{cell}' memory='0' unit='KiB'/>") for cell in cells]
    beside = style._replace(indent=indentation_of(document.data, document.span(last).start))
    return append_children(document.data, document.span(numa), texts, beside, depth=0)
