"""Draws a table of how close devices are to each other."""

from __future__ import annotations

from launcherkit.colour import Colours
from launcherkit.render.columns import columns, visible
from launcherkit.topology.matrix import LEGEND, DevicePair, Matrix


def draw_matrix(matrix: Matrix, colours: Colours) -> str:
    """One line for each device, then a legend of the words that are used."""
    if not matrix.devices:
        return "no GPUs, no accelerators, and no functions bound to a VFIO driver\n"
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
    pairs = [pair for number, row in enumerate(matrix.rows) for pair in row[:number]]
    used = {pair.closeness for pair in pairs} | {"X"}
    legend: list[tuple[str, str]] = [(word, text) for word, text in LEGEND.items() if word in used]
    legend += [("+", "in the same slot")] if any(pair.same_slot for pair in pairs) else []
    legend += (
        [("*", "in the same IOMMU group: they go to one guest or to none")] if any(p.same_group for p in pairs) else []
    )
    return "".join(f"{line}\n" for line in (*columns(rows, ""), "", *columns(legend)))


def _cell(pair: DevicePair, colours: Colours) -> str:
    word = pair.closeness
    if word == "X":
        return word
    marks = ("+" if pair.same_slot else "") + ("*" if pair.same_group else "")
    text = word + marks
    return colours.good(text) if word in ("PIX", "PXB") else colours.odd(text) if word == "SYS" else text
