"""The series of each device: who has it, and since when it is in which state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from prometheus_client import CollectorRegistry

from launcherkit.model.address import PciAddress, UsbAddress
from launcherkit.model.host import NO_FACTS, HostFacts
from launcherkit_plugin.model.device import ClaimRef, Device, Holder, Problem, Reason, Resource, Usage
from launcherkit_plugin.telemetry.device_series import MOST, DeviceSeries, SeriesState
from tests.support.facts import function

GPU = "nvidia.com/GPU"
CARD, OTHER = "0000:e1:00.0", "0000:01:00.0"
LAUNCHER = "vms/virt-launcher-train-x2b4c"

Label = Mapping[str, str]


def facts(*addresses: str) -> HostFacts:
    functions = [function(each, vendor=0x10DE, device=0x2204) for each in addresses]
    return NO_FACTS._replace(known=True, functions={each.address: each for each in functions})


def card(address: str, reason: Reason | None = None, uuid: str = "") -> Device:
    problem = None if reason is None else Problem(reason, "as said")
    return Device(address, problem=problem, functions=(PciAddress.parse(address),), uuid=uuid)


def resource(*devices: Device, name: str = GPU) -> Resource:
    return Resource(name, "PCI_RESOURCE_X", {each.id: each for each in devices})


def usage(held: Mapping[str, Holder], name: str = GPU) -> Usage:
    return Usage("pod-resources", {name: held})


def observed(*, names: bool = True) -> DeviceSeries:
    """Two cards, of which a VM has one."""
    series = DeviceSeries("node-1", lambda: 1000.0, names=names)
    series.observe(facts(CARD, OTHER), [resource(card(CARD), card(OTHER))], usage({CARD: Holder(LAUNCHER)}))
    return series


def labels(series: DeviceSeries, name: str = "launcherkit_device_info") -> list[dict[str, str]]:
    return [sample.labels for family in series.collect() for sample in family.samples if sample.name == name]


def states(series: DeviceSeries) -> dict[str, tuple[str, float]]:
    return {
        sample.labels["device"]: (sample.labels["state"], sample.value)
        for family in series.collect()
        for sample in family.samples
        if sample.name == "launcherkit_device_state_timestamp_seconds"
    }


def test_a_device_says_which_pod_and_vm_have_it() -> None:
    of = {"node": "node-1", "resource": GPU, "vendor": "10de", "model": "2204", "uuid": "", "claim": ""}
    assert labels(observed()) == [
        {**of, "device": CARD, "namespace": "vms", "pod": "virt-launcher-train-x2b4c", "vm": "train"},
        {**of, "device": OTHER, "namespace": "", "pod": "", "vm": ""},
    ]


def test_a_shared_card_has_a_series_for_each_who_has_a_share_and_one_state() -> None:
    claims = {
        f"{CARD}::{share}": Holder("", claim=ClaimRef("ml", name, share))
        for share, name in zip("123", "aba", strict=True)
    }
    for names, said in ((True, ["a", "b"]), (False, [""])):
        series = DeviceSeries("node-1", lambda: 1000.0, names=names)
        series.observe(facts(CARD), [resource(card(CARD))], usage(claims))
        assert [(each["device"], each["claim"]) for each in labels(series)] == [(CARD, name) for name in said]
        assert states(series) == {CARD: ("held", 1000.0)}


def test_without_leave_nobody_is_named() -> None:
    series = observed(names=False)
    assert {each[label] for each in labels(series) for label in ("namespace", "pod", "vm", "claim")} == {""}
    assert states(series) == {CARD: ("held", 1000.0), OTHER: ("free", 1000.0)}


@pytest.mark.parametrize(
    ("holder", "said"),
    [
        (Holder("ml/train-0", "main"), {"namespace": "ml", "pod": "train-0", "vm": ""}),
        (Holder("ml/virt-launcher-a.b-c-1-zzzzz"), {"pod": "virt-launcher-a.b-c-1-zzzzz", "vm": "a.b-c-1"}),
        (Holder("ml/virt-launcher-a-zzzz"), {"pod": "virt-launcher-a-zzzz", "vm": ""}),
        (Holder("ml/virt-launcher-" + "a" * 43 + "-zzzzz"), {"vm": ""}),  # 63 characters: the VM's name may be cut
        (Holder("ml/virt-launcher-" + "a" * 42 + "-zzzzz"), {"vm": "a" * 42}),
        (Holder("uid:1b2c"), {"namespace": "", "pod": "", "vm": ""}),
        (Holder(""), {"namespace": "", "pod": "", "vm": ""}),
        (Holder("", claim=ClaimRef("ml", "gpus", "1b2c")), {"namespace": "ml", "pod": "", "vm": "", "claim": "gpus"}),
        (Holder("", claim=ClaimRef("", "", "1b2c")), {"namespace": "", "claim": ""}),
    ],
)
def test_what_is_not_known_of_a_holder_is_empty(holder: Holder, said: Label) -> None:
    series = DeviceSeries("node-1", lambda: 0.0, names=True)
    series.observe(facts(CARD), [resource(card(CARD))], usage({CARD: holder}))
    (found,) = labels(series)
    assert found.items() >= said.items()
    assert states(series)[CARD][0] == "held"


def test_a_vgpu_has_its_type_and_a_card_for_containers_its_uuid_and_a_usb_device_its_ids() -> None:
    vgpu = Device("b4f0fe60-9b5e-4b53-9d5f-5f0a83f21f0d", card=CARD, vgpu_types=("GRID T4-1Q",))
    key = Device("usb-0000:00:14.0-2-1", usb=(UsbAddress(1, 4),), traits=(("vendorID", "0529"), ("productID", "0001")))
    series = DeviceSeries("node-1", lambda: 0.0, names=True)
    series.observe(facts(CARD, OTHER), [resource(vgpu, card(OTHER, uuid="GPU-5a"), key)], usage({}))
    assert [(each["vendor"], each["model"], each["uuid"]) for each in labels(series)] == [
        ("10de", "GRID T4-1Q", ""),
        ("10de", "2204", "GPU-5a"),
        ("0529", "0001", ""),
    ]


def test_a_vgpu_that_does_not_exist_has_no_series_unless_a_pod_has_it() -> None:
    slots = [Device(f"slot-{number}", card=CARD, made=False) for number in range(3)]
    series = DeviceSeries("node-1", lambda: 0.0, names=True)
    series.observe(facts(CARD), [resource(*slots)], usage({"slot-1": Holder(LAUNCHER)}))
    assert [each["device"] for each in labels(series)] == ["slot-1"]


def test_a_device_of_a_pod_that_may_have_ended_is_held() -> None:
    series = DeviceSeries("node-1", lambda: 0.0, names=True)
    doubtful = Usage("pod-resources", {}, {GPU: {CARD: Holder(LAUNCHER)}})
    series.observe(facts(CARD), [resource(card(CARD))], doubtful)
    assert labels(series)[0]["vm"] == "train"
    assert states(series) == {CARD: ("held", 0.0)}


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        (None, "free"),
        ("kept", "kept"),
        ("cleaning", "cleaning"),
        ("quarantined", "quarantined"),
        ("group-in-use", "blocked"),
        ("no-room", "blocked"),
        ("driver", "unhealthy"),
        ("gone", "unhealthy"),
    ],
)
def test_the_state_follows_from_the_reason(reason: Reason | None, state: SeriesState) -> None:
    series = DeviceSeries("node-1", lambda: 7.0, names=True)
    series.observe(facts(CARD), [resource(card(CARD, reason))], usage({}))
    assert states(series) == {CARD: (state, 7.0)}


def test_a_state_keeps_its_time_until_it_is_another() -> None:
    now = 0.0
    series = DeviceSeries("node-1", lambda: now, names=True)
    turns: Sequence[tuple[Reason | None, bool, tuple[str, float]]] = [
        (None, False, ("free", 10.0)),
        (None, True, ("held", 20.0)),
        ("driver", True, ("held", 20.0)),
        ("cleaning", False, ("cleaning", 40.0)),
        ("quarantined", False, ("quarantined", 50.0)),
        ("quarantined", False, ("quarantined", 50.0)),
        (None, False, ("free", 70.0)),
    ]
    for number, (reason, held, expected) in enumerate(turns, 1):
        now = number * 10.0
        held_now = usage({CARD: Holder(LAUNCHER)} if held else {})
        series.observe(facts(CARD), [resource(card(CARD, reason))], held_now)
        assert states(series) == {CARD: expected}


def test_a_device_that_is_gone_leaves_no_series() -> None:
    series = observed()
    series.observe(facts(OTHER), [resource(card(OTHER))], usage({}))
    assert [each["device"] for each in labels(series)] == [OTHER]
    assert list(states(series)) == [OTHER]


def test_of_more_devices_than_have_series_the_free_ones_are_left_out() -> None:
    addresses = [f"0000:{number >> 5:02x}:{number & 31:02x}.0" for number in range(MOST + 5)]
    last = addresses[-1]
    series = DeviceSeries("node-1", lambda: 0.0, names=True)
    series.observe(facts(*addresses), [resource(*map(card, addresses))], usage({last: Holder(LAUNCHER)}))
    assert len(labels(series)) == len(states(series)) == MOST
    assert labels(series)[0]["device"] == last


def test_it_can_be_scraped_before_anything_was_observed() -> None:
    registry = CollectorRegistry()
    registry.register(DeviceSeries("node-1", lambda: 0.0, names=True))
    assert registry.get_sample_value("launcherkit_device_info") is None
