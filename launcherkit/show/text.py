"""Writes an outline as text for a terminal: the host's tree, with the guest's beside it if there is room."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, zip_longest

from launcherkit.colour import Colours
from launcherkit.errors import counted
from launcherkit.show.item import NOTHING_FOR_GUESTS, Item, Outline, Part
from launcherkit.show.layout import Line, branched, broken, padded, width

_HOST_COLUMNS = 72
"""Columns for the host if the guest is beside it."""
_GAP = 3
_MAX_BLOCKERS = 10


def draw(outline: Outline, colours: Colours, across: int) -> str:
    """The outline as text, with the guest beside the host if there is room, else below it.

    Args:
        outline: of a host.
        colours: ANSI colours or none.
        across: columns of the terminal; longer lines are broken between their parts.
    """
    guest = [] if outline.guest is None else guest_lines(outline.guest, colours)
    host = _host(outline, colours)
    right = [text for line in guest for text in broken(line, across)]
    room = across - _GAP - max(map(width, right), default=0)
    if host and right and room >= _HOST_COLUMNS:
        left = [text for line in host for text in broken(line, room)]
        wide = max(map(width, left)) + _GAP
        both = zip_longest(left, right, fillvalue="")
        texts = [f"{one}{' ' * (wide - width(one))}{other}".rstrip() for one, other in both]
    else:
        texts = [text for line in host for text in broken(line, across)]
        texts += [*([""] if host and right else []), *right]
    return "".join(f"{text}\n" for text in texts)


def guest_lines(guest: Item, colours: Colours) -> list[Line]:
    """The guest's tree, below its name."""
    return [*_lines(guest, colours), *([] if guest.items else branched([[Line(("nothing of this host",))]]))]


def _host(outline: Outline, colours: Colours) -> list[Line]:
    lines = [line for node in outline.nodes for line in _lines(node, colours)]
    if not lines and outline.guest is None:
        lines.append(Line((NOTHING_FOR_GUESTS,)))
    # What is in the way comes last, because the end is what a terminal shows of a large host.
    lines += [Line(("in the way:", *_texts(item.parts, colours))) for item in outline.blockers[:_MAX_BLOCKERS]]
    if outline.blockers[_MAX_BLOCKERS:]:
        lines.append(Line((f"and {len(outline.blockers) - _MAX_BLOCKERS} more",)))
    if outline.left_out:
        several = counted(outline.left_out, "other function")
        them = "it" if outline.left_out == 1 else "them"
        lines.append(Line((colours.faint(f"{several} not shown; --all shows {them}"),)))
    return lines


def _lines(item: Item, colours: Colours) -> Iterator[Line]:
    """An item, and the tree below it."""
    if item.kind == "slot":
        yield from _slot(item, colours)
        return
    yield Line(_texts(item.parts, colours))
    yield from branched([[*_lines(inner, colours)] for inner in item.items])


def _slot(slot: Item, colours: Colours) -> Iterator[Line]:
    """A slot's functions in columns, with a bracket around each IOMMU group."""
    yield Line(_texts(slot.parts, colours))
    heads = _heads(slot, colours)
    for is_group, items in groupby(slot.items, key=lambda item: item.kind == "group"):
        if not is_group:
            yield from _functions(items, heads, colours, "    ")
            continue
        for group in items:
            yield Line(_texts(group.parts, colours), "┌ ", "│ ")
            lines = [*_functions(group.items, heads, colours, "  ")]
            yield from (line.within("│ ", "│ ") for line in lines[:-1])
            yield lines[-1].within("└ ", "  ")


def _heads(slot: Item, colours: Colours) -> Iterator[list[str]]:
    """The aligned first columns of a slot's functions: address, state and driver."""
    items = (item for outer in slot.items for item in (outer.items if outer.kind == "group" else (outer,)))
    rows = [[_text(part, colours) for part in item.parts[:3]] for item in items if item.kind == "function"]
    return iter(padded(rows))


def _functions(items: Iterable[Item], heads: Iterator[list[str]], colours: Colours, margin: str) -> Iterator[Line]:
    """Functions, each with its VFs and mediated devices below it; the latter share a line.

    Args:
        items: of one bracket, or what is below one.
        heads: the first columns of each function.
        colours: ANSI colours or none.
        margin: before VFs whose function is not among the items.
    """
    for kind, alike in groupby(items, key=lambda item: item.kind):
        if kind == "mdevs":
            parts = sorted((part for item in alike for part in item.parts), key=lambda part: part.role != "label")
            yield Line(_texts(parts, colours), "  ", "  ")
            continue
        for item in alike:
            if kind == "function":
                margin = "  "
                yield Line((*filter(None, next(heads)), *_texts(item.parts[3:], colours)))
            else:
                yield Line(_texts(item.parts, colours), margin, margin)


def _texts(parts: Iterable[Part], colours: Colours) -> tuple[str, ...]:
    return tuple(_text(part, colours) for part in parts)


def _text(part: Part, colours: Colours) -> str:
    return "".join(colours.toned(*span) for span in part.spans) if part.brief is None else part.brief
