"""How close the devices of a host are to each other, in the terms of ``nvidia-smi topo -m``, for any vendor; and the
table of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from launcherkit.choose.readiness import FOR_GUESTS
from launcherkit.colour import Colours
from launcherkit.show.item import NOTHING_FOR_GUESTS
from launcherkit.show.layout import columns, visible
from launcherkit.show.topology import HostTopology, TreeFunction, TreePlace

Closeness: TypeAlias = Literal["X", "PIX", "PXB", "PHB", "NODE", "SYS", "?"]
LEGEND: dict[Closeness, str] = {
    "X": "itself",
    "PIX": "through one PCIe switch or bridge at most",
    "PXB": "through several switches or bridges behind one root port",
    "PHB": "through the root complex",
    "NODE": "through several root complexes of one NUMA node",
    "SYS": "through the interconnect of NUMA nodes",
    "?": "the NUMA node of one of them is not known",
}


@dataclass(frozen=True, slots=True)
class MatrixDevice:
    """A device and its place."""

    place: TreePlace
    function: TreeFunction


@dataclass(frozen=True, slots=True)
class DevicePair:
    """Two devices and how close they are."""

    closeness: Closeness
    same_slot: bool
    same_group: bool


@dataclass(frozen=True, slots=True)
class Matrix:
    """The devices of a host, and all pairs of them."""

    devices: tuple[MatrixDevice, ...]
    rows: tuple[tuple[DevicePair, ...], ...]


def matrix_of(topology: HostTopology) -> Matrix:
    """The devices of a tree: the first function of each card, and further functions of the same model."""
    devices = tuple(
        MatrixDevice(place, function) for place in topology.places() for function in _devices_of(place.slot.functions)
    )
    return Matrix(devices, tuple(tuple(_pair(one, other) for other in devices) for one in devices))


def _devices_of(functions: tuple[TreeFunction, ...]) -> list[TreeFunction]:
    first = next((each for each in functions if each.state in FOR_GUESTS), functions[0])
    return [each for each in functions if each is first or each.ids == first.ids]


def _pair(one: MatrixDevice, other: MatrixDevice) -> DevicePair:
    same_group = one.function.group is not None and one.function.group == other.function.group
    return DevicePair(_closeness(one, other), one.place.slot == other.place.slot, same_group)


def _closeness(one: MatrixDevice, other: MatrixDevice) -> Closeness:
    if one.function == other.function:
        return "X"
    first, second = one.place, other.place
    if first.way[0] is None or first.way[0] != second.way[0]:
        if (first.node is None) != (second.node is None):
            return "?"
        return "NODE" if first.node == second.node else "SYS"
    shared = 1
    while shared < min(len(first.way), len(second.way)) and first.way[shared] == second.way[shared]:
        shared += 1
    if shared == 1:
        return "PHB"
    # A switch is an upstream port, which both share, and a downstream port for each.
    return "PIX" if max(len(first.way), len(second.way)) - shared <= 1 else "PXB"


def draw_matrix(matrix: Matrix, colours: Colours) -> str:
    """One line for each device, then a legend of the words that are used."""
    if not matrix.devices:
        return f"{NOTHING_FOR_GUESTS}\n"
    rows = [("", "", *(f"[{number}]" for number in range(len(matrix.devices))), "node", "group", "")]
    for number, (device, row) in enumerate(zip(matrix.devices, matrix.rows, strict=True)):
        function = device.function
        rows.append(
            (
                f"[{number}]",
                str(function.address),
                *(_cell(pair, colours) for pair in row),
                "-" if device.place.node is None else str(device.place.node),
                "-" if function.group is None else str(function.group),
                visible(function.name or f"{function.kind} [{function.ids}]"),
            )
        )
    return "".join(f"{line}\n" for line in (*columns(rows, ""), "", *columns(_legend(matrix))))


def _legend(matrix: Matrix) -> list[tuple[str, str]]:
    """The words and signs that the table uses, and what they mean."""
    pairs = [pair for number, row in enumerate(matrix.rows) for pair in row[:number]]
    used = {pair.closeness for pair in pairs} | {"X"}
    legend: list[tuple[str, str]] = [(word, text) for word, text in LEGEND.items() if word in used]
    if any(pair.same_slot for pair in pairs):
        legend.append(("+", "in the same slot"))
    if any(pair.same_group for pair in pairs):
        legend.append(("*", "in the same IOMMU group: they go to one guest or to none"))
    return legend


def _cell(pair: DevicePair, colours: Colours) -> str:
    word = pair.closeness
    if word == "X":
        return word
    marks = ("+" if pair.same_slot else "") + ("*" if pair.same_group else "")
    text = word + marks
    return colours.good(text) if word in ("PIX", "PXB") else colours.odd(text) if word == "SYS" else text
