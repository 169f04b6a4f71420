"""Where everything of a picture is: nothing is lost, covered or outside, and 64 cards fit on one screen."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcherkit.model.address import PciSlot
from launcherkit.show.boxes import Box, Drawing, place
from launcherkit.show.card_rows import LETTER, LEVELS, PAD, PIP, DetailLevel, rows_of
from launcherkit.show.contents import (
    CardFunction,
    CardShares,
    Contents,
    Frame,
    HostCard,
    Lane,
    NumaBox,
    cards_in,
    contents_of,
)
from launcherkit.show.guest_rows import Bridge, GuestBox, GuestSlot
from launcherkit.show.state import LOOKS
from tests.show.machines import HOSTS, large, topology

SCREEN = 1440, 900
HEADER = 80
"""Pixels above the drawing in a page, with a line for each of two findings."""


def host_of(random: Random) -> Contents:
    """NUMA nodes with any lanes in lanes, frames and cards; perhaps a guest that has some of the cards."""
    numbers, states = iter(range(1000)), list(LOOKS)

    def words() -> str:
        return "name of it " * random.choice((0, 1, 1, 6))

    def function(number: int) -> CardFunction:
        return CardFunction(number, random.choice(states), words(), words(), random.choice((None, 7, 300)), words())

    def card() -> HostCard:
        slot = PciSlot(0, next(numbers), 0)
        return HostCard(
            slot=slot,
            name=words(),
            state=random.choice(states),
            functions=tuple(map(function, range(random.choice((1, 1, 2, 8))))),
            link=words(),
            width=random.choice(("", "x16", "x4 of 16")),
            port=words(),
            narrow=random.random() < 0.2,
            owners=tuple(words() for _ in range(random.choice((0, 0, 1, 3)))),
            requests=(),
            shares=tuple(
                CardShares(words(), "VFs", tuple(random.choices(states, k=random.choice((1, 8, 16, 70)))))
                for _ in range(random.choice((0, 0, 1, 2)))
            ),
            names=(f"{slot}.0",),
            details=(),
        )

    def lane(depth: int) -> Lane:
        kinds = random.choices("cfl" if depth else "cf", k=random.choice((1, 2, 4)))
        return Lane(words(), tuple(unit(kind, depth) for kind in kinds))

    def unit(kind: str, depth: int) -> HostCard | Frame | Lane:
        frame = kind == "f" and Frame(1, False, (), tuple(card() for _ in range(random.choice((1, 3)))))
        return frame or (lane(depth - 1) if kind == "l" else card())

    nodes = tuple(
        NumaBox("node", {}, tuple(lane(1) for _ in range(random.choice((1, 1, 2, 5)))))
        for _ in range(random.choice((1, 2, 4)))
    )
    names = [card.names[0] for node in nodes for lane in node.lanes for card in cards_in(lane)]
    rows = tuple(GuestSlot(("row",), (name,)) for name in random.sample(names, min(4, len(names))))
    guest = GuestBox("vm", (Bridge("root", 0), *rows)) if random.random() < 0.5 else None
    return Contents((), nodes, guest, {}, {}, ("a note",))


seeds = st.integers(0, 1 << 32)
FEW = settings(max_examples=25)


def inside(box: Box, around: Box) -> bool:
    return around.x <= box.x and around.y <= box.y and box.right <= around.right and box.bottom <= around.bottom


def apart(one: Box, other: Box) -> bool:
    return one.right <= other.x or other.right <= one.x or one.bottom <= other.y or other.bottom <= one.y


def check(what: Contents, drawing: Drawing) -> None:
    whole = Box("note", 0, 0, drawing.across, drawing.high, "", drawing.boxes)
    for box in whole.walk():
        assert all(inside(inner, box) for inner in box.boxes)
        assert all(apart(one, other) for one, other in combinations(box.boxes, 2))
    cards = Counter(box.value.slot for box in drawing.walk() if isinstance(box.value, HostCard))
    assert cards == Counter(card.slot for node in what.nodes for lane in node.lanes for card in cards_in(lane))
    values = [box.value for box in drawing.walk()]
    assert [each for each in values if isinstance(each, NumaBox)] == list(what.nodes)
    assert sum(isinstance(each, Lane) for each in values) >= sum(len(node.lanes) for node in what.nodes)


@FEW
@given(seed=seeds, across=st.integers(900, 2000), high=st.integers(100, 3000))
def test_nothing_covers_anything_else_or_is_outside_of_what_it_is_in_and_each_card_is_there_once(
    seed: int, across: int, high: int
) -> None:
    what = host_of(Random(seed))
    check(what, place(what, across, high))


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("across", [900, 1440, 1920])
def test_so_it_is_on_every_machine(name: str, across: int) -> None:
    what = contents_of(topology(name, every=True))
    check(what, place(what, across, 900))


@FEW
@given(seed=seeds, level=st.sampled_from(LEVELS))
def test_no_text_of_a_card_goes_beyond_it_or_into_another_text(seed: int, level: DetailLevel) -> None:
    what = host_of(Random(seed))
    for box in place(what, 1440, 900, (level,)).walk():
        for row in rows_of(box.value, level) if isinstance(box.value, HostCard) else ():
            end = 0.0
            for span in row.left:
                assert span.x >= end - 0.01
                end = span.x + (PIP if span.is_mark else len(span.text) * LETTER)
            assert end + (len(row.right.text) * LETTER if row.right else 0) <= level.across - 2 * PAD + LETTER


def test_64_cards_with_8_vfs_each_fit_on_one_screen_with_a_mark_for_each_vf() -> None:
    what = contents_of(large())
    drawing = place(what, SCREEN[0] - 48, SCREEN[1] - HEADER)
    assert (drawing.across * drawing.level.scale, drawing.high * drawing.level.scale) <= (1392, 820)
    cards = [box.value for box in drawing.walk() if isinstance(box.value, HostCard)]
    assert len(cards) == 64
    for card in cards:
        *_, vfs = rows_of(card, drawing.level)
        assert sum(span.is_mark for span in vfs.left) == 8


def test_the_fewer_cards_there_are_the_more_is_said_of_each() -> None:
    levels = [place(contents_of(large(cards, 0)), *SCREEN).level for cards in (2, 16, 32, 64)]
    assert [LEVELS.index(level) for level in levels] == sorted(LEVELS.index(level) for level in levels)
    assert {level.name for level in levels} == {"roomy", "brief", "dense"}


def test_a_narrower_window_has_the_same_boxes_in_the_same_order() -> None:
    what = contents_of(large())
    wide, narrow = (place(what, across, 0, LEVELS[-1:]) for across in (1900, 900))
    assert [box.value for box in wide.walk()] == [box.value for box in narrow.walk()]
    assert narrow.across <= 900 < wide.across


@FEW
@given(seed=seeds)
def test_each_line_leads_from_its_card_to_its_slot_and_crosses_no_other_card(seed: int) -> None:
    what = host_of(Random(seed))
    drawing = place(what, 1440, 900)
    cards = {box.value.slot: box for box in drawing.walk() if isinstance(box.value, HostCard)}
    slots = [box for box in drawing.walk() if box.kind == "slot"]
    wanted = [] if what.guest is None else [row for row in what.guest.rows if isinstance(row, GuestSlot)]
    assert len(drawing.routes) == len(wanted)
    for route in drawing.routes:
        start, end = cards[route.card], slots[route.slot]
        assert isinstance(end.value, GuestSlot)
        assert isinstance(start.value, HostCard)
        assert start.value.names[0] in end.value.sources
        assert (route.x, start.y <= route.y <= start.bottom) in ((route.x, True),)
        assert (route.to_x, route.to_y) == (end.x, end.y + end.high // 2)
        assert not [
            box
            for box in cards.values()
            if box is not start and box.x < route.host and box.right > route.x and box.y < route.gutter < box.bottom
        ]


def test_an_error_of_a_guest_has_a_line_to_the_card_that_it_is_about() -> None:
    what = contents_of(topology("workstation"))
    guest = GuestBox(
        "vm", (GuestSlot(("LK204",), ("0000:61:00.1",), error=True), GuestSlot(("LK101",), ("",), error=True))
    )
    (route,) = place(replace(what, guest=guest), *SCREEN).routes
    assert (str(route.card), route.error) == ("0000:61:00", True)
