"""What fails is tried again after a pause that grows."""

from __future__ import annotations

from launcherkit_plugin.model.backoff import Backoff


def test_what_fails_again_is_left_alone_for_longer() -> None:
    backoff = Backoff(first=10, longest=30)
    now, ends = 0.0, []
    for _ in range(4):
        pause = backoff.failed("card", now, "broken")
        assert backoff.too_early("card", now + pause - 1)
        assert backoff.why("card", now + pause - 1) == "broken"
        assert not backoff.too_early("card", now + pause)
        assert backoff.why("card", now + pause) is None
        ends.append(pause)
        now += pause
    assert ends == [10, 20, 30, 30]
    backoff.succeeded("card")
    assert backoff.failed("card", now) == 10


def test_another_attempt_is_worth_while_at_once_where_something_has_changed() -> None:
    backoff = Backoff(first=10, longest=30)
    backoff.failed("group", 0.0, state="nvidia")
    assert backoff.too_early("group", 1.0, state="nvidia")
    assert not backoff.too_early("group", 1.0, state=None)
    assert backoff.failed("group", 1.0, state="nouveau") == 10


def test_what_is_of_no_interest_any_more_is_forgotten() -> None:
    backoff = Backoff(first=10, longest=30)
    backoff.failed("one", 0.0)
    backoff.failed("two", 0.0)
    backoff.forget_others({"two"})
    assert (backoff.too_early("one", 1.0), backoff.too_early("two", 1.0)) == (False, True)
