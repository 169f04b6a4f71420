"""Writes an outline as one SVG file, for a wiki or a talk: a row for each item, a frame around each IOMMU group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from launcherkit.show.item import Item, Outline
from launcherkit.show.layout import width
from launcherkit.show.page import CLASSES, FALLBACK, PAPER, drawn_items

_ROW, _STEP, _MARGIN, _LETTER = 22, 20, 16, 7.9
"""Pixels: height of a row, indentation of a level, margin, and the widest letter of usual monospace fonts."""

# Viewers other than browsers may not know CSS variables: they use the attributes, on white.
_STYLE = """
text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:var(--text);white-space:pre}
.back{fill:var(--back)}.node .label{font-weight:bold}.branch text{fill:var(--dim)}.slot .label{font-weight:bold}
.frame{fill:none;stroke:var(--line);stroke-width:1.2}.frame.bad{stroke:var(--bad);stroke-width:2}
.badge,.name{font-weight:bold}tspan.good{fill:var(--good)}tspan.odd{fill:var(--odd)}tspan.bad{fill:var(--bad)}
g:focus{outline:2px solid var(--text)}
"""


@dataclass(frozen=True, slots=True)
class _Row:
    depth: int
    item: Item
    below: int
    """The number of rows in it."""


def picture(outline: Outline, title: str) -> str:
    """The picture; the keyboard reaches its rows, and screen readers get their text."""
    rows = [row for item in drawn_items(outline) for row in _rows(item, 0)]
    across = round(max(_right_of(row) for row in rows) + 2 * _MARGIN)
    high = len(rows) * _ROW + 2 * _MARGIN
    lines = "\n".join(line for at, row in enumerate(rows) for line in _drawn(at, row, across))
    functions = sum(_class(row.item) == "function" for row in rows)
    bad = sum(row.item.kind == "group" and bool(row.item.badge) for row in rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across} {high}" width="{across}" height="{high}" '
        'role="group" aria-labelledby="title description">\n'
        f'<title id="title">{escape(title)}</title>\n'
        f'<desc id="description">{functions} rows of functions; IOMMU groups that guests can\'t have: {bad}</desc>\n'
        f"<style>{PAPER}{_STYLE}</style>\n"
        f'<rect class="back" fill="#fff" width="100%" height="100%"/>\n{lines}\n</svg>\n'
    )


def _class(item: Item) -> str:
    return CLASSES.get(item.kind, item.kind)


def _rows(item: Item, depth: int) -> Iterator[_Row]:
    below = [row for inner in item.items for row in _rows(inner, depth + 1)]
    yield _Row(depth, item, len(below))
    yield from below


def _right_of(row: _Row) -> float:
    return row.depth * _STEP + width(_text_of(row.item)) * _LETTER


def _text_of(item: Item) -> str:
    return "  ".join((item.label, *filter(None, (item.badge, item.name)), *item.details))


def _drawn(at: int, row: _Row, across: int) -> Iterator[str]:
    item, x, y = row.item, _MARGIN + row.depth * _STEP, _MARGIN + at * _ROW
    if item.kind == "group":
        stroke = FALLBACK["bad"] if item.badge else "#8c959f"
        frame = f'x="{x - 8}" y="{y + 2}" width="{across - x - 4}" height="{(row.below + 1) * _ROW - 2}" rx="6"'
        yield f'<rect class="frame{" bad" if item.badge else ""}" fill="none" stroke="{stroke}" {frame}/>'
    spans = f'<tspan class="label">{escape(item.label)}</tspan>'
    if item.badge:
        spans += f'  <tspan class="badge {item.tone}" fill="{FALLBACK[item.tone]}">{escape(item.badge)}</tspan>'
    if item.name:
        spans += f'  <tspan class="name">{escape(item.name)}</tspan>'
    spans += "".join(f"  {escape(detail)}" for detail in item.details)
    yield (
        f'<g class="{_class(item)}" tabindex="0"><title>{escape(_text_of(item))}</title>'
        f'<text x="{x}" y="{y + 16}" xml:space="preserve">{spans}</text></g>'
    )
