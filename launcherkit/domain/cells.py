"""The guest's NUMA cells, with the host's nodes and CPUs that back each (P4), and what is added to them (P7, P10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lxml import etree

from launcherkit.domain.xml import Document, Edit, Style, append_children, indentation_of
from launcherkit.model.address import number, read_cpuset
from launcherkit.model.domain import GuestCell
from launcherkit.model.plan import Plan


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
        cell = _id_of(element, position)
        vcpus = read_cpuset(element.get("cpus"))
        cpus = frozenset([cpu for vcpu in vcpus for cpu in pins.get(vcpu, ())])
        empty = not vcpus and cell not in nodes and number(element.get("memory")) == 0
        cells.append(GuestCell(cell, nodes.get(cell, frozenset()), cpus, empty))
    return tuple(sorted(cells))


def _id_of(element: etree._Element, position: int) -> int:
    declared = number(element.get("id"))
    return position if declared is None else declared


def _by_number(root: etree._Element, path: str, key: str, value: str) -> Iterator[tuple[int, frozenset[int]]]:
    for element in root.iterfind(path):
        index = number(element.get(key))
        if index is not None:
            yield index, read_cpuset(element.get(value))


def has_distances(root: etree._Element) -> bool:
    """Whether a cell has ``<distances>`` already."""
    return root.find("cpu/numa/cell/distances") is not None


def cells_edits(document: Document, style: Style, plan: Plan) -> Iterator[Edit]:
    """The cells without CPUs and memory that are added, and the distances of all; the document must have cells."""
    elements = document.root.findall("cpu/numa/cell")
    (numa,) = elements[-1].iterancestors("numa")
    beside = style._replace(indent=indentation_of(document.data, document.span(elements[-1]).start))
    for position, element in enumerate(elements if plan.distances else ()):
        texts = [_distances(plan.distances[_id_of(element, position)], beside)]
        yield append_children(document.data, document.span(element), texts, beside.deeper(), depth=0)
    if plan.cells:
        texts = [_cell(cell, plan, beside) for cell in plan.cells]
        yield append_children(document.data, document.span(numa), texts, beside, depth=0)


def _cell(number: int, plan: Plan, style: Style) -> str:
    """An empty cell."""
    tag = style.quoted(f"<cell id='{number}' memory='0' unit='KiB'")
    if number not in plan.distances:
        return f"{tag}/>"
    lead = style.indent or ""
    return f"{tag}>{style.deeper().indent or ''}{_distances(plan.distances[number], style)}{lead}</cell>"


def _distances(row: Mapping[int, int], style: Style) -> str:
    """The element for a cell whose style is given."""
    outer = style.deeper()
    lead = outer.deeper().indent or ""
    texts = [style.quoted(f"<sibling id='{cell}' value='{value}'/>") for cell, value in row.items()]
    return f"<distances>{''.join(lead + text for text in texts)}{outer.indent or ''}</distances>"
