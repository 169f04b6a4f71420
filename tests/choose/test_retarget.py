"""What becomes of hostdevs whose request was allocated another device here (X2), from environment to XML."""

from __future__ import annotations

from typing import Any

import pytest

from launcherkit import Policy, translate
from launcherkit.errors import STALE_HOSTDEV, LauncherkitError
from tests.support.domains import domain, hostdevs, pci_hostdev
from tests.support.facts import AUDIO, USB, FixedHost, card, function

OLD, OLD_AUDIO = "0000:10:00.0", "0000:10:00.1"
NEW, NEW_AUDIO = "0000:20:00.0", "0000:20:00.1"
HOST = FixedHost(*card("0000:20:00", 20), *card("0000:30:00", 30))
VARIABLE = "PCI_RESOURCE_X_GPU"
ANEW = Policy(replace="yes")
BEFORE = domain(
    pci_hostdev(OLD, alias="ua-gpu-g", guest="0000:05:00.0"),
    pci_hostdev(OLD_AUDIO, alias="ua-gpu-g-fn1", guest="0000:05:00.1"),
)


def vmi(*gpus: str) -> dict[str, Any]:
    return {"spec": {"domain": {"devices": {"gpus": [{"name": name, "deviceName": "x/gpu"} for name in gpus]}}}}


def shown(document: bytes) -> list[tuple[str, str | None, str | None]]:
    return [(each.source, each.alias, each.guest) for each in hostdevs(document)]


def refusal(*args: Any, **options: Any) -> LauncherkitError:
    with pytest.raises(LauncherkitError) as caught:
        translate(*args, **options)
    return caught.value


def test_without_variables_the_hostdevs_are_as_the_document_has_them() -> None:
    """Q2: in a sidecar nobody knows what was allocated."""
    done = translate(BEFORE, env={}, host=HOST, vmi=vmi("g"))
    assert [each.source for each in hostdevs(done.domain_xml)] == [OLD, OLD_AUDIO]


def test_both_devices_are_named_and_a_second_run_changes_nothing() -> None:
    done = translate(BEFORE, env={VARIABLE: NEW}, host=HOST, vmi=vmi("g"))
    assert shown(done.domain_xml) == [
        (NEW, "ua-gpu-g", "0000:05:00.0"),
        (NEW_AUDIO, "ua-gpu-g-fn1", "0000:05:00.1"),
    ]
    replaced = [note.text for note in done.notes if note.topic == "replaced"]
    assert [(OLD in text, NEW in text) for text in replaced] == [(True, True), (False, False)]
    assert [(OLD_AUDIO in text, NEW_AUDIO in text) for text in replaced] == [(False, False), (True, True)]
    again = translate(done.domain_xml, env={VARIABLE: NEW}, host=HOST, vmi=vmi("g"))
    assert again.domain_xml == done.domain_xml
    assert not [note for note in again.notes if note.topic == "replaced"]


def test_a_former_sibling_can_be_what_was_allocated() -> None:
    """It is gone as a sibling, so its hostdev has the function no longer."""
    before = domain(
        pci_hostdev(OLD, alias="ua-gpu-g", guest="0000:05:00.0"),
        pci_hostdev(NEW, alias="ua-gpu-g-fn1", guest="0000:05:00.1"),
    )
    done = translate(
        before, env={VARIABLE: NEW}, host=HOST, vmi=vmi("g"), policy=Policy(siblings="none", replace="yes")
    )
    assert shown(done.domain_xml) == [(NEW, "ua-gpu-g", "0000:05:00.0")]


def test_the_siblings_that_stay_by_the_policy_are_removed_too() -> None:
    """S1: they belonged to the device that is gone."""
    done = translate(
        BEFORE, env={VARIABLE: NEW}, host=HOST, vmi=vmi("g"), policy=Policy(siblings="none", replace="yes")
    )
    assert shown(done.domain_xml) == [(NEW, "ua-gpu-g", "0000:05:00.0")]


def test_a_sibling_that_was_not_allocated_doesnt_come_because_the_former_one_was_there() -> None:
    """S2: of another group, and nothing shows that it was allocated."""
    host = FixedHost(function(NEW, group=1), function(NEW_AUDIO, AUDIO, group=2))
    done = translate(BEFORE, env={VARIABLE: NEW}, host=host, vmi=vmi("g"), policy=ANEW)
    assert shown(done.domain_xml) == [(NEW, "ua-gpu-g", "0000:05:00.0")]


def test_a_new_sibling_takes_the_place_of_the_former_one_of_its_number() -> None:
    before = domain(
        pci_hostdev(OLD, alias="ua-gpu-g", guest="0000:05:00.0"),
        pci_hostdev("0000:10:00.2", alias="ua-gpu-g-fn2", guest="0000:05:00.2"),
    )
    host = FixedHost(function(NEW), function(NEW_AUDIO, AUDIO), function("0000:20:00.2", USB))
    done = translate(before, env={VARIABLE: NEW}, host=host, vmi=vmi("g"), policy=ANEW)
    assert shown(done.domain_xml) == [
        (NEW, "ua-gpu-g", "0000:05:00.0"),
        ("0000:20:00.2", "ua-gpu-g-fn2", "0000:05:00.2"),
        (NEW_AUDIO, "ua-gpu-g-fn1", "0000:05:00.1"),
    ]


def test_a_hostdev_of_the_integrators_own_stays_beside_it() -> None:
    """X1: nobody asked about it, and its alias is no sibling's of the request."""
    before = BEFORE.replace("  </devices>", pci_hostdev("0000:30:00.0", alias="ua-gpu-gg-fn1") + "</devices>")
    host = FixedHost(*card("0000:20:00", 20), function("0000:30:00.0", group=30))
    done = translate(before, env={VARIABLE: NEW}, host=host, vmi=vmi("g"))
    assert "0000:30:00.0" in [each.source for each in hostdevs(done.domain_xml)]


def test_without_a_vmi_the_numbered_requests_keep_their_hostdevs() -> None:
    """Q1, X2: in whichever order the variable lists them; one that was not allocated again is replaced."""
    first = translate(domain(), env={VARIABLE: f"{NEW},0000:30:00.0"}, host=HOST).domain_xml
    assert translate(first, env={VARIABLE: f"0000:30:00.0,{NEW}"}, host=HOST).domain_xml == first
    other = FixedHost(*card("0000:20:00", 20), *card("0000:40:00", 40))
    done = translate(first, env={VARIABLE: f"0000:40:00.0,{NEW}"}, host=other).domain_xml
    assert done == first.replace(b"bus='0x30'", b"bus='0x40'")


def test_a_source_that_another_hostdev_has_is_an_error_that_names_both() -> None:
    before = domain(pci_hostdev(OLD, alias="ua-gpu-g"), pci_hostdev(NEW, alias="ua-mine"))
    error = refusal(before, env={VARIABLE: NEW}, host=HOST, vmi=vmi("g"), name="vm.xml")
    assert error.code == STALE_HOSTDEV.code
    assert (error.file, error.key, error.device) == ("vm.xml", "hostdev 1", OLD)
    assert "hostdev 2" in error.message


@pytest.mark.parametrize("second", [NEW, OLD_AUDIO])
def test_of_two_hostdevs_under_one_alias_only_one_can_have_the_device(second: str) -> None:
    """X2: libvirt takes no such document, but neither may the other hostdev keep a device that nobody allocated."""
    before = domain(pci_hostdev(OLD, alias="ua-gpu-g"), pci_hostdev(second, alias="ua-gpu-g"))
    error = refusal(before, env={VARIABLE: NEW}, host=HOST, vmi=vmi("g"))
    assert error.code == STALE_HOSTDEV.code
    stale, other = ("1", "2") if second == NEW else ("2", "1")
    assert f"hostdev {stale} (ua-gpu-g): it has" in str(error)
    assert f"which hostdev {other} has already" in str(error)


def test_a_hostdev_whose_request_was_allocated_nothing_is_named_beside_the_cause() -> None:
    before = domain(pci_hostdev(NEW, alias="ua-gpu-a"), pci_hostdev(OLD, alias="ua-gpu-b"))
    error = refusal(before, env={VARIABLE: NEW}, host=HOST, vmi=vmi("a", "b"))
    assert [each.code for each in error.leaves()] == ["LK202", "LK127"]
    assert OLD in [each.device for each in error.leaves()]


def test_a_new_sibling_may_have_the_guest_address_that_a_former_one_leaves() -> None:
    before = domain(
        pci_hostdev(OLD, alias="ua-gpu-g", guest="0000:05:00.0"),
        pci_hostdev(OLD_AUDIO, alias="ua-gpu-g-fn1", guest="0000:05:00.2"),
    )
    host = FixedHost(function(NEW), function("0000:20:00.2", USB))
    done = translate(before, env={VARIABLE: NEW}, host=host, vmi=vmi("g"), policy=ANEW)
    assert shown(done.domain_xml) == [
        (NEW, "ua-gpu-g", "0000:05:00.0"),
        ("0000:20:00.2", "ua-gpu-g-fn2", "0000:05:00.2"),
    ]


def test_a_new_sibling_is_where_the_former_one_of_its_number_was_in_the_plan_too() -> None:
    before = domain(
        pci_hostdev(OLD, alias="ua-gpu-g", guest="0000:05:00.0"),
        pci_hostdev(OLD_AUDIO, alias="ua-gpu-g-fn1", guest="0000:05:00.3"),
    )
    done = translate(before, env={VARIABLE: NEW}, host=HOST, vmi=vmi("g"))
    assert shown(done.domain_xml)[1] == (NEW_AUDIO, "ua-gpu-g-fn1", "0000:05:00.3")
    sibling = done.plan.devices[0].functions[1]
    assert sibling.guest is not None
    assert str(sibling.guest.address) == "0000:05:00.3"


@pytest.mark.parametrize("allocated", ["0000:30:00.0", "0000:40:00.0"])
def test_a_request_that_is_named_like_a_sibling_keeps_its_own_hostdev(allocated: str) -> None:
    """X1, X2: the alias of gpu `g-fn1` is that of a sibling of gpu `g`; it keeps its place, whatever it gets."""
    before = domain(
        pci_hostdev("0000:30:00.0", alias="ua-gpu-g-fn1", guest="0000:09:00.0"),
        pci_hostdev(OLD, alias="ua-gpu-g", guest="0000:05:00.0"),
    )
    host = FixedHost(function(NEW, group=20), function(allocated, group=30))
    done = translate(before, env={VARIABLE: f"{NEW},{allocated}"}, host=host, vmi=vmi("g", "g-fn1"))
    assert shown(done.domain_xml) == [
        (allocated, "ua-gpu-g-fn1", "0000:09:00.0"),
        (NEW, "ua-gpu-g", "0000:05:00.0"),
    ]


def test_a_former_sibling_at_another_guest_function_than_the_new_one_gets_gives_way() -> None:
    """P1: .1 and .2 of a card without .0 are functions 0 and 1 in the guest, of a whole card 1 and 2."""
    before = domain(
        pci_hostdev("0000:10:00.1", alias="ua-gpu-g", guest="0000:05:00.0"),
        pci_hostdev("0000:10:00.2", alias="ua-gpu-g-fn2", guest="0000:05:00.1"),
    )
    host = FixedHost(*card("0000:20:00", 20), function("0000:20:00.2", USB, group=20))
    done = translate(before, env={VARIABLE: NEW}, host=host, vmi=vmi("g"), policy=ANEW)
    assert shown(done.domain_xml) == [
        (NEW, "ua-gpu-g", "0000:05:00.0"),
        (NEW_AUDIO, "ua-gpu-g-fn1", "0000:05:00.1"),
        ("0000:20:00.2", "ua-gpu-g-fn2", "0000:05:00.2"),
    ]
