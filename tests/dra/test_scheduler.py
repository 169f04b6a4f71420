"""The double's scheduler gives what the real one would give, and the API refuses what it refuses."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.dra.api import Api, Refused
from tests.dra.limits import wrong_in_slice
from tests.dra.reference import DRIVER, slice_of
from tests.dra.scheduler import DeviceClass, Scheduler, Unschedulable, requested


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(
        Api(), {"gpu": DeviceClass(DRIVER), "big": DeviceClass(DRIVER, lambda device: "big" in device["name"])}
    )


def offer(scheduler: Scheduler, *devices: dict[str, Any], **counters: str) -> Callable[[str, int], list[str]]:
    """Publish devices beside a counter set; gives what claims for so many get."""
    api = scheduler.api
    slices = [slice_of(*devices, count=2)]
    shared = {key: value for key, value in slices[0].items() if key != "devices"}
    sets = {name: {"value": value} for name, value in counters.items()} or {"none": {"value": "0"}}
    api.replace_slices(DRIVER, [{**shared, "sharedCounters": [{"name": "set", "counters": sets}]}, *slices])

    def claim(device_class: str, count: int) -> list[str]:
        name = f"claim-{len(api.claims())}"
        api.create_claim(name, [requested("gpu", device_class, count)])
        found = scheduler.reserve(name, f"pod-of-{name}")
        return [result["device"] for result in found["status"]["allocation"]["devices"]["results"]]

    return claim


def consuming(name: str, amount: int) -> dict[str, Any]:
    return {"name": name, "consumesCounters": [{"counterSet": "set", "counters": {"group": {"value": str(amount)}}}]}


def test_a_counter_that_is_used_up_keeps_the_other_device(scheduler: Scheduler) -> None:
    claim = offer(scheduler, consuming("one", 1), consuming("two", 1), {"name": "three"}, group="1")
    assert claim("gpu", 1) == ["one"]
    assert claim("gpu", 1) == ["three"]
    with pytest.raises(Unschedulable):
        claim("gpu", 1)
    scheduler.release("claim-0", "pod-of-claim-0")
    assert claim("gpu", 1) == ["one"]


def test_within_a_claim_counters_count_too(scheduler: Scheduler) -> None:
    claim = offer(scheduler, consuming("one", 1), consuming("two", 1), consuming("big", 2), group="2")
    with pytest.raises(Unschedulable):
        claim("gpu", 3)
    assert claim("gpu", 2) == ["one", "two"]
    with pytest.raises(Unschedulable):
        claim("big", 1)


def test_a_tainted_device_is_not_given_unless_it_is_tolerated(scheduler: Scheduler) -> None:
    taint = {"key": "launcherkit.io/busy", "effect": "NoSchedule"}
    claim = offer(scheduler, {"name": "one", "taints": [taint]})
    with pytest.raises(Unschedulable):
        claim("gpu", 1)
    tolerant = requested("gpu", "gpu", tolerations=[{"key": "launcherkit.io/busy", "operator": "Exists"}])
    scheduler.api.create_claim("tolerant", [tolerant])
    scheduler.reserve("tolerant", "vm")


def test_the_first_that_is_available_is_given_under_its_whole_name(scheduler: Scheduler) -> None:
    offer(scheduler, {"name": "small"})
    exactly = {"deviceClassName": "big"}, {"deviceClassName": "gpu"}
    alternatives = [{"name": name, **one} for name, one in zip(("first", "second"), exactly, strict=True)]
    scheduler.api.create_claim("either", [{"name": "req", "firstAvailable": alternatives}])
    (result,) = scheduler.reserve("either", "vm")["status"]["allocation"]["devices"]["results"]
    assert (result["request"], result["device"]) == ("req/second", "small")


def test_a_pool_that_is_not_whole_is_not_used(scheduler: Scheduler) -> None:
    scheduler.api.replace_slices(DRIVER, [slice_of({"name": "one"}, count=2)])
    scheduler.api.create_claim("one", [requested("gpu", "gpu")])
    with pytest.raises(Unschedulable):
        scheduler.reserve("one", "vm")


def test_chance_changes_the_order_alone() -> None:
    given = set()
    for seed in range(20):
        scheduler = Scheduler(Api(), {"gpu": DeviceClass(DRIVER)}, random.Random(seed))
        given.add(offer(scheduler, *({"name": f"g{n}"} for n in range(4)))("gpu", 1)[0])
    assert len(given) > 1


@pytest.mark.parametrize(
    ("device", "wrong"),
    [
        ({"name": "Gpu"}, "names of devices"),
        ({"name": "g", "attributes": {"a": {"string": "x" * 65}}}, "64 bytes"),
        ({"name": "g", "attributes": {"a" * 33: {"int": 1}}}, "name"),
        ({"name": "g", "attributes": {"a": {"ints": [1]}}}, "ints"),
        ({"name": "g", "attributes": {"a": {"int": True}}}, "int"),
        ({"name": "g", "attributes": {"a": {}}}, "exactly one value"),
        ({"name": "g", "attributes": {f"a{n}": {"int": n} for n in range(33)}}, "33 attributes"),
        ({"name": "g", "capacity": {"window64": {"value": "a lot"}}}, "capacity"),
        ({"name": "g", "taints": [{"key": "k", "effect": "Never"}]}, "taint"),
        ({"name": "g", "taints": [{"key": f"k{n}", "effect": "NoSchedule"} for n in range(17)]}, "17 taints"),
        ({"name": "g", "consumesCounters": [{"counterSet": f"s{n}", "counters": {}} for n in range(3)]}, "consumes"),
        ({"name": "g", "basic": {}}, "keys"),
    ],
)
def test_what_the_api_refuses_of_a_device(device: dict[str, Any], wrong: str) -> None:
    assert wrong in "; ".join(wrong_in_slice(slice_of(device)))
    with pytest.raises(Refused):
        Api().replace_slices(DRIVER, [slice_of(device)])


def test_what_the_api_refuses_of_a_slice() -> None:
    many = [{"name": f"g{n}"} for n in range(128)]
    tainted = [{**device, "taints": [{"key": "k", "effect": "NoSchedule"}]} for device in many]
    sets = [{"name": f"s{n}", "counters": {"c": {"value": "1"}}} for n in range(8)]
    shared = {**slice_of(), "sharedCounters": sets}
    del shared["devices"]
    assert not list(wrong_in_slice(slice_of(*many)))
    assert not list(wrong_in_slice(slice_of(*tainted[:64])))
    assert not list(wrong_in_slice(shared))
    for wrong in (
        slice_of(*many, {"name": "one-more"}),
        slice_of(*tainted[:65]),
        slice_of(many[0], many[0]),
        {**shared, "devices": []},
        {**shared, "sharedCounters": [*sets, {"name": "s9", "counters": {"c": {"value": "1"}}}]},
        {**shared, "sharedCounters": [{"name": "s", "counters": {f"c{n}": {"value": "1"} for n in range(33)}}]},
    ):
        assert list(wrong_in_slice(wrong))
