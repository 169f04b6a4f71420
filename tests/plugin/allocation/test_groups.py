"""Devices of one IOMMU group never go to two pods (K3)."""

from __future__ import annotations

import pytest

from launcherkit.errors import Taken
from launcherkit.model.host import NO_FACTS, HostFacts, MdevParent
from launcherkit_plugin.allocation.groups import (
    FreshSince,
    GroupMembers,
    footprints_of,
    refuse_split,
    with_group_members,
)
from launcherkit_plugin.model.device import ClaimRef, Device, Holder, Resource, Usage
from launcherkit_plugin.model.errors import CARD_IN_OTHER_USE, GROUP_SPLIT
from tests.plugin.resources import device, resource, usage
from tests.support.errors import raises_code
from tests.support.facts import UUID, at, card, facts, function, mdev

GPUS = resource("gpu", device("a", 1), device("b", 1), device("c", 2))
NIC = resource("nic", device("n", 2))
AUDIO = resource("audio", device("x", 1), device("y", 2), companion=True)


def settled(_name: str, _device: str) -> float | None:
    return None


def fresh(_name: str, _device: str) -> float | None:
    return 0.0


def members(
    resources: list[Resource], used: Usage, fresh_since: FreshSince = settled, host: HostFacts = NO_FACTS
) -> GroupMembers:
    return GroupMembers(
        {each.name: each for each in resources}, footprints_of(resources, host), used, fresh_since, host
    )


def unhealthy(
    resources: list[Resource], used: Usage, fresh_since: FreshSince = settled, host: HostFacts = NO_FACTS
) -> dict[str, str]:
    return {
        each.id: each.problem.text
        for found in with_group_members(members(resources, used, fresh_since, host), resources, used)
        for each in found.devices.values()
        if each.problem is not None
    }


def refused(
    resources: list[Resource],
    ids: list[str],
    used: Usage,
    fresh_since: FreshSince = settled,
    host: HostFacts = NO_FACTS,
) -> bool:
    """Whether the first resource's devices can't go to a pod that has none yet."""
    try:
        refuse_split(members(resources, used, fresh_since, host), resources[0], ids)
    except Taken:
        return True
    return False


def test_group_members_of_a_pods_device_are_unhealthy_to_the_rest() -> None:
    used = usage({"gpu": {"a": "default/vm"}})
    assert unhealthy([GPUS, NIC], used) == {"b": "b: pod default/vm has a, which shares IOMMU group 1"}
    assert unhealthy([GPUS, NIC], usage({})) == {}


def test_group_members_are_found_in_other_resources_too() -> None:
    used = usage({"nic": {"n": "default/vm"}})
    assert list(unhealthy([GPUS, NIC], used)) == ["c"]


def test_what_a_pod_has_itself_stays_as_it_is() -> None:
    assert unhealthy([GPUS], usage({"gpu": {"a": "default/vm", "b": "default/vm"}})) == {}


def test_what_a_pod_has_from_the_device_plugin_is_unhealthy_to_claims_and_what_a_claim_has_is_not() -> None:
    claims = GPUS._replace(dra=True)
    used = usage({"gpu": {"a": "default/vm", "b": "default/vm"}, "old": {"c": "default/other"}})
    has = {"a": "default/vm has a", "b": "default/vm has b", "c": "default/other has c"}
    assert unhealthy([claims], used) == {key: f"pod {text}" for key, text in has.items()}
    holder = Holder("", claim=ClaimRef("default", "claim", "u-1"))
    assert unhealthy([claims], Usage("pod-resources", {"gpu": {"c": holder}})) == {}


def test_a_device_that_is_unhealthy_anyway_keeps_its_reason() -> None:
    broken = resource("gpu", device("a", 1), device("b", 1, why="bound to nouveau"))
    assert unhealthy([broken], usage({"gpu": {"a": "default/vm"}})) == {"b": "bound to nouveau"}


def test_an_allocate_that_would_split_a_group_is_refused_by_name() -> None:
    used = usage({"gpu": {"a": "default/vm"}})
    with raises_code(GROUP_SPLIT, match=r"gpu: b can't be allocated: pod default/vm has a, .* IOMMU group 1"):
        refuse_split(members([GPUS], used), GPUS, ["c", "b"])


def test_a_whole_group_goes_to_one_container() -> None:
    assert not refused([GPUS], ["a", "b"], usage({}))


def test_the_kubelet_may_give_out_anew_what_a_pod_seems_to_have() -> None:
    """The pod has ended and is still listed; who has it is the kubelet's to know."""
    assert not refused([GPUS], ["a"], usage({"gpu": {"a": "default/old"}}))
    assert not refused([GPUS], ["a"], usage({"gpu": {"a": "default/old", "b": "default/old"}}))


def test_another_pods_group_member_is_in_the_way_even_where_the_device_itself_is_given_out_anew() -> None:
    assert refused([GPUS], ["a"], usage({"gpu": {"a": "default/old", "b": "default/other"}}))


def test_a_companion_goes_with_its_card_while_that_is_fresh() -> None:
    used = usage({"gpu": {"c": ""}})
    assert not refused([AUDIO, GPUS], ["y"], used, fresh)
    assert not refused([GPUS, AUDIO], ["c"], usage({"audio": {"y": ""}}), fresh)
    assert unhealthy([GPUS, AUDIO], used, fresh) == {}


def test_later_on_a_companion_is_a_group_member_like_any_other() -> None:
    used = usage({"gpu": {"c": "default/vm"}})
    assert refused([AUDIO, GPUS], ["y"], used)
    assert list(unhealthy([GPUS, AUDIO], used)) == ["y"]


def test_two_cards_of_one_group_are_no_companions_however_fresh() -> None:
    assert refused([GPUS], ["b"], usage({"gpu": {"a": "default/vm"}}), fresh)
    assert list(unhealthy([GPUS], usage({"gpu": {"a": "default/vm"}}), fresh)) == ["b"]


def test_what_a_pod_has_counts_by_whatever_name_it_was_given() -> None:
    """After a change of names, or from another device plugin."""
    used = usage({"old": {"a": "default/vm"}})
    assert unhealthy([GPUS], used) == {
        "a": "a: pod default/vm has it, which shares IOMMU group 1",
        "b": "b: pod default/vm has a, which shares IOMMU group 1",
    }
    assert refused([GPUS], ["a"], used)
    assert refused([GPUS], ["b"], used)
    assert not refused([GPUS], ["c"], used)


def test_what_a_pod_has_counts_though_nobody_advertises_it_any_more() -> None:
    host = facts(*card("0000:01:00", 7))
    gpus = resource("gpu", device("0000:02:00.0", 7), device("0000:03:00.0", 8))
    used = usage({"old": {"0000:01:00.0": "default/vm", "no address": "default/other"}})
    assert list(unhealthy([gpus], used, host=host)) == ["0000:02:00.0"]
    assert refused([gpus], ["0000:02:00.0"], used, host=host)


def test_two_pods_that_have_no_name_yet_are_two() -> None:
    one, other = Holder("", "of call 1"), Holder("", "of call 2")
    assert not refused([GPUS], ["a"], Usage("pod-resources", {"gpu": {"a": one, "b": one}}))
    assert refused([GPUS], ["a"], Usage("pod-resources", {"gpu": {"a": one, "b": other}}))


def test_a_companion_is_of_the_same_card_not_of_another_in_the_group() -> None:
    gpus = resource("gpu", device("0000:01:00.0", 1), device("0000:02:00.0", 1))
    audio = resource("audio", device("0000:01:00.1", 1), device("0000:02:00.1", 1), companion=True)
    used = usage({"gpu": {"0000:01:00.0": ""}})
    assert not refused([audio, gpus], ["0000:01:00.1"], used, fresh)
    assert refused([audio, gpus], ["0000:02:00.1"], used, fresh)


def test_a_companion_knows_when_its_card_was_given_away() -> None:
    used = usage({"gpu": {"c": ""}})
    assert members([AUDIO, GPUS], used, fresh).beside_since(AUDIO, AUDIO.devices["y"]) == 0.0
    assert members([AUDIO, GPUS], used, fresh).beside_since(AUDIO, AUDIO.devices["x"]) is None
    assert members([AUDIO, GPUS], used).beside_since(AUDIO, AUDIO.devices["y"]) is None


def test_a_container_keeps_its_card_whatever_its_resource_is_called_by_now() -> None:
    alone = resource("cuda", device("GPU-1"), device("GPU-2"))._replace(use="container")
    shared = resource("cuda.shared", device("GPU-1::0"), device("GPU-1::1"))._replace(use="container", replicas=2)
    assert list(unhealthy([alone], usage({"old": {"GPU-1": "default/old"}}))) == ["GPU-1"]
    assert list(unhealthy([alone], usage({"cuda": {"GPU-1::0": "default/old"}}))) == ["GPU-1"]
    assert list(unhealthy([shared], usage({"cuda": {"GPU-1": "default/old"}}))) == ["GPU-1::0", "GPU-1::1"]
    with raises_code(CARD_IN_OTHER_USE, match="cuda: GPU-1 can't be allocated: pod default/old has it as old"):
        refuse_split(members([alone], usage({"old": {"GPU-1": "default/old"}})), alone, ["GPU-1"])
    for used in ({"old.shared": {"GPU-1::1": "default/old"}}, {"cuda.shared": {"GPU-1::1": "default/old"}}):
        assert unhealthy([shared], usage(used)) == {}
    assert unhealthy([alone], usage({"cuda": {"GPU-1": "default/old"}})) == {}


CARD = "0000:01:00.0"
CONTAINERS = resource("cuda", Device("GPU-1", groups=frozenset({1}), functions=(at(CARD),)))._replace(use="container")
WHOLE = resource("gpu", Device(CARD, groups=frozenset({1}), functions=(at(CARD), at("0000:01:00.1"))))
VGPUS = resource("vgpu", *(Device(key, card=CARD, made=False) for key in ("slot-0", "slot-1")))
ELSEWHERE = resource(
    "far", Device("slot-9", card="0000:09:00.0"), Device("0000:08:00.0", functions=(at("0000:08:00.0"),))
)


def test_beside_a_container_of_the_group_a_vm_of_the_group_is_still_in_the_way() -> None:
    cuda = resource("cuda", *(Device(key, groups=frozenset({1})) for key in ("GPU-1", "GPU-2")))._replace(
        use="container"
    )
    resources = [cuda, AUDIO]
    assert "GPU-2" not in unhealthy(resources, usage({"cuda": {"GPU-1": "default/a"}}))
    assert (
        "default/vm"
        in unhealthy(resources, usage({"cuda": {"GPU-1": "default/a"}, "audio": {"x": "default/vm"}}))["GPU-2"]
    )


@pytest.mark.parametrize(("had", "now"), [("GPU-1", CARD), (CARD, "GPU-1"), ("GPU-1::1", CARD)])
@pytest.mark.parametrize("name", ["cuda", "old"])
def test_a_card_in_a_container_is_the_same_card_when_its_id_has_another_form(name: str, had: str, now: str) -> None:
    """K10: the configuration decides whether the ID is a UUID or a BDF, and may change while the pod runs."""
    card = Device(now, groups=frozenset({1}), functions=(at(CARD),), uuid="GPU-1")
    cuda = resource("cuda", card)._replace(use="container")
    used = usage({name: {had: "default/old"}})
    assert unhealthy([cuda, WHOLE, VGPUS], used).keys() == {now, CARD, *VGPUS.devices}
    with raises_code(CARD_IN_OTHER_USE, match=f"cuda: {now} can't be allocated: pod default/old has it as {name}"):
        refuse_split(members([cuda, WHOLE], used), cuda, [now])
    shared = resource("cuda", *(card._replace(id=f"{now}::{number}") for number in range(2)))
    shared = shared._replace(use="container", replicas=2)
    assert (unhealthy([shared], used) == {}) == ("::" in had), "replicas of a card go to several containers"


@pytest.mark.parametrize("asks", [CONTAINERS, WHOLE])
def test_a_card_and_a_vgpu_of_it_never_go_to_two_pods(asks: Resource) -> None:
    """K10: the groups of mdevs are their own, so they say nothing of this."""
    (key,) = asks.devices
    resources = [asks, VGPUS, ELSEWHERE]
    used = usage({"vgpu": {"slot-1": "default/vm"}})
    assert unhealthy(resources, used) == {key: f"{key}: pod default/vm has a vGPU of it as vgpu"}
    with raises_code(CARD_IN_OTHER_USE, match=f"{key} can't be allocated: pod default/vm has a vGPU of it as vgpu"):
        refuse_split(members(resources, used), asks, [key])

    used = usage({asks.name: {key: "default/pod"}})
    why = f"pod default/pod has its card, {CARD}, as {asks.name}"
    assert unhealthy(resources, used) == {slot: f"{slot}: {why}" for slot in VGPUS.devices}
    with raises_code(CARD_IN_OTHER_USE, match=why):
        refuse_split(members(resources, used), VGPUS, ["slot-0"])


def test_vgpus_of_one_card_go_to_several_pods() -> None:
    assert unhealthy([VGPUS, CONTAINERS._replace(devices={})], usage({"vgpu": {"slot-0": "default/vm"}})) == {}


def test_a_vgpu_keeps_its_card_from_containers_by_whatever_name_and_whoever_gave_it() -> None:
    assert list(unhealthy([CONTAINERS, VGPUS], usage({"old": {"slot-0": "default/vm"}}))) == ["GPU-1"]
    vf = "0000:01:00.4"
    parent = MdevParent(vf, at(vf), ())
    host = facts(function(CARD), function(vf, physfn=CARD), mdevs=[mdev(UUID, parent=vf)], parents=[parent])
    assert list(unhealthy([CONTAINERS], usage({"kubevirt": {UUID: "default/vm"}}), host=host)) == ["GPU-1"]
    assert unhealthy([CONTAINERS], usage({}), host=host) == {}
    gone = resource("vgpu", Device(UUID))
    assert list(unhealthy([CONTAINERS, gone], usage({"vgpu": {UUID: "default/vm"}}), host=host)) == ["GPU-1"]


def test_replicas_of_a_card_keep_its_vgpus_from_vms_until_the_last_has_ended() -> None:
    replicas = [Device(f"GPU-1::{number}", functions=(at(CARD),)) for number in range(2)]
    shared = resource("cuda", *replicas)._replace(use="container", replicas=2)
    assert list(unhealthy([shared, VGPUS], usage({"cuda": {"GPU-1::1": "default/pod"}}))) == ["slot-0", "slot-1"]
    assert list(unhealthy([shared, VGPUS], usage({"vgpu": {"slot-0": "default/vm"}}))) == list(shared.devices)
