"""What frames cost, however they are cut."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from launcherkit.rpc.frames import A_SECOND, MAX, START, Budget, Frames
from tests.support.hostile import DATA, PING, PREFACE, RESET, frame

FRAMES = st.lists(st.builds(frame, st.integers(0, 9), st.just(0), st.integers(0, 9), st.binary(max_size=40)))


def taken(chunks: list[bytes], most: int) -> tuple[list[bytes], float]:
    """The parts that are handed on, and what all of them cost."""
    frames, parts, total = Frames(), [], 0.0
    for chunk in chunks:
        at = 0
        while at < len(chunk):
            end, cost = frames.take(chunk, at, most)
            parts.append(chunk[at:end])
            total += cost
            at = end
    return parts, total


@given(FRAMES, st.integers(1, 7), st.integers(1, 5))
def test_bytes_cost_the_same_in_whatever_pieces_they_come_and_none_is_lost(
    frames: list[bytes], size: int, most: int
) -> None:
    sent = PREFACE + b"".join(frames)
    pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
    whole, cost = taken([sent], most)
    parts, same = taken(pieces, most)
    assert (b"".join(parts), b"".join(whole)) == (sent, sent)
    assert same == cost


def test_a_turn_is_of_a_few_whole_frames() -> None:
    parts, _ = taken([PREFACE + frame(PING, 0, 0, bytes(8)) * 5], 2)
    assert [len(part) for part in parts] == [24 + 34, 34, 17]


def test_data_is_free_and_a_reset_costs_most() -> None:
    def cost(kind: int, payload: bytes) -> float:
        return taken([PREFACE + frame(kind, 0, 1, payload)], 9)[1]

    assert cost(DATA, bytes(16384)) == 0 < cost(DATA, b"a") < cost(RESET, struct.pack("!L", 8))


def test_who_is_in_debt_waits_and_longer_where_others_are_too() -> None:
    budget = Budget(0.0)
    assert budget.spend(START, 0.0, 0) == 0
    assert budget.spend(A_SECOND, 0.0, 0) == 1
    assert budget.spend(0, 0.0, 4) == 4


def test_answered_calls_pay_for_themselves_and_nobody_saves_for_ever() -> None:
    budget = Budget(0.0)
    for _ in range(10_000):
        assert budget.spend(5, 0.0, 0) == 0
        budget.answered()
    assert budget.spend(MAX + A_SECOND, 3600.0, 0) == 1
