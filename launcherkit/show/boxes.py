"""Where everything of a picture is: one layout behind SVG and HTML. Pure; numbers are pixels before they are scaled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from launcherkit.model.address import PciSlot
from launcherkit.show.card_rows import LEVELS, LINE, DetailLevel, height_of
from launcherkit.show.contents import Contents, Frame, HostCard, Lane, NumaBox, Obstacle
from launcherkit.show.guest_rows import Bridge, GuestBox, GuestSlot
from launcherkit.show.item import NOTHING_FOR_GUESTS

_GAP, _EDGE, _HEAD = 8, 6, 17
_GUEST, _GUTTER = 330, 70
_LEAST = 560
"""The least width of a picture, for its title and findings."""

BoxKind: TypeAlias = Literal["node", "lane", "frame", "card", "finding", "note", "guest", "bridge", "slot"]
BoxValue: TypeAlias = "NumaBox | Lane | Frame | HostCard | Obstacle | GuestBox | Bridge | GuestSlot | str"


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, with those in it."""

    kind: BoxKind
    x: int
    y: int
    across: int
    high: int
    value: BoxValue
    boxes: tuple[Box, ...] = ()

    @property
    def right(self) -> int:
        return self.x + self.across

    @property
    def bottom(self) -> int:
        return self.y + self.high

    def walk(self) -> Iterator[Box]:
        """This one and all in it."""
        yield self
        for inner in self.boxes:
            yield from inner.walk()


@dataclass(frozen=True, slots=True)
class Route:
    """The line from a card to a slot of the guest: right, below what is beside the card, then in a curve."""

    card: PciSlot
    slot: int
    """Which of the guest's slots, from 0 on."""
    x: int
    y: int
    gutter: int
    """Where it passes what is beside the card."""
    host: int
    """The right edge of the host, where the curve begins."""
    to_x: int
    to_y: int
    error: bool


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture's boxes and lines."""

    across: int
    high: int
    level: DetailLevel
    boxes: tuple[Box, ...]
    routes: tuple[Route, ...]

    def walk(self) -> Iterator[Box]:
        """All boxes, each before those in it."""
        for box in self.boxes:
            yield from box.walk()


def place(contents: Contents, across: int, high: int, levels: Sequence[DetailLevel] = LEVELS) -> Drawing:
    """The picture with as much on each card as fits; nothing is left out where nothing fits.

    Args:
        contents: is shown.
        across, high: the room.
        levels: to be tried, the most detailed first.
    """
    drawings = (_placed(contents, int(across / level.scale), level) for level in levels[:-1])
    fitting = (drawing for drawing in drawings if drawing.high * drawing.level.scale <= high)
    return next(fitting, None) or _placed(contents, int(across / levels[-1].scale), levels[-1])


def _placed(contents: Contents, across: int, level: DetailLevel) -> Drawing:
    beside = across - _GUEST - _GUTTER if contents.guest else across
    host = _host(contents, max(beside, level.across + 4 * _EDGE), level, whole=contents.guest is not None)
    wide = max((box.right for box in host), default=0)
    guest = None if contents.guest is None else _moved(_guest(contents.guest), wide + _GUTTER, 0)
    total = max(wide, guest.right if guest else 0, min(_LEAST, across))
    findings = _column([Box("finding", 0, 0, total, LINE + 6, each) for each in contents.findings], 2)
    top = findings[-1].bottom + _GAP if findings else 0
    body = [_moved(box, 0, top) for box in (*host, *([guest] if guest else []))]
    low = max((box.bottom for box in body), default=top)
    notes = [Box("note", 0, low + _GAP, total, LINE + 4, text) for text in contents.notes]
    boxes = (*findings, *body, *notes)
    return Drawing(total, max(box.bottom for box in boxes), level, boxes, tuple(_routes(body)))


def _host(contents: Contents, across: int, level: DetailLevel, *, whole: bool) -> list[Box]:
    """The nodes, in as many columns as make it least high; beside a guest in one, so that lines get past them."""
    if not contents.nodes:
        return [Box("note", 0, 0, min(_LEAST, across), LINE + 4, NOTHING_FOR_GUESTS)]
    tries = []
    for number in range(1, 2 if whole else min(4, len(contents.nodes)) + 1):
        room = (across - (number - 1) * _GAP) // number
        if number == 1 or room >= level.across + 4 * _EDGE:
            tries.append(_columns([_node(node, room, level, whole=whole) for node in contents.nodes], number))
    return min(tries, key=lambda boxes: max(box.bottom for box in boxes))


def _columns(nodes: Sequence[Box], number: int) -> list[Box]:
    """Each node in the column that ends highest; the nodes of a column are as wide as its widest."""
    ends, columns = [0] * number, []
    for node in nodes:
        column = min(range(number), key=ends.__getitem__)
        columns.append((column, ends[column]))
        ends[column] += node.high + _GAP
    widths = [-_GAP] * number
    for node, (column, _) in zip(nodes, columns, strict=True):
        widths[column] = max(widths[column], node.across)
    lefts = [sum(widths[:column]) + column * _GAP for column in range(number)]
    return [
        replace(_moved(node, lefts[column], y), across=widths[column])
        for node, (column, y) in zip(nodes, columns, strict=True)
    ]


def _node(node: NumaBox, across: int, level: DetailLevel, *, whole: bool) -> Box:
    inner = across - 2 * _EDGE
    lanes = [_lane(lane, inner, level, whole=whole) for lane in node.lanes]
    return _around("node", node, lanes, inner, _HEAD + 3, _EDGE, whole=whole)


def _lane(lane: Lane, across: int, level: DetailLevel, *, whole: bool) -> Box:
    inner = across - 2 * _EDGE
    units = [_unit(unit, inner, level, whole=whole) for unit in lane.units]
    return _around("lane", lane, units, inner, _HEAD, _EDGE, whole=whole)


def _unit(unit: HostCard | Frame | Lane, across: int, level: DetailLevel, *, whole: bool) -> Box:
    if isinstance(unit, Lane):
        return _lane(unit, across, level, whole=whole)
    if isinstance(unit, HostCard):
        return Box("card", 0, 0, level.across, height_of(unit, level), unit)
    cards = [_unit(card, across, level, whole=whole) for card in unit.cards]
    return _around("frame", unit, cards, across - 2 * 5, _HEAD, 5, whole=False)


def _around(
    kind: BoxKind, value: BoxValue, inside: list[Box], across: int, head: int, edge: int, *, whole: bool
) -> Box:
    placed = [_moved(box, edge, head) for box in _flow(inside, across, whole=whole)]
    wide, low = max(box.right for box in placed), max(box.bottom for box in placed)
    return Box(kind, 0, 0, wide + edge, low + edge, value, tuple(placed))


def _flow(boxes: Sequence[Box], across: int, *, whole: bool) -> Iterator[Box]:
    """Boxes in rows; cards of a row are equally high. A lane has a row of its own if ``whole``."""
    x, y, row = 0, 0, list[Box]()
    for box in boxes:
        alone = whole and (box.kind == "lane" or (bool(row) and row[-1].kind == "lane"))
        if row and (alone or x + box.across > across):
            yield from _even(row)
            x, y, row = 0, max(each.bottom for each in row) + _GAP, []
        row.append(_moved(box, x, y))
        x += box.across + _GAP
    yield from _even(row)


def _even(row: Sequence[Box]) -> Iterator[Box]:
    high = max(box.high for box in row)
    return (replace(box, high=high) if box.kind == "card" else box for box in row)


def _column(boxes: Iterable[Box], gap: int) -> list[Box]:
    placed: list[Box] = []
    for box in boxes:
        placed.append(_moved(box, 0, placed[-1].bottom + gap if placed else 0))
    return placed


def _moved(box: Box, x: int, y: int) -> Box:
    if not (x or y):
        return box
    return replace(box, x=box.x + x, y=box.y + y, boxes=tuple(_moved(inner, x, y) for inner in box.boxes))


def _guest(guest: GuestBox) -> Box:
    inside: list[Box] = []
    for row in guest.rows:
        indent = 10 * row.depth if isinstance(row, Bridge) else 20
        high = LINE + 2 if isinstance(row, Bridge) else len(row.rows) * LINE + 8
        y = inside[-1].bottom + 4 if inside else _HEAD + 4
        kind: BoxKind = "bridge" if isinstance(row, Bridge) else "slot"
        inside.append(Box(kind, _GAP + indent, y, _GUEST - indent - 2 * _GAP, high, row))
    return Box("guest", 0, 0, _GUEST, (inside[-1].bottom if inside else _HEAD + LINE) + _GAP, guest, tuple(inside))


def _routes(boxes: Sequence[Box]) -> Iterator[Route]:
    """A line from each card to each slot of the guest that has something of it."""
    inside = [inner for box in boxes for inner in box.walk()]
    cards = [box for box in inside if box.kind == "card"]
    card_of = {name: box for box in cards if isinstance(box.value, HostCard) for name in box.value.names}
    host = max((box.right for box in boxes if box.kind == "node"), default=0)
    lines: list[Box] = []
    for number, slot in enumerate(box for box in inside if box.kind == "slot"):
        assert isinstance(slot.value, GuestSlot)
        for card in dict.fromkeys(card_of[source] for source in slot.value.sources if source in card_of):
            yield _route(card, slot, number, host, cards, sum(other.bottom == card.bottom for other in lines))
            lines.append(card)


def _route(card: Box, slot: Box, number: int, host: int, cards: Sequence[Box], before: int) -> Route:
    """A line; ``before`` is how many leave the same row of cards already."""
    assert isinstance(card.value, HostCard)
    assert isinstance(slot.value, GuestSlot)
    x, y = card.right, card.y + card.high // 2
    gutter = y
    if any(other.x > card.x and other.y < card.bottom and other.bottom > card.y for other in cards):
        x, y = card.right - 14 - before * 4 % 80, card.bottom
        gutter = _below(card, y + 2, cards) + before * 2 % 5
    middle = slot.y + slot.high // 2
    return Route(card.value.slot, number, x, y, gutter, host, slot.x, middle, slot.value.error)


def _below(card: Box, y: int, cards: Iterable[Box]) -> int:
    """The highest place at or below ``y`` where no card is right of this one."""
    for box in sorted((box for box in cards if box.x > card.x), key=lambda box: box.y):
        if box.y <= y < box.bottom:
            y = box.bottom + 2
    return y
