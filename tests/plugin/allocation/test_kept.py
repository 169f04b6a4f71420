"""What is kept for which VM, and which pod gets what: the decisions."""

from __future__ import annotations

import pytest

from launcherkit_plugin.allocation.kept import Callers, callers_among, check, order
from launcherkit_plugin.model.device import Holder, without_names
from launcherkit_plugin.model.errors import CALLER_UNKNOWN, DEVICE_KEPT
from launcherkit_plugin.model.same_device import AskingPod, Kept, Owner, Wish
from tests.support.errors import raises_code
from tests.support.provoked import provoked

GPU = "nvidia.com/GPU"
A, B, C = (f"0000:0{number}:00.0" for number in (1, 2, 3))
ONE, OTHER = Owner("vms", "one"), Owner("vms", "other")
NOON = 1764072000.0


def pod(owner: Owner, wish: Wish | None = None, number: int = 1, *, ended: bool = False) -> AskingPod:
    return AskingPod(owner, wish or "", {GPU: number}, ended)


def kept(
    device: str, owner: Owner | None = ONE, wish: Wish = "required", *, since: float = 0.0, runs: bool = False
) -> Kept:
    ended = None if runs else NOON
    return Kept(device, GPU, owner, wish, "vms/launcher-1", since, ended, 86400.0)


def asks(*pods: AskingPod, doubt: bool = False) -> Callers:
    return Callers(pods, doubt)


# Which pod it is


def test_the_kubelet_asks_for_the_pod_that_has_not_got_all_yet() -> None:
    known = {"vms/a": pod(ONE), "vms/b": pod(OTHER), "vms/web": AskingPod(Owner("vms", "web"), "", {})}
    held = {A: Holder("vms/a", "compute")}
    assert callers_among(GPU, known, held, known) == asks(known["vms/b"])
    assert callers_among(GPU, ["vms/a", "vms/web"], held, known) == asks()


def test_a_pod_of_two_containers_is_asked_for_until_both_have_theirs() -> None:
    known = {"vms/a": pod(ONE, number=2)}
    assert callers_among(GPU, known, {A: Holder("vms/a", "compute")}, known) == asks(known["vms/a"])
    assert callers_among(GPU, known, dict.fromkeys([A, B], Holder("vms/a", "side")), known) == asks()


def test_a_pod_that_has_ended_is_not_asked_for_nor_one_that_the_kubelet_does_not_list() -> None:
    known = {"vms/a": pod(ONE, ended=True), "vms/b": pod(OTHER)}
    assert callers_among(GPU, ["vms/a"], {}, known) == asks()


def test_a_pod_that_the_api_server_has_not_told_of_is_a_doubt() -> None:
    assert callers_among(GPU, ["vms/new"], {}, {}) == asks(doubt=True)
    assert not asks(doubt=True).is_certain
    assert not asks(pod(ONE), pod(OTHER)).is_certain
    assert asks(pod(ONE)).is_certain
    assert asks().is_certain


# What it may have


def test_what_is_kept_for_a_vm_goes_to_its_pod_and_to_no_other() -> None:
    check(GPU, [A], [kept(A)], asks(pod(ONE, "required")))
    check(GPU, [B], [kept(A)], asks(pod(OTHER)))
    for stranger in (asks(pod(OTHER)), asks(pod(Owner("else", "one"), "required")), asks()):
        with raises_code(DEVICE_KEPT, match="0000:01:00.0 is kept for VM vms/one since 2025-11-25 12:00 UTC until"):
            check(GPU, [A], [kept(A)], stranger)


def test_a_pod_of_the_vm_may_have_it_whatever_its_label_is_now() -> None:
    check(GPU, [A], [kept(A)], asks(pod(ONE)))
    check(GPU, [B], [kept(A)], asks(pod(ONE)))


def test_what_is_only_preferred_is_nobodys() -> None:
    check(GPU, [A], [kept(A, wish="preferred")], asks(pod(OTHER)))
    check(GPU, [B], [kept(A, wish="preferred")], asks(pod(ONE, "preferred")))
    check(GPU, [A], [kept(A, wish="preferred")], asks(pod(OTHER), doubt=True))


def test_it_is_kept_under_every_name_and_required_under_its_own() -> None:
    """A card for VMs or Kata has two."""
    with raises_code(DEVICE_KEPT):
        check("nvidia.com/GPU-kata", [A], [kept(A)], asks(pod(OTHER)))
    check("nvidia.com/NIC", [B], [kept(A)], asks(pod(ONE, "required")))


def test_a_vm_that_requires_its_device_gets_no_other() -> None:
    with raises_code(DEVICE_KEPT, match="0000:01:00.0 is required again, and the kubelet chose 0000:02:00.0"):
        check(GPU, [B], [kept(A)], asks(pod(ONE, "required")))


def test_a_vm_that_asks_for_fewer_or_more_than_it_had_gets_some_of_them_or_all() -> None:
    records = [kept(A), kept(B)]
    check(GPU, [B], records, asks(pod(ONE, "required")))
    check(GPU, [A, B, C], records, asks(pod(ONE, "required", 3)))
    with raises_code(DEVICE_KEPT):
        check(GPU, [A, C], records, asks(pod(ONE, "required", 2)))


def test_a_device_whose_record_cannot_be_read_is_nobodys() -> None:
    with raises_code(DEVICE_KEPT, match="kept for a VM that its record does not name"):
        check(GPU, [A], [kept(A, None)], asks())


@pytest.mark.parametrize(
    ("ids", "records", "callers"),
    [
        ([A], [kept(A)], asks(pod(ONE, "required"), pod(OTHER))),
        ([B], [kept(A)], asks(pod(ONE, "required"), pod(OTHER))),
        ([A], [kept(A)], asks(doubt=True)),
        ([B], [kept(A)], asks(doubt=True)),
        ([A], [kept(A, runs=True)], asks(pod(OTHER), doubt=True)),
    ],
    ids=["its_own_or_not", "another_or_not", "kept_and_unknown", "another_and_unknown", "of_one_that_runs"],
)
def test_where_it_matters_which_pod_it_is_and_that_is_not_certain_nobody_gets_it(
    ids: list[str], records: list[Kept], callers: Callers
) -> None:
    with raises_code(CALLER_UNKNOWN):
        check(GPU, ids, records, callers)


@pytest.mark.parametrize(
    ("ids", "records", "callers"),
    [
        ([B], [kept(A)], asks(pod(OTHER), pod(Owner("vms", "third")))),
        ([B], [kept(A, runs=True)], asks(pod(OTHER), doubt=True)),
        ([B], [], asks(doubt=True)),
        ([B], [kept(A)._replace(resource="nvidia.com/NIC")], asks(doubt=True)),
    ],
    ids=["all_are_strangers", "whose_it_is_runs", "nothing_is_kept", "another_resource_is_kept"],
)
def test_where_it_does_not_matter_they_do(ids: list[str], records: list[Kept], callers: Callers) -> None:
    check(GPU, ids, records, callers)


# What comes first


def test_what_the_vm_had_comes_first_and_what_others_had_last() -> None:
    records = [kept(A), kept(B, OTHER, "required"), kept(C, OTHER, "preferred")]
    assert order([A, B, C], records, asks(pod(ONE, "preferred"))) == ([A], [C, B])
    assert order([B, C], records, asks(pod(ONE, "required"))) == ([], [C, B])
    assert order([A, B, C], records, asks()) == ([], [C, A, B])


def test_of_two_that_a_vm_had_the_last_one_comes_first() -> None:
    records = [kept(A, wish="preferred", since=1.0), kept(B, wish="preferred", since=2.0)]
    assert order([A, B], records, asks(pod(ONE, "preferred"))) == ([B, A], [])


def test_a_pod_that_asks_for_nothing_gets_no_preference() -> None:
    assert order([A, B], [kept(A, wish="preferred")], asks(pod(ONE))) == ([], [A])


def test_if_it_is_not_certain_which_pod_it_is_only_what_is_required_comes_first() -> None:
    """Whoever gets it is refused then if it is another, and made again."""
    records = [kept(A), kept(B, OTHER, "preferred")]
    assert order([A, B], records, asks(pod(ONE, "required"), pod(OTHER, "preferred"))) == ([A], [B])


# What tenants read


def test_an_event_names_no_vm_of_others() -> None:
    assert without_names(str(kept(A))) == "for a VM since 2025-11-25 12:00 UTC until 2025-11-26 12:00 UTC"
    assert str(kept(A, runs=True)) == "for VM vms/one"


def test_the_pages_show_what_is_said() -> None:
    with raises_code(DEVICE_KEPT) as other:
        check(GPU, [A], [kept(A)], asks(pod(OTHER)))
    with raises_code(CALLER_UNKNOWN) as unknown:
        check(GPU, [A], [kept(A)], asks(doubt=True))
    for code, caught in (("LK761", other), ("LK762", unknown)):
        assert provoked("allocator", code) == [f"{code}: {caught.value.message}"]
