"""Writes a picture as SVG: a file for a wiki or a talk, or the part of a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TypeAlias

from launcherkit.show.boxes import Box, BoxValue, Drawing, Route, place
from launcherkit.show.card_rows import AFTER, LETTER, LINE, PAD, PIP, Row, cut, rows_of
from launcherkit.show.contents import Contents, Frame, HostCard, Lane, NumaBox, Obstacle
from launcherkit.show.guest_rows import Bridge, GuestBox, GuestSlot
from launcherkit.show.layout import short_address, width
from launcherkit.show.state import LOOKS, CardState

ACROSS, HIGH = 1440, 900
"""The screen that a picture is drawn for."""
_EDGE, _TITLE, _KEY = 16, 26, 20
_INK = {
    "back": ("#fff", "#0d1117"),
    "text": ("#1b1f24", "#e6edf3"),
    "dim": ("#57606a", "#9da7b3"),
    "line": ("#8c959f", "#6e7681"),
    "good": ("#116329", "#56d364"),
    "odd": ("#7d4e00", "#e3b341"),
    "bad": ("#a40e26", "#ff7b72"),
}
"""Further colours, light and dark."""


def colours() -> str:
    """CSS: the colours of every form, which follow the reader's wish for dark."""
    light = {name: light for name, (light, _) in _INK.items()} | {state: look.light for state, look in LOOKS.items()}
    dark = {name: dark for name, (_, dark) in _INK.items()} | {state: look.dark for state, look in LOOKS.items()}
    texts = [";".join(f"--{name}:{colour}" for name, colour in each.items()) for each in (light, dark)]
    states = "".join(f".{state}{{--own:var(--{state})}}" for state in LOOKS)
    return (
        f":root{{color-scheme:light dark;{texts[0]}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{texts[1]}}}}}\n{states}\n"
    )


def resource(name: str, module: str = __file__) -> str:
    """The text of a file beside that of a module."""
    with open(f"{module.rpartition('/')[0]}/{name}", encoding="utf-8") as file:
        return file.read()


def picture(contents: Contents, title: str) -> str:
    """The picture as a file, with its title and a key to the marks; screen readers get the text of each card."""
    keys = keys_of(contents)
    drawing = place(contents, ACROSS - 3 * _EDGE, HIGH - 3 * _EDGE - _TITLE - _KEY)
    lines, key = _key(keys, drawing.across)
    top = _EDGE + _TITLE + lines * _KEY
    across, high, scale = drawing.across + 2 * _EDGE, drawing.high + top + _EDGE, drawing.level.scale
    cards = sum(box.kind == "card" for box in drawing.walk())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" viewBox="0 0 {across} {high}" '
        f'width="{round(across * scale)}" height="{round(high * scale)}" role="group" '
        'aria-labelledby="title description" fill-rule="evenodd" '
        'font-family="ui-monospace,Menlo,Consolas,monospace" font-size="11">\n'
        f'<title id="title">{escape(title)}</title>\n'
        f'<desc id="description">{cards} cards: {"; ".join(keys.values()) or "none"}</desc>\n'
        f"<style>{colours()}{resource('picture.css')}</style>\n"
        '<rect class="back" fill="#fff" width="100%" height="100%"/>\n'
        f'<text x="{_EDGE}" y="{_EDGE + 12}" font-size="15" font-weight="bold">{escape(title)}</text>\n'
        f'<g transform="translate({_EDGE} {_EDGE + _TITLE})">{key}</g>\n'
        f'<g transform="translate({_EDGE} {top})">\n{drawn(drawing)}\n</g>\n</svg>\n'
    )


def keys_of(contents: Contents) -> dict[CardState, str]:
    """What is said of each state in the key: how many cards are in it, and how many VFs and mediated devices."""
    counts = {state: _count(contents, state) for state in LOOKS}
    return {state: text for state, text in counts.items() if text}


def _count(contents: Contents, state: CardState) -> str:
    cards, shares, word = contents.cards.get(state, 0), contents.shares.get(state, 0), LOOKS[state].word
    parts = [f"{cards} {word}"] if cards else []
    parts += [f"{shares} VFs" if cards else f"{shares} VFs {word}"] if shares else []
    return ", ".join(parts)


def _key(keys: Mapping[CardState, str], across: int) -> tuple[int, str]:
    """How many lines it has, and what is in it."""
    x, y, parts = 0, 0, []
    for state, text in keys.items():
        wide = round(PIP + 4 + width(text) * LETTER + 18)
        if x and x + wide > across:
            x, y = 0, y + _KEY
        title = f"<title>{escape(LOOKS[state].meaning)}</title>"
        parts.append(f"<g>{title}{marks(state, [(x, y)])}{_text(x + PIP + 4, y + 10, text, state)}</g>")
        x += wide
    return (y // _KEY + 1 if keys else 0), "".join(parts)


def drawn(drawing: Drawing, others: Sequence[Drawing] = ()) -> str:
    """The boxes and lines of a drawing.

    Args:
        drawing: is what is drawn.
        others: the same for other widths: a page's script is told where everything is in these.
    """
    writer = _Writer(drawing, bool(others))
    boxes = [
        line for them in zip(drawing.boxes, *(each.boxes for each in others), strict=True) for line in writer.box(them)
    ]
    routes = [writer.route(them) for them in zip(drawing.routes, *(each.routes for each in others), strict=True)]
    return "\n".join((*boxes, *routes))


_Places: TypeAlias = dict[CardState, list[tuple[float, float]]]
"""Where the marks of a state are."""


class _Writer:
    def __init__(self, drawing: Drawing, scripted: bool) -> None:
        self._level = drawing.level
        self._scripted = scripted
        self._slots = [box for box in drawing.walk() if box.kind == "slot"]

    def box(self, boxes: Sequence[Box], inside: Sequence[Box] = ()) -> Iterator[str]:
        """A box, with those in it, in each of the drawings."""
        box, *_ = boxes
        origins = [(around.x, around.y) for around in inside] or [(0, 0)] * len(boxes)
        x, y = box.x - origins[0][0], box.y - origins[0][1]
        pairs = zip(boxes[1:], origins[1:], strict=True)
        places = (f"{other.x - left} {other.y - top} {other.across} {other.high}" for other, (left, top) in pairs)
        at = f' data-at="{",".join(places)}"' if self._scripted else ""
        # Texts are written once: they have to fit in the narrowest of the drawings.
        kind, more, content = self._content(box, min(each.across for each in boxes))
        frame = f'<rect width="{box.across}" height="{box.high}" rx="4" fill="none" stroke="{self._stroke(box)}"/>'
        yield f'<g class="{kind}" transform="translate({x} {y})"{at}{more}>{frame}{content}'
        for inner in zip(*(each.boxes for each in boxes), strict=True):
            yield from self.box(inner, boxes)
        yield "</g>"

    def _stroke(self, box: Box) -> str:
        if isinstance(box.value, HostCard):
            return LOOKS[box.value.state].light
        return {"lane": "none", "finding": "none", "note": "none", "bridge": "none"}.get(box.kind, _INK["line"][0])

    def _content(self, box: Box, across: int) -> tuple[str, str, str]:
        """Its classes, further attributes, and what is in it besides boxes."""
        value = box.value
        if isinstance(value, HostCard):
            return f"card {value.state}", self._card(value), self._rows(value, across)
        if isinstance(value, Obstacle):
            return (
                "finding",
                f' tabindex="0" data-cards="{" ".join(f"c{slot}" for slot in value.slots)}"',
                _finding(value, box.across),
            )
        if isinstance(value, GuestSlot):
            rows = (_text(PAD, LINE * at + 15, cut(row, across - 2 * PAD)) for at, row in enumerate(value.rows))
            title = f"<title>{escape('; '.join(value.rows))}</title>"
            name = f' id="s{self._slots.index(box)}"' if self._scripted else ""
            return "slot bad" if value.error else "slot", f' tabindex="0"{name}', title + "".join(rows)
        blocked = " blocked" if isinstance(value, Frame) and value.blocked else ""
        return box.kind + blocked, "", self._head(box, across)

    def _head(self, box: Box, across: int) -> str:
        """The label of a box that has others in it, or of a line; in a page nodes and lanes fold."""
        value, room, counts = box.value, across - 2.0 * PAD, ""
        if isinstance(value, NumaBox):
            counts = self._counts(value, box.across)
            room -= sum(map(_count_width, value.counts.values()))
        folds = self._scripted and box.kind in ("node", "lane")
        label = cut(f"\u25be {_label(value)}" if folds else _label(value), room)
        bold = ' font-weight="bold"' if isinstance(value, NumaBox | GuestBox) else ""
        text = _text(PAD if box.kind != "note" else 0, 13, label, more=bold) + counts
        if not folds:
            return text
        hit = f'<rect class="hit" width="{box.across}" height="18" fill="none"/>'
        return f'<g class="fold" tabindex="0" role="button" aria-expanded="true">{hit}{text}</g>'

    def _counts(self, node: NumaBox, right: int) -> str:
        """The number of cards in each state, left of the node's right edge."""
        x, parts = 0.0, []
        for state in reversed([state for state in LOOKS if node.counts.get(state)]):
            x -= _count_width(node.counts[state])
            parts.append(marks(state, [(x, 4)]) + _text(x + PIP + AFTER, 14, str(node.counts[state]), state))
        return f'<g class="end" transform="translate({right} 0)">{"".join(parts)}</g>'

    def _card(self, card: HostCard) -> str:
        groups = " ".join(map(str, card.groups))
        script = f' id="c{card.slot}" data-groups="{groups}"' if self._scripted else ""
        return f' tabindex="0" role="img"{script}'

    def _rows(self, card: HostCard, across: int) -> str:
        places_of: _Places = {}
        texts: list[str] = []
        for at, row in enumerate(rows_of(card, self._level)):
            texts += self._row(row, PAD + LINE * at, across, places_of)
        title = "<title>" + escape("\n".join(card.details), quote=False) + "</title>"
        return title + "".join(marks(state, places) for state, places in places_of.items()) + "".join(texts)

    def _row(self, row: Row, y: int, across: int, places_of: _Places) -> Iterator[str]:
        """The texts of a row; its marks are added to those of the card."""
        for span in row.left:
            if span.is_mark and span.state:
                places_of.setdefault(span.state, []).append((round(PAD + span.x, 1), y + 1))
            else:
                weight = ' font-weight="bold"' if span.bold else ""
                yield _text(round(PAD + span.x, 1), y + 11, span.text, span.state, weight)
        if row.right:
            yield _text(across - PAD, y + 11, row.right.text, row.right.state, ' text-anchor="end"')

    def route(self, routes: Sequence[Route]) -> str:
        """A line from a card to the guest."""
        route, *_ = routes
        middle = (route.host + route.to_x) // 2
        path = f"M{route.x} {route.y}V{route.gutter}H{route.host}C{middle} {route.gutter} {middle} {route.to_y} "
        path += f"{route.to_x} {route.to_y}"
        state: CardState = "blocked" if route.error else "free"
        at = ",".join(f"{each.x} {each.y} {each.gutter} {each.host} {each.to_x}" for each in routes[1:])
        more = f' data-at="{at}" data-card="c{route.card}" data-slot="s{route.slot}"' if self._scripted else ""
        colour = f'fill="none" stroke="{LOOKS[state].light}" stroke-width="1.5"'
        return f'<path class="route {state}" {colour} d="{path}"{more}/>'


def _label(value: BoxValue) -> str:
    if isinstance(value, Frame):
        others = [short_address(slot) for slot in value.elsewhere]
        return f"group {value.group}" + (f", with {', '.join(others)}" if others else "")
    if isinstance(value, GuestBox):
        return f"guest {value.name}"
    return value.label if isinstance(value, NumaBox | Lane | Bridge) else str(value)


def _finding(finding: Obstacle, across: int) -> str:
    code, text = finding.code, finding.text
    shown = cut(f"{code}  {text}", across - PIP - PAD).removeprefix(code)
    spans = f'<tspan font-weight="bold">{code}</tspan>{escape(shown)}'
    line = f'<text class="blocked" fill="{LOOKS["blocked"].light}" x="{PIP + PAD:g}" y="13">{spans}</text>'
    return f"<title>{code}  {escape(text)}</title>{marks('blocked', [(1, 3)])}{line}"


def _count_width(number: int) -> float:
    return PIP + AFTER + len(str(number)) * LETTER + 8


def marks(state: CardState, places: Iterable[tuple[float, float]]) -> str:
    """The mark of a state at some places."""
    path = "".join(f"M{x:g} {y:g}{LOOKS[state].mark}" for x, y in places)
    return f'<path class="{state}" fill="{LOOKS[state].light}" d="{path}"/>'


def _text(x: float, y: float, text: str, state: CardState | None = None, more: str = "") -> str:
    own = f' class="{state}" fill="{LOOKS[state].light}"' if state else ""
    return f'<text x="{x:g}" y="{y:g}"{own}{more}>{escape(text, quote=False)}</text>'
