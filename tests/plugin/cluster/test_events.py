"""Which Events are told: each once, then by its count, and never too many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from launcherkit_plugin.cluster.events import COMBINED, Correlator, Event, Occurrence

GONE = Event("Warning", "DeviceUnhealthy", "0000:e1:00.0 is gone")
EVENTS = st.builds(
    Event, st.sampled_from(["Normal", "Warning"]), st.sampled_from(["A", "B"]), st.text(max_size=3).map("m".__add__)
)


def reported(correlator: Correlator, event: Event, now: float) -> Occurrence:
    taken = correlator.observe(event, now)
    assert taken is not None
    return taken


def test_the_same_event_again_is_the_same_with_a_higher_count() -> None:
    correlator = Correlator()
    first, again = reported(correlator, GONE, 1000), reported(correlator, GONE, 1100)
    assert (first.times, again.times, again.number, again.first) == (1, 2, first.number, 1000)


def test_after_ten_quiet_minutes_it_is_a_new_one() -> None:
    correlator = Correlator()
    first, later = reported(correlator, GONE, 1000), reported(correlator, GONE, 1601)
    assert (later.times, later.first) == (1, 1601)
    assert later.number != first.number


def test_events_that_differ_are_reported_apart() -> None:
    correlator = Correlator()
    others = [GONE._replace(reason="Other"), GONE._replace(type="Normal"), GONE._replace(message="other")]
    assert len({reported(correlator, event, 0).number for event in (GONE, *others)}) == 4


def test_of_many_with_one_reason_one_goes_on_for_all() -> None:
    correlator = Correlator()
    taken = [reported(correlator, GONE._replace(message=f"slot {n}"), 0) for n in range(14)]
    assert [each.event.message for each in taken[:10]] == [f"slot {n}" for n in range(10)]
    assert [(each.times, each.event.message) for each in taken[10:]] == [
        (n - 9, f"{COMBINED}slot {n}") for n in range(10, 14)
    ]
    assert len({each.number for each in taken}) == 11


def test_a_node_that_flaps_has_a_budget_that_comes_back() -> None:
    correlator = Correlator()
    assert sum(correlator.observe(GONE, 0) is not None for _ in range(100)) == 25
    assert correlator.dropped == 75
    assert correlator.observe(GONE, 20.0) is not None
    assert correlator.observe(GONE, 20.5) is None


def test_what_could_not_be_told_is_new_the_next_time() -> None:
    correlator = Correlator()
    correlator.forget(reported(correlator, GONE, 0))
    assert reported(correlator, GONE, 1).times == 1


def test_a_long_message_is_cut_to_what_kubernetes_keeps() -> None:
    assert len(reported(Correlator(), GONE._replace(message="x" * 5000), 0).event.message) == 1024


@given(st.lists(st.tuples(EVENTS, st.floats(0, 1e4)), max_size=60))
def test_one_number_is_one_event_whose_count_rises_by_one(stream: list[tuple[Event, float]]) -> None:
    correlator = Correlator()
    counts: dict[int, int] = {}
    for event, now in sorted(stream, key=lambda each: each[1]):
        if taken := correlator.observe(event, now):
            assert (taken.event.type, taken.event.reason) == (event.type, event.reason)
            assert taken.times == counts.get(taken.number, 0) + 1
            counts[taken.number] = taken.times
    assert sum(counts.values()) + correlator.dropped == len(stream)
