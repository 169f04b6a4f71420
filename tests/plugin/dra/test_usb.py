"""USB devices by DRA: what is published of one, and what a claim gets (K14, D2, D9)."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from launcherkit.model.host import NO_FACTS
from launcherkit_plugin.allocation.allocator import Offer
from launcherkit_plugin.dra.device_state import DeviceState, conditions
from launcherkit_plugin.dra.inventory import DraDevice, inventory
from launcherkit_plugin.dra.labels import device_id
from launcherkit_plugin.dra.request_parts import ListedDevice
from launcherkit_plugin.model.config import UsbRule
from launcherkit_plugin.model.device import Problem
from launcherkit_plugin.model.errors import DEVICE_UNHEALTHY
from tests.plugin.devices.test_usb import BUS1, KEY, NAME, Node
from tests.plugin.dra.desk import DRIVER, REF, ClaimDesk
from tests.support.errors import raises_code

DEVICE = "usb-0000-00-14-0-2-1-3"


class Desk(ClaimDesk):
    """A licence key at port 3 of a hub."""

    def look(self) -> None:
        if not (self.tree.root / "sys/bus/usb").exists():
            self.tree.usb("1-1.3", "0529:0001", number=4, product="HASP", serial="S1")
            self.usb = Node(self.tree, UsbRule(NAME, (KEY,), dra=True))
            (self.tree.root / "proc/1").mkdir(parents=True)
        self.usb.look()
        self.allocator.observe(self.usage, time.monotonic())
        offers = {NAME: Offer(self.usb.seen[NAME], self.usb.provider)}
        resource = self.allocator.advertise(offers, NO_FACTS)[NAME].resource
        self.published: dict[str, DraDevice] = {each.name: each for each in inventory([resource], NO_FACTS)}
        listed = {name: ListedDevice(each, resource.devices[each.id]) for name, each in self.published.items()}
        self.preparer.listed(listed)

    def allocate_key(self) -> None:
        self.allocate(REF)
        (result,) = self.claims[str(REF)]["status"]["allocation"]["devices"]["results"]
        result["device"] = DEVICE


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_device_is_published_by_its_port_with_what_it_says_of_itself(desk: Desk) -> None:
    device = desk.published[DEVICE]
    assert (device.id, device_id(DEVICE), device.taints) == (f"{BUS1}-1.3", f"{BUS1}-1.3", ())
    assert device.attributes == {
        "type": {"string": "usb"},
        "resource": {"string": NAME},
        "vendorID": {"string": "0529"},
        "productID": {"string": "0001"},
        "serial": {"string": "S1"},
        "model": {"string": "HASP"},
        "port": {"string": "1-1.3"},
        "usbVersion": {"string": "2.00"},
        "speed": {"int": 480},
    }
    before = desk.published
    desk.tree.unplug("1-1.3")
    desk.look()
    assert [taint.key for taint in desk.published[DEVICE].taints] == ["launcherkit.io/gone"]
    assert desk.published[DEVICE].attributes == before[DEVICE].attributes  # CEL refers to them


def test_a_claim_has_the_node_the_variable_and_the_address_as_they_are_when_it_is_prepared(desk: Desk) -> None:
    desk.tree.unplug("1-1.3")
    desk.tree.usb("1-1.3", "0529:0001", number=9, product="HASP", serial="S1")
    desk.allocate_key()
    (prepared,) = desk.prepare()
    assert (prepared.device, prepared.id) == (DEVICE, f"{BUS1}-1.3")
    (device,) = desk.cdi(f"{DRIVER}_u-1.json")["devices"]
    assert device["containerEdits"]["env"] == ["USB_RESOURCE_EXAMPLE_COM_KEY=1:9"]
    assert [node["path"] for node in device["containerEdits"]["deviceNodes"]] == ["/dev/bus/usb/001/009"]
    text = Path(desk.places.metadata_file(REF, "gpu")).read_text().splitlines()[0]
    (listed,) = json.loads(text)["requests"][0]["devices"]
    assert listed["attributes"]["usbAddress"] == {"string": "1:9"}
    assert desk.held() == {f"{BUS1}-1.3": f"ResourceClaim {REF}"}
    desk.unprepare()
    assert (desk.held(), desk.files()) == ({}, [])


def test_one_that_is_gone_is_not_prepared(desk: Desk) -> None:
    desk.allocate_key()
    desk.tree.unplug("1-1.3")
    with raises_code(DEVICE_UNHEALTHY, "not plugged in any more"):
        desk.prepare()
    assert (desk.held(), desk.files()) == ({}, [])


def test_the_status_of_a_claim_says_whether_it_is_there() -> None:
    state = DeviceState(DEVICE, Problem("gone", "it is gone"), usb=True)
    (condition,) = conditions(state, "now")
    assert (condition["type"], condition["status"], condition["reason"]) == ("Available", "False", "Gone")
