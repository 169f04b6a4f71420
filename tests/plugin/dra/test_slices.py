"""The pool as specs of ResourceSlices (D5), for the example of a host and for any host."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from itertools import combinations
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from launcherkit.model.address import PciAddress
from launcherkit.model.host import NO_FACTS
from launcherkit_plugin.dra.counters import CounterUse
from launcherkit_plugin.dra.inventory import DraDevice, Taint, inventory
from launcherkit_plugin.dra.slices import slices
from launcherkit_plugin.model.device import Device, Problem, Reason, Resource

DRIVER = "pci.launcherkit.io"
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
TAINT = Taint("launcherkit.io/driver", "", "NoSchedule")


def plain(number: int) -> DraDevice:
    return DraDevice(f"pci-{number:04x}", "a/GPU", str(number), {}, {})


def sizes(specs: Iterable[dict[str, Any]]) -> list[int]:
    return [len(spec["devices"]) for spec in specs if "devices" in spec]


def test_a_device_is_written_as_the_api_has_it() -> None:
    device = DraDevice(
        "pci-0000-e1-00-0",
        "a/GPU",
        "0000:e1:00.0",
        {"type": {"string": "card"}, "functions": {"int": 2}, "iommufd": {"bool": False}},
        {"window64": "32Gi"},
        (CounterUse("group-0000-01-00-0", "group", 1, 1), CounterUse("card-0000-e1-00-0", "card", 2, 48)),
        (TAINT,),
    )
    assert slices([device], DRIVER) == [
        {
            "driver": DRIVER,
            "sharedCounters": [
                {"name": "card-0000-e1-00-0", "counters": {"card": {"value": "48"}}},
                {"name": "group-0000-01-00-0", "counters": {"group": {"value": "1"}}},
            ],
        },
        {
            "driver": DRIVER,
            "devices": [
                {
                    "name": "pci-0000-e1-00-0",
                    "attributes": {
                        "functions": {"int": 2},
                        "iommufd": {"bool": False},
                        "type": {"string": "card"},
                    },
                    "capacity": {"window64": {"value": "32Gi"}},
                    "consumesCounters": [
                        {"counterSet": "card-0000-e1-00-0", "counters": {"card": {"value": "2"}}},
                        {"counterSet": "group-0000-01-00-0", "counters": {"group": {"value": "1"}}},
                    ],
                    "taints": [{"key": "launcherkit.io/driver", "effect": "NoSchedule"}],
                }
            ],
        },
    ]


def test_a_slice_has_128_devices_or_64_where_one_has_a_taint() -> None:
    devices = [plain(number) for number in range(300)]
    assert sizes(slices(devices, DRIVER)) == [128, 128, 44]
    devices[200] = devices[200]._replace(taints=(TAINT,))
    assert sizes(slices(devices, DRIVER)) == [128, 64, 64, 44]


def test_no_devices_make_no_slice() -> None:
    assert slices([], DRIVER) == []


def test_what_hangs_together_by_too_many_groups_for_a_set_is_one_counter() -> None:
    chain = {f"0000:{at:02x}:00.0": Device(f"0000:{at:02x}:00.0", groups=frozenset({at, at + 1})) for at in range(40)}
    found = inventory([Resource("a/GPU", "V", chain, dra=True)], NO_FACTS)
    assert {each.counters for each in found} == {(CounterUse("group-0000-00-00-0", "group", 1, 1),)}


def test_a_slice_has_eight_counter_sets() -> None:
    pairs = {f"0000:{at:02x}:00.0": Device(f"0000:{at:02x}:00.0", groups=frozenset({at // 2})) for at in range(34)}
    specs = slices(inventory([Resource("a/GPU", "V", pairs, dra=True)], NO_FACTS), DRIVER)
    assert [len(spec.get("sharedCounters", ())) for spec in specs] == [8, 8, 1, 0]


# Any host

groups = st.frozensets(st.integers(0, 8), max_size=3)
problems = st.none() | st.builds(Problem, st.sampled_from(get_args(Reason)), st.just("why"))
functions = st.integers(0, 15).map(lambda number: PciAddress(0, number, 0, 0))


@st.composite
def resources(draw: st.DrawFn) -> list[Resource]:
    """Cards in groups, vGPUs of several types on cards, VFs that may have one of two types."""
    cards = draw(st.lists(functions, unique=True, max_size=12))
    pci = {
        str(address): Device(str(address), None, draw(problems), draw(groups), (address,), model=draw(st.text()))
        for address in cards
    }
    found = [Resource("a/GPU", "V", pci, dra=True)]
    for number in range(draw(st.integers(0, 3))):
        card = str(draw(functions))
        most = draw(st.integers(0, 9))
        slots = {
            f"{number}-{slot}-{card}".replace(":", "-"): Device(
                f"{number}-{slot}-{card}".replace(":", "-"),
                None,
                draw(problems),
                card=card,
                per_card=most,
                vgpu_types=(draw(st.text(min_size=1)),),
            )
            for slot in range(most)
        }
        found.append(Resource(f"a/T{number}", f"T{number}", slots, made_at_start=True, dra=True))
    vfs = draw(st.lists(st.integers(0, 40).map(lambda vf: f"0001:00:{vf % 32:02x}.{vf % 8}"), unique=True, max_size=4))
    for name in ("b/X", "b/x"):
        typed = {
            vf: Device(vf, groups=frozenset({100 + at}), card="0001:00:00.0", place=vf) for at, vf in enumerate(vfs)
        }
        found.append(Resource(name, name, typed, made_at_start=True, dra=True))
    return found


@given(resources(), st.randoms())
def test_the_limits_of_the_api_hold_and_nothing_is_lost(listed: list[Resource], random: Any) -> None:
    devices = inventory(listed, NO_FACTS)
    specs = slices(devices, DRIVER)
    sets = {each["name"]: each["counters"] for spec in specs for each in spec.get("sharedCounters", ())}
    written = [each for spec in specs for each in spec.get("devices", ())]
    assert len(written) == len({each["name"] for each in written}) == sum(len(each.devices) for each in listed)
    for spec in specs:
        assert ("devices" in spec) != ("sharedCounters" in spec)
        assert 0 < len(spec.get("sharedCounters", ())) <= 8 or 0 < len(spec["devices"]) <= 128
        if any("taints" in each or "consumesCounters" in each for each in spec.get("devices", ())):
            assert len(spec["devices"]) <= 64
    for name, counters in sets.items():
        assert LABEL.fullmatch(name)
        assert 0 < len(counters) <= 32
    for each in written:
        assert LABEL.fullmatch(each["name"])
        assert len(each["attributes"]) + len(each.get("capacity", {})) <= 32
        for name, value in each["attributes"].items():
            assert len(name.rpartition("/")[2]) <= 32
            assert len(str(value.get("string", "")).encode()) <= 64
        assert len(each.get("consumesCounters", ())) <= 2
        for use in each.get("consumesCounters", ()):
            assert use["counters"].keys() <= sets[use["counterSet"]].keys()
    random.shuffle(listed)
    shuffled = [each._replace(devices=dict(sorted(each.devices.items(), reverse=True))) for each in listed]
    assert json.dumps(slices(inventory(shuffled, NO_FACTS), DRIVER)) == json.dumps(specs)


@given(resources())
def test_what_shares_a_group_or_a_place_is_never_allocated_together(listed: list[Resource]) -> None:
    found = {(each.resource, each.id): each for each in inventory(listed, NO_FACTS)}
    devices = [(resource, device) for resource in listed for device in resource.devices.values()]
    for (of_one, one), (of_other, other) in combinations(devices, 2):
        together = Counter[tuple[str, str]]()
        totals = {}
        for use in (*found[of_one.name, one.id].counters, *found[of_other.name, other.id].counters):
            together[use.set, use.counter] += use.amount
            totals[use.set, use.counter] = use.total
        excluded = any(amount > totals[key] for key, amount in together.items())
        wanted = not one.groups.isdisjoint(other.groups) or one.id == other.id
        wanted |= other.card in map(str, one.functions) or one.card in map(str, other.functions)
        if one.card and one.card == other.card and one.per_card and other.per_card:
            wanted |= Fraction(1, one.per_card) + Fraction(1, other.per_card) > 1
        assert excluded == wanted


@given(resources())
def test_a_card_full_of_one_type_can_be_had_and_nothing_beside(listed: list[Resource]) -> None:
    found = {(each.resource, each.id): each for each in inventory(listed, NO_FACTS)}
    for resource in listed:
        taken = Counter[str]()
        for device in resource.devices.values():
            if device.card and device.per_card:
                for use in found[resource.name, device.id].counters:
                    taken[use.set] += use.amount
                    assert taken[use.set] <= use.total


@given(resources())
def test_a_taint_is_there_where_a_problem_is(listed: list[Resource]) -> None:
    problems = {(resource.name, key): each.problem for resource in listed for key, each in resource.devices.items()}
    for device in inventory(listed, NO_FACTS):
        problem = problems[device.resource, device.id]
        assert device.problem == problem
        assert [taint.key for taint in device.taints] == ([f"launcherkit.io/{problem.reason}"] if problem else [])
