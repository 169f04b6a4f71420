"""Claims with admin access see how devices are, and have nothing of them (D13)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from launcherkit.errors import UNWRITABLE_FILE
from launcherkit_plugin.model.device import ClaimRef
from launcherkit_plugin.model.errors import CLAIM_FILES_FAILED, UNKNOWN_DEVICE
from tests.plugin.dra.desk import CARDS, DRIVER, REF, ClaimDesk, Killed, dra_name
from tests.plugin.resources import rebind
from tests.support.errors import raises_code

ONE, TWO, THREE = (f"{slot}.0" for slot in CARDS)
MONITOR = ClaimRef("monitoring", "all", "u-7")
VM = "ResourceClaim vms/gpu"
FILES = [
    f"cdi/{DRIVER}_u-7.json",
    f"kubelet/plugins/{DRIVER}/admin-access/u-7/see/devices.json",
    f"kubelet/plugins/{DRIVER}/claims/u-7.json",
]


class Desk(ClaimDesk):
    """A desk with a claim for a card, and one that looks at all three."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.allocate()
        self.look_at(see=[ONE, TWO, THREE])

    def look_at(self, ref: ClaimRef = MONITOR, **requests: list[str]) -> None:
        """Let the API server have a claim of which each request but ``has`` has admin access."""
        self.allocate(ref, results=requests)
        for result in self.claims[str(ref)]["status"]["allocation"]["devices"]["results"]:
            if result["request"] != "has":
                result["adminAccess"] = True

    def files(self) -> list[str]:
        admin = Path(self.places.data, "admin-access")
        return sorted([*super().files(), *(str(path.relative_to(self.folder)) for path in admin.rglob("*.json"))])

    def said(self, request: str = "see") -> dict[str, dict[str, Any]]:
        """What the file of a request says, by device ID."""
        document = json.loads(Path(self.places.admin_file(MONITOR.uid, request)).read_text())
        assert (document["kind"], document["request"]) == ("DeviceStates", request)
        assert document["metadata"] == MONITOR._asdict()
        return {device["id"]: device for device in document["devices"]}

    def turn(self) -> None:
        """What the daemon's loop does."""
        self.look()
        asyncio.run(self.preparer.tell_states())


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_container_gets_a_folder_and_nothing_by_which_a_guest_could_have_the_card(desk: Desk) -> None:
    devices = desk.prepare(MONITOR)
    assert {device.cdi for device in devices} == {(f"{DRIVER}/claim=u-7:see",)}
    (device,) = desk.cdi(f"{DRIVER}_u-7.json")["devices"]
    assert device["containerEdits"] == {
        "mounts": [
            {
                "hostPath": str(desk.folder / FILES[1].rpartition("/")[0]),
                "containerPath": f"/var/run/{DRIVER}/admin-access/all/see",
                "options": ["ro", "bind"],
            }
        ]
    }
    assert desk.files() == FILES, "no metadata, of which KubeVirt makes hostdevs"
    assert desk.held() == {}


def test_the_file_says_what_each_card_is_how_it_is_and_who_has_it(desk: Desk) -> None:
    desk.prepare()
    desk.prepare(MONITOR)
    assert desk.said()[ONE] == {
        "driver": DRIVER,
        "pool": "node-1",
        "name": dra_name(ONE),
        "resource": "nvidia.com/GPU",
        "id": ONE,
        "attributes": {"model": {"string": "A"}, "functions": {"int": 2}},
        "healthy": True,
        "reason": "",
        "message": "",
        "holder": VM,
    }
    assert desk.said()[TWO]["holder"] == ""


def test_it_follows_the_cards(desk: Desk) -> None:
    desk.prepare(MONITOR)
    written: list[str] = []
    desk.step = written.append
    desk.turn()
    desk.turn()
    assert len(written) == 1, "as a process doesn't know what the one before it has written, and no more"
    desk.prepare()
    rebind(desk.tree, TWO, "nouveau")
    desk.turn()
    assert desk.said()[ONE]["holder"] == VM
    desk.preparer.listed({})
    asyncio.run(desk.preparer.tell_states())
    assert {(one["healthy"], one["reason"]) for one in desk.said().values()} == {(False, "gone")}


def test_a_file_of_a_claim_that_is_being_unprepared_does_not_come_back(desk: Desk) -> None:
    desk.prepare(MONITOR)
    Path(desk.places.admin_file("u-7", "see")).unlink()
    desk.turn()
    assert FILES[1] not in desk.files()
    assert desk.prepare(MONITOR)
    assert desk.files() == FILES, "prepared again it is whole"


@pytest.mark.parametrize("first", [MONITOR, REF])
def test_neither_is_in_the_way_of_the_other(desk: Desk, first: ClaimRef) -> None:
    for ref in (first, REF if first == MONITOR else MONITOR):
        desk.prepare(ref)
    assert desk.held() == {ONE: VM}
    desk.unprepare(MONITOR)
    assert desk.held() == {ONE: VM}
    desk.prepare(MONITOR)
    desk.unprepare()
    assert desk.held() == {}
    assert desk.files() == FILES


def test_a_claim_may_have_a_card_and_look_at_all_of_them(desk: Desk) -> None:
    desk.look_at(REF, has=[ONE], see=[ONE, TWO], also=[ONE])
    assert [(device.id, device.admin) for device in desk.prepare()] == [
        (ONE, False),
        (ONE, True),
        (TWO, True),
        (ONE, True),
    ]
    names = [device["name"] for device in desk.cdi(f"{DRIVER}_u-1.json")["devices"]]
    assert names == ["u-1:see", "u-1:also", f"u-1_{dra_name(ONE)}"]
    assert desk.held() == {ONE: VM}
    desk.restart()
    assert desk.held() == {ONE: VM}
    desk.unprepare()
    assert (desk.held(), desk.files()) == ({}, [])


def test_a_card_that_is_unhealthy_or_in_another_use_can_be_looked_at(desk: Desk) -> None:
    rebind(desk.tree, ONE, "nouveau")
    desk.look()
    assert len(desk.prepare(MONITOR)) == 3


def test_one_that_is_not_published_can_not(desk: Desk) -> None:
    desk.look_at(see=["0000:0f:00.0"])
    with raises_code(UNKNOWN_DEVICE, match="there is no device 'pci-0000-0f-00-0'"):
        desk.prepare(MONITOR)


@pytest.mark.parametrize("number", range(5))
def test_killed_anywhere_a_prepare_is_undone_or_repeated_and_an_unprepare_completed(desk: Desk, number: int) -> None:
    for call, complete, again in ((desk.prepare, FILES, desk.prepare), (desk.unprepare, [], desk.unprepare)):
        left = iter(range(number, -1, -1))

        def step(_: str, left: Any = left) -> None:
            if next(left, 1) == 0:
                raise Killed

        desk.step = step
        try:
            call(MONITOR)
        except Killed:
            desk.step = str
            desk.restart()
            assert desk.held() == {}
            assert desk.files() in ([], FILES, FILES[2:], FILES[1:])
        desk.step = str
        again(MONITOR)
        assert desk.files() == complete


def test_without_its_record_nothing_of_it_stays_and_a_broken_record_keeps_nobody_from_a_card(desk: Desk) -> None:
    desk.prepare(MONITOR)
    Path(desk.places.records, "u-7.json").write_text("{")
    desk.restart()
    assert desk.held() == {}
    desk.prepare()
    desk.prepare(MONITOR)
    Path(desk.places.records, "u-7.json").unlink()
    desk.restart()
    assert not any("u-7" in name for name in desk.files())


def test_where_it_is_unknown_what_another_claim_has_a_card_can_be_looked_at(desk: Desk) -> None:
    desk.prepare()
    Path(desk.places.records, "u-1.json").write_text("{")
    Path(desk.places.of_claim("u-1")).write_text("{")
    Path(desk.places.metadata_file(REF, "gpu")).unlink()
    desk.restart()
    assert desk.prepare(MONITOR)
    assert not desk.allocator.usage().known


def test_a_card_that_a_claim_of_before_the_boot_had_may_be_looked_at_and_stays_that_claims(desk: Desk) -> None:
    desk.prepare()
    desk.boot = "boot-2"
    desk.restart()
    desk.prepare(MONITOR)
    assert desk.held() == {ONE: VM}


def test_a_state_that_can_not_be_written_is_an_error_and_written_next_time(desk: Desk) -> None:
    desk.prepare(MONITOR)

    def full(path: str) -> None:
        raise UNWRITABLE_FILE(f"{path}: no space", "Make room.", file=path)

    desk.step = full
    with raises_code(CLAIM_FILES_FAILED, match="no space"):
        desk.turn()
    desk.step = str
    desk.prepare()
    desk.turn()
    assert desk.said()[ONE]["holder"] == VM
