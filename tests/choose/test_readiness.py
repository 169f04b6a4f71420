"""Which functions of a host guests could have, and what is in the way of the others."""

from __future__ import annotations

from typing import Any

import pytest

from launcherkit.choose.readiness import Blocker, Readiness, readiness_of
from launcherkit.model.host import MdevParent, PciFunction
from tests.support import facts as make
from tests.support.facts import at

ISA, MATE = 0x060100, "0000:01:00.1"


def states(*functions: PciFunction, **more: Any) -> dict[str, Readiness]:
    found = readiness_of(make.facts(*functions, **more))
    return {str(address): ready for address, ready in found.items()}


def test_a_card_on_vfio_is_ready_and_the_hosts_own_is_not_for_guests() -> None:
    nvme = make.function("0000:02:00.0", make.NVME, driver="nvme", group=2)
    found = states(*make.card("0000:01:00", 1), nvme)
    assert [ready.state for ready in found.values()] == ["ready", "ready", "host"]
    assert [ready.for_guests for ready in found.values()] == [True, True, False]


@pytest.mark.parametrize("class_code", [make.AUDIO, make.NVME, ISA])
def test_one_driver_of_the_host_blocks_its_whole_group_and_is_named(class_code: int) -> None:
    found = states(make.function("0000:01:00.0"), make.function(MATE, class_code, driver="other"))
    cause = Blocker("LK204", at(MATE), "bound to other", True)
    assert found == {"0000:01:00.0": Readiness("blocked", (cause,)), MATE: Readiness("host", (cause,))}


def test_a_graphics_card_on_its_own_driver_is_blocked_by_itself() -> None:
    (ready,) = states(make.function("0000:01:00.0", driver="nvidia")).values()
    assert (ready.state, [str(each.device) for each in ready.blockers]) == ("blocked", ["0000:01:00.0"])


def test_what_is_wrong_with_one_function_keeps_nobody_from_its_group() -> None:
    asleep = {"0000:01:00.0": make.detail(power_state="D3cold")}
    found = states(*make.card("0000:01:00", 1), details=asleep)
    assert [(ready.state, [each.code for each in ready.blockers]) for ready in found.values()] == [
        ("blocked", ["LK207"]),
        ("ready", []),
    ]


def test_without_an_iommu_no_card_is_ready() -> None:
    (ready,) = states(make.function("0000:01:00.0", group=None)).values()
    assert ready == Readiness("blocked", (Blocker("LK210", at("0000:01:00.0"), "in no IOMMU group", False),))


def test_a_card_that_mediated_devices_are_made_on_is_shared() -> None:
    parent = MdevParent("0000:01:00.0", at("0000:01:00.0"), ())
    (ready,) = states(make.function("0000:01:00.0", driver="nvidia"), parents=[parent]).values()
    assert ready == Readiness("parent")


def test_a_card_without_a_driver_is_idle_and_a_bridge_is_no_card() -> None:
    found = states(make.function("0000:01:00.0", driver=None), make.function("0000:00:01.0", make.BRIDGE, group=2))
    assert [ready.state for ready in found.values()] == ["idle", "bridge"]
