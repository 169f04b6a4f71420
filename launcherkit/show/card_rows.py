"""What is said on a card, in lines as wide as it is. Numbers are pixels before they are scaled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from launcherkit.show.contents import CardFunction, CardShares, HostCard
from launcherkit.show.layout import short_address
from launcherkit.show.state import LOOKS, CardState

LINE, LETTER, PAD = 13, 6.65, 6
"""The height of a line, the width of a letter of 11 pixels in the widest usual monospace font, and a card's margin."""
PIP, AFTER = 13.3, 3
"""What a mark takes, and how far a text is from one before it."""


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


def rows_of(card: HostCard, level: DetailLevel) -> tuple[Row, ...]:
    """The lines of a card, each as wide as it is."""
    return tuple(_fitted(row, _room(level)) for row in _rows(card, level))


def height_of(card: HostCard, level: DetailLevel) -> int:
    """The height of a card with its lines, for which these need not be cut to the width."""
    return sum(1 for _ in _rows(card, level)) * LINE + 2 * PAD


def _room(level: DetailLevel) -> int:
    return level.across - 2 * PAD


def _rows(card: HostCard, level: DetailLevel) -> Iterator[Row]:
    """Lines that may be too wide."""
    yield from _roomy(card) if level.name == "roomy" else _brief(card, dense=level.name == "dense")
    yield from (_shares(each, _room(level)) for each in card.shares)


def _fitted(row: Row, room: float) -> Row:
    """A row with the places of its marks and texts, which are cut to the width."""
    right = row.right and replace(row.right, text=cut(row.right.text, room * 0.6))
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
        text = cut(span.text, end - x)
        spans.append(replace(span, x=x, text=text))
        x += (len(text) + 1) * LETTER
    return Row(tuple(spans), right)


def cut(text: str, pixels: float) -> str:
    """A text, or its beginning, that isn't wider."""
    letters = max(int(pixels / LETTER), 0)
    return text if len(text) <= letters else text[: max(letters - 1, 0)] + "\u2026"


def _roomy(card: HostCard) -> Iterator[Row]:
    """A line for each function."""
    several = len(card.groups) > 1
    yield Row((CardSpan("", card.state), CardSpan(card.name, bold=True)), CardSpan(LOOKS[card.state].word, card.state))
    for function in card.functions:
        name = f"{short_address(card.slot)}.{function.number}"
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
    where: Sequence[CardSpan] = (CardSpan(f"{short_address(card.slot)}.{card.functions[0].number}"),)
    if card.functions[4:]:
        where = (CardSpan(short_address(card.slot)), *_counted([each.state for each in card.functions]))
    elif card.functions[1:]:
        marks = (span for each in card.functions for span in (CardSpan("", each.state), CardSpan(f".{each.number}")))
        where = (CardSpan(short_address(card.slot)), *marks)
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
