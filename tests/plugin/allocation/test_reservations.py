"""Devices count as held from Allocate on, until the kubelet's word covers them."""

from __future__ import annotations

from weakref import WeakSet

from launcherkit_plugin.allocation.reservations import FRESH_SECONDS, PATIENCE_SECONDS, Reservations
from launcherkit_plugin.model.device import NO_USAGE, ClaimRef, Holder, Usage
from tests.plugin.resources import usage

NOBODY = usage({})


def held(merged: Usage) -> dict[str, set[str]]:
    return {name: set(devices) for name, devices in merged.held.items()}


def test_what_was_reserved_away_is_held_at_once() -> None:
    reservations = Reservations()
    reservations.reserve("r", ["a", "b"], 10.0)
    merged = reservations.merged(usage({"r": {"c": "default/vm"}}), 10.1, read_at=9.0)
    assert held(merged) == {"r": {"a", "b", "c"}}
    assert str(merged.held["r"]["a"]) == "a pod that is being started"
    assert str(merged.held["r"]["c"]) == "pod default/vm"


def test_a_pod_that_was_seen_with_it_and_is_gone_holds_it_no_more() -> None:
    reservations = Reservations()
    reservations.reserve("r", ["a"], 10.0)
    assert held(reservations.merged(usage({"r": {"a": "default/vm"}}), 12.0, read_at=11.0)) == {"r": {"a"}}
    assert held(reservations.merged(NOBODY, 13.0, read_at=12.0)) == {}


def test_the_word_of_before_does_not_count() -> None:
    """A slot is handed out again while its last holder is still listed."""
    reservations = Reservations()
    reservations.reserve("r", ["a"], 10.0)
    merged = reservations.merged(usage({"r": {"a": "default/old"}}), 10.5, read_at=9.9)
    assert str(merged.held["r"]["a"]) == "a pod that is being started"
    assert held(reservations.merged(NOBODY, 11.0, read_at=10.9)) == {"r": {"a"}}


def test_a_pod_that_never_appears_holds_it_for_a_while_only() -> None:
    reservations = Reservations()
    reservations.reserve("r", ["a"], 10.0)
    almost, after = 10.0 + PATIENCE_SECONDS, 10.1 + PATIENCE_SECONDS
    assert held(reservations.merged(NOBODY, almost, read_at=almost)) == {"r": {"a"}}
    assert held(reservations.merged(NOBODY, after, read_at=after)) == {}


def test_while_the_kubelet_says_nothing_nothing_is_forgotten() -> None:
    reservations = Reservations()
    reservations.reserve("r", ["a"], 10.0)
    assert held(reservations.merged(NO_USAGE, 1e6, read_at=1e6)) == {"r": {"a"}}


def test_what_was_reserved_away_again_is_waited_for_again() -> None:
    reservations = Reservations()
    reservations.reserve("r", ["a"], 10.0)
    reservations.merged(usage({"r": {"a": "default/vm"}}), 12.0, read_at=11.0)
    reservations.reserve("r", ["a"], 20.0)
    assert held(reservations.merged(NOBODY, 21.0, read_at=19.0)) == {"r": {"a"}}


def test_fresh_is_what_was_reserved_away_a_moment_ago_seen_or_not() -> None:
    reservations = Reservations()
    reservations.reserve("r", ["a"], 10.0)
    reservations.merged(usage({"r": {"a": "default/vm"}}), 11.0, read_at=10.5)
    assert reservations.fresh_since("r", "a", 10.0 + FRESH_SECONDS) == 10.0
    assert reservations.fresh_since("r", "a", 10.1 + FRESH_SECONDS) is None
    assert reservations.fresh_since("r", "b", 10.0) is None


def test_nothing_is_kept_of_what_is_over() -> None:
    class DeviceId(str):
        """Can be referred to weakly, unlike a plain string."""

    reservations, kept = Reservations(), WeakSet[DeviceId]()
    for turn in range(1000):
        device = DeviceId(turn)
        kept.add(device)
        reservations.reserve("r", [device], float(turn))
        reservations.merged(NOBODY, float(turn), read_at=float(turn))
    assert len(kept) <= PATIENCE_SECONDS + 1


def test_what_claims_have_is_held_beside_what_pods_have_however_long() -> None:
    reservations = Reservations()
    claim = Holder("", claim=ClaimRef("vms", "gpu", "u-1"))
    reservations.claimed("d", {"r": {"a": claim}})
    merged = reservations.merged(usage({"r": {"c": "default/vm"}}), 1e6, read_at=1e6)
    assert (str(merged.held["r"]["a"]), str(merged.held["r"]["c"])) == ("ResourceClaim vms/gpu", "pod default/vm")
    assert merged.known
    assert held(reservations.merged(NO_USAGE, 1e6, read_at=1e6)) == {"r": {"a"}}


def test_where_it_is_not_known_what_a_claim_has_nothing_is_known_to_be_free() -> None:
    reservations = Reservations()
    reservations.claimed("d", {}, complete=False)
    assert not reservations.merged(usage({"r": {"c": "default/vm"}}), 10.0, read_at=9.0).known
