"""Where everything of a picture is: one layout behind SVG and HTML. Pure; numbers are pixels before they are scaled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from launcherkit.model.address import PciSlot
from launcherkit.show.contents import (
    Bridge,
    CardFunction,
    CardShares,
    Contents,
    Frame,
    GuestBox,
    GuestSlot,
    HostCard,
    Lane,
    NumaBox,
    Obstacle,
)
from launcherkit.show.item import NOTHING_FOR_GUESTS
from launcherkit.show.state import LOOKS, CardState

LINE, LETTER, PAD = 13, 6.65, 6
"""The height of a line, the width of a letter of 11 pixels in the widest usual monospace font, and a card's margin."""
PIP, AFTER = 13.3, 3
"""What a mark takes, and how far a text is from one before it."""
_GAP, _EDGE, _HEAD = 8, 6, 17
_GUEST, _GUTTER = 330, 70
_LEAST = 560
"""The least width of a picture, for its title and findings."""

BoxKind: TypeAlias = Literal["node", "lane", "frame", "card", "finding", "note", "guest", "bridge", "slot"]
BoxValue: TypeAlias = "NumaBox | Lane | Frame | HostCard | Obstacle | GuestBox | Bridge | GuestSlot | str"


@dataclass(frozen=True, slots=True)
class CardSpan:
    """A text of a card's line, or the mark of a state."""

    text: str
    state: CardState | None = None
    """Of a mark, which has no text; or the colour of a text."""
    bold: bool = False
    x: float = 0.0
    """Its left edge in the row."""

    @property
    def is_mark(self) -> bool:
        return not self.text


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a card."""

    left: tuple[CardSpan, ...]
    right: CardSpan | None = None


@dataclass(frozen=True, slots=True)
class DetailLevel:
    """How much is said of each card."""

    name: Literal["roomy", "brief", "dense"]
    across: int
    """The width of a card."""
    scale: float
    """How large all is drawn."""


LEVELS = (
    DetailLevel("roomy", 370, 1.5),
    DetailLevel("roomy", 350, 1.25),
    DetailLevel("roomy", 340, 1.1),
    DetailLevel("brief", 230, 1.1),
    DetailLevel("dense", 160, 1.0),
)


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
        return Box("card", 0, 0, level.across, len(rows_of(unit, level)) * LINE + 2 * PAD, unit)
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


# What is said on a card.


def rows_of(card: HostCard, level: DetailLevel) -> tuple[Row, ...]:
    """The lines of a card, each as wide as it is."""
    room = level.across - 2 * PAD
    rows = _roomy(card) if level.name == "roomy" else _brief(card, dense=level.name == "dense")
    shares = (_shares(each, room) for each in card.shares)
    return tuple(_fitted(row, room) for row in (*rows, *shares))


def _fitted(row: Row, room: float) -> Row:
    """A row with the places of its marks and texts, which are cut to the width."""
    right = row.right and replace(row.right, text=_cut(row.right.text, int(room * 0.6 / LETTER)))
    end = room - ((len(right.text) + 1) * LETTER if right else 0)
    spans: list[CardSpan] = []
    x = 0.0
    for span in row.left:
        x += AFTER if spans and spans[-1].is_mark and not span.is_mark else 0
        if x + (PIP if span.is_mark else LETTER) > end:
            break
        if span.is_mark:
            spans.append(replace(span, x=x))
            x += PIP
            continue
        text = _cut(span.text, int((end - x) / LETTER))
        spans.append(replace(span, x=x, text=text))
        x += (len(text) + 1) * LETTER
    return Row(tuple(spans), right)


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "\u2026"


def _roomy(card: HostCard) -> Iterator[Row]:
    """A line for each function."""
    several = len(card.groups) > 1
    yield Row((CardSpan("", card.state), CardSpan(card.name, bold=True)), CardSpan(LOOKS[card.state].word, card.state))
    for function in card.functions:
        name = f"{_short(card)}.{function.number}"
        right = CardSpan(f"group {function.group}") if several and function.group is not None else None
        if function.trouble and not _is_driver(function):
            right = CardSpan(function.trouble, "blocked")
        yield Row((CardSpan("", function.state), CardSpan(name), _driver(function), CardSpan(function.kind)), right)
    link = card.link + (f" of x{card.width.rpartition(' ')[2]}" if card.narrow else "")
    link += f"{', ' if link else ''}port {card.port}" if card.port else ""
    yield Row((_link(card, link),), None if several else CardSpan(_groups(card, "group ")))
    for owner in card.owners:
        yield Row((CardSpan(owner, "held"),))
    if card.requests:
        yield Row((_requests(card),))


def _brief(card: HostCard, *, dense: bool) -> Iterator[Row]:
    """One line for all functions."""
    drivers = dict.fromkeys(map(_driver, sorted(card.functions, key=lambda function: not function.trouble)))
    where: Sequence[CardSpan] = (CardSpan(f"{_short(card)}.{card.functions[0].number}"),)
    if card.functions[4:]:
        where = (CardSpan(_short(card)), *_counted([each.state for each in card.functions]))
    elif card.functions[1:]:
        marks = (span for each in card.functions for span in (CardSpan("", each.state), CardSpan(f".{each.number}")))
        where = (CardSpan(_short(card)), *marks)
    groups = CardSpan(_groups(card, "g" if dense else "group "))
    yield Row((CardSpan("", card.state), CardSpan(card.name, bold=True)), None if dense else groups)
    yield Row((*where, *drivers), groups if dense else None)
    yield Row((_owner(card),), _link(card, card.width))


def _driver(function: CardFunction) -> CardSpan:
    return CardSpan(function.driver or "no driver", "blocked" if _is_driver(function) else None)


def _is_driver(function: CardFunction) -> bool:
    """Whether its trouble is its driver."""
    return bool(function.driver) and function.trouble.endswith(f" {function.driver}")


def _requests(card: HostCard) -> CardSpan:
    return CardSpan(f"\u2192 {', '.join(card.requests)}", "free")


def _owner(card: HostCard) -> CardSpan:
    if card.requests:
        return _requests(card)
    if not card.owners:
        trouble = next((each.trouble for each in card.functions if each.trouble), "")
        return CardSpan(trouble if trouble and card.state == "blocked" else LOOKS[card.state].word, card.state)
    return CardSpan(card.owners[0] + (f" +{len(card.owners) - 1}" if card.owners[1:] else ""), "held")


def _short(card: HostCard) -> str:
    return str(card.slot).removeprefix("0000:")


def _link(card: HostCard, text: str) -> CardSpan:
    return CardSpan(text, "kept" if card.narrow else None)


def _groups(card: HostCard, word: str) -> str:
    return f"{word}{','.join(map(str, card.groups))}" if card.groups else "no group"


def _shares(shares: CardShares, room: float) -> Row:
    """A mark for each, or how many are in each state where there is no room for that."""
    for label in (shares.label, shares.kind):
        if len(shares.states) * PIP + AFTER + len(label) * LETTER <= room:
            return Row((*(CardSpan("", state) for state in shares.states), CardSpan(label)))
    return Row((*_counted(shares.states), CardSpan(shares.kind)))


def _counted(states: Sequence[CardState]) -> tuple[CardSpan, ...]:
    """How many are in each state."""
    counts = ((state, states.count(state)) for state in LOOKS if state in states)
    return tuple(span for state, count in counts for span in (CardSpan("", state), CardSpan(str(count))))
