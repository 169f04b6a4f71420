"""The device that a ResourceClaim had goes to the claim that is made again in its place, and to no other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcherkit.model.host import NO_FACTS
from launcherkit_plugin.allocation.keeper import Keeper, records_in
from launcherkit_plugin.dra.inventory import DraDevice, Taint, inventory
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.device import ClaimRef, Holder
from launcherkit_plugin.model.errors import DEVICE_KEPT
from launcherkit_plugin.model.same_device import Kept
from launcherkit_plugin.telemetry.reporter import Reporter
from tests.plugin.dra.desk import AGAIN, CARDS, REF, ClaimDesk, dra_name
from tests.plugin.resources import RULE
from tests.support.errors import raises_code
from tests.support.waiting import PATIENCE

ONE, TWO = f"{CARDS[0]}.0", f"{CARDS[1]}.0"
REQUIRED, PREFERRED = ({"launcherkit.io/same-device": wish} for wish in ("required", "preferred"))
OTHER = ClaimRef("vms", "other", "u-9")


class KeepingDesk:
    """A desk whose rule has ``sameDevice: required``."""

    def __init__(self, folder: Path) -> None:
        self.desk = ClaimDesk(folder, {0x03: RULE._replace(dra=True, same_device="required")})
        self.folder = folder
        self.keeper = Keeper(
            records_in(str(folder)), self._nobody, WorkQueue(stall=PATIENCE), Reporter(), lambda: 1000.0
        )
        self.desk.allocator.keeper = self.keeper
        self.desk.look()

    async def _nobody(self) -> tuple[set[str], Mapping[str, Mapping[str, Holder]]]:
        return set(), {}

    def prepare(self, ref: ClaimRef, slot: str, labels: Mapping[str, str] = {}) -> None:
        self.desk.allocate(ref, slot, labels=dict(labels))
        self.desk.prepare(ref)
        self.turn()

    def unprepare(self, ref: ClaimRef) -> None:
        self.desk.unprepare(ref)
        self.turn()

    def turn(self) -> None:
        async def reconciled() -> None:
            await asyncio.gather(*self.keeper.reconcile(NO_FACTS, self.desk.allocator.usage(), 0.0))

        asyncio.run(reconciled())
        self.desk.look()

    def published(self) -> dict[str, DraDevice]:
        resources = [offer.resource for offer in self.desk.allocator.listed().values()]
        return {device.name: device for device in inventory(resources, self.desk.node.facts())}

    def records(self) -> dict[str, Kept]:
        return dict(records_in(str(self.folder)).read().whole)


@pytest.fixture
def place(tmp_path: Path) -> KeepingDesk:
    return KeepingDesk(tmp_path)


def test_a_claim_that_is_made_again_gets_it_and_no_other_claim_does(place: KeepingDesk) -> None:
    place.prepare(REF, CARDS[0], REQUIRED)
    (kept,) = place.records().values()
    assert (kept.device, str(kept.owner), kept.pod, kept.ended) == (ONE, "VM vms/gpu", "ResourceClaim vms/gpu", None)
    place.unprepare(REF)
    assert place.records()[ONE].ended == 1000.0
    with raises_code(DEVICE_KEPT, match="0000:01:00.0 is kept for VM vms/gpu since"):
        place.prepare(OTHER, CARDS[0])
    with raises_code(DEVICE_KEPT, match="0000:01:00.0 is required again"):
        place.prepare(AGAIN, CARDS[1], REQUIRED)
    place.prepare(AGAIN, CARDS[0], REQUIRED)
    assert set(place.records()) == {ONE}


def test_the_scheduler_is_told_for_whom_it_is_kept_and_keeps_others_away(place: KeepingDesk) -> None:
    place.prepare(REF, CARDS[0], REQUIRED)
    assert "keptFor" not in place.published()[dra_name(ONE)].attributes
    place.unprepare(REF)
    device = place.published()[dra_name(ONE)]
    assert device.attributes["keptFor"] == {"string": "vms/gpu"}
    assert device.taints == (Taint("launcherkit.io/kept", "", "NoSchedule"),)
    assert "keptFor" not in place.published()[dra_name(TWO)].attributes


def test_what_a_claim_only_prefers_has_no_taint(place: KeepingDesk) -> None:
    place.prepare(REF, CARDS[0], PREFERRED)
    place.unprepare(REF)
    device = place.published()[dra_name(ONE)]
    assert (device.attributes["keptFor"], device.taints) == ({"string": "vms/gpu"}, ())
    place.prepare(OTHER, CARDS[0])


def test_claims_of_a_template_name_their_vm(place: KeepingDesk) -> None:
    place.prepare(REF, CARDS[0], {**REQUIRED, "launcherkit.io/vm": "one"})
    place.unprepare(REF)
    assert place.published()[dra_name(ONE)].attributes["keptFor"] == {"string": "vms/one"}
    place.prepare(OTHER, CARDS[0], {"launcherkit.io/vm": "one"})
    assert place.records() == {}


def test_a_name_that_is_too_long_for_an_attribute_is_not_cut(place: KeepingDesk) -> None:
    place.prepare(REF, CARDS[0], {**REQUIRED, "launcherkit.io/vm": "v" * 63})
    place.unprepare(REF)
    assert "keptFor" not in place.published()[dra_name(ONE)].attributes
