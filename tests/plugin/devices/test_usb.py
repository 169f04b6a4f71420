"""USB devices: what rules make devices of the kubelet, when a guest can have one, what a container gets (K14)."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from launcherkit.model.host import NO_FACTS
from launcherkit_plugin.devices.cdi import CdiFiles, GrantedNodes
from launcherkit_plugin.devices.usb import UsbProvider
from launcherkit_plugin.host.driver_nodes import usb_nodes
from launcherkit_plugin.host.processes import HolderProcess, OpenNodes
from launcherkit_plugin.host.usb_bus import read_usb
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import UsbRule, UsbSelector
from launcherkit_plugin.model.device import NO_USAGE, Grant, Resource, Usage, with_cards
from launcherkit_plugin.model.errors import DEVICE_HELD, DEVICE_UNHEALTHY
from launcherkit_plugin.model.usb_device import UsbDevice
from tests.plugin.resources import usage
from tests.support.errors import raises_code
from tests.support.faults import failing
from tests.support.hosttree import HostTree
from tests.support.waiting import PATIENCE

KEY, READER = UsbSelector(0x0529, 0x0001), UsbSelector(0x08E6, 0x3437)
NAME = "example.com/KEY"
BUS1, BUS3 = "usb-0000:00:14.0-2", "usb-0000:05:00.0-2"
MODELS = {(each.vendor, each.product) for each in (KEY, READER)}


class Node:
    """A provider on a tree, looked at as the daemon does."""

    def __init__(self, tree: HostTree, *rules: UsbRule, cdi: CdiFiles | None = None) -> None:
        self.tree = tree
        self.open: dict[str, str] = {}
        rules = rules or (UsbRule(NAME, (KEY,)),)
        self.provider = UsbProvider(rules, self.read, self._users, WorkQueue(stall=PATIENCE), GrantedNodes(cdi))
        self.seen: Mapping[str, Resource] = {}

    def read(self) -> tuple[UsbDevice, ...]:
        root = str(self.tree.root)
        return read_usb(root, f"{root}/proc", MODELS)

    def _users(self, devices: Sequence[UsbDevice]) -> OpenNodes:
        nodes = usb_nodes(str(self.tree.root), [each.name for each in devices])
        held = {node: (HolderProcess(7, name),) for node, name in self.open.items() if node in nodes}
        return OpenNodes(held)

    def look(self, used: Usage = NO_USAGE, now: float = 0.0) -> dict[str, str | None]:
        """Why each device is Unhealthy, None for those that are well."""
        self.provider.look_at()
        found = self.provider.resources(NO_FACTS, with_cards(used), now)
        self.seen = {each.name: each for each in found}
        return {key: one.problem and one.problem.reason for each in found for key, one in each.devices.items()}

    def why(self, used: Usage = NO_USAGE) -> str:
        self.look(used)
        (problem,) = [one.problem for each in self.seen.values() for one in each.devices.values()]
        assert problem is not None
        return problem.text

    async def turn(self) -> None:
        """As the daemon's loop: read, and advertise."""
        for task in self.provider.reconcile(NO_FACTS, NO_USAGE, 0.0):
            await task
        self.seen = {each.name: each for each in self.provider.resources(NO_FACTS, NO_USAGE, 0.0)}

    def grant(self, *ids: str, name: str = NAME) -> Grant:
        return asyncio.run(self.provider.allocate(self.seen[name], ids))


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    """A host that sees all of itself, with nothing mounted, and no default route."""
    tree = HostTree(tmp_path)
    for path, text in {"1/mountinfo": "", "2/comm": "kthreadd\n", "1/net/route": "Iface\n", "swaps": "\n"}.items():
        (tmp_path / "proc" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc" / path).write_text(text)
    return tree


# Which devices there are


def test_a_device_is_known_by_its_port_and_a_container_gets_its_present_number(tree: HostTree) -> None:
    tree.function("0000:00:14.0", class_code=0x0C0330, numa=1)
    tree.usb("1-1.10", "0529:0001", number=7, manufacturer="Aladdin", product="HASP\x1b[2J", serial="S1")
    node = Node(tree)
    assert node.look() == {f"{BUS1}-1.10": None}
    device = node.seen[NAME].devices[f"{BUS1}-1.10"]
    assert (device.numa_node, device.description) == (1, "1-1.10 0529:0001 Aladdin HASP[2J")
    grant = node.grant(device.id)
    assert grant.env == {"USB_RESOURCE_EXAMPLE_COM_KEY": "1:7"}
    assert (grant.nodes, grant.permissions) == (("/dev/bus/usb/001/007",), "mrw")


def test_a_device_that_is_plugged_in_again_is_the_same_device_with_another_number(tree: HostTree) -> None:
    tree.usb("1-2", "0529:0001", number=4)
    node = Node(tree)
    node.look()
    tree.unplug("1-2")
    assert node.look(now=1) == {f"{BUS1}-2": "gone"}
    with raises_code(DEVICE_UNHEALTHY, "not plugged in any more"):
        node.grant(f"{BUS1}-2")
    tree.usb("1-2", "0529:0001", number=9)
    assert node.look(now=2) == {f"{BUS1}-2": None}
    assert node.grant(f"{BUS1}-2").env == {"USB_RESOURCE_EXAMPLE_COM_KEY": "1:9"}


def test_one_that_is_gone_stays_listed_for_a_while_and_as_long_as_a_pod_has_it(tree: HostTree) -> None:
    tree.usb("1-2", "0529:0001", number=4)
    node = Node(tree)
    node.look()
    tree.unplug("1-2")
    held = usage({NAME: {f"{BUS1}-2": "ns/pod"}})
    assert node.look(now=1) == node.look(held, now=10_000) == {f"{BUS1}-2": "gone"}
    assert node.look(now=20_000) == {}


def test_the_bus_number_is_no_part_of_the_id(tree: HostTree) -> None:
    """Controllers are numbered in the order in which they are found. Both hubs of one count their ports from 1."""
    tree.usb("1-2", "0529:0001", number=4)
    tree.usb("2-2", "0529:0001", number=3, speed="5000")
    tree.usb("3-10", "0529:0001", number=2, controller="0000:05:00.0")
    tree.usb("3-9", "0529:0001", number=3, controller="0000:05:00.0")
    wanted = [f"{BUS1}-2", "usb-0000:00:14.0-3-2", f"{BUS3}-9", f"{BUS3}-10"]
    assert list(Node(tree).look()) == wanted


def test_hubs_root_hubs_and_interfaces_are_no_devices(tree: HostTree) -> None:
    tree.usb("1-1", "0529:0001", number=2, bDeviceClass="09")
    tree.usb("1-1.1", "08e6:3437", number=3)
    tree.link("sys/bus/usb/devices/1-1.1:1.0", tree.root / "sys/devices")
    hub = UsbSelector(0x1D6B, 0x0002)
    assert Node(tree, UsbRule(NAME, (KEY,)), UsbRule("example.com/HUB", (hub,))).look() == {}


def test_identical_devices_are_told_apart_by_serial_or_are_alternatives(tree: HostTree) -> None:
    for port, serial in enumerate(["A", "B", None, None], 1):
        tree.usb(f"1-{port}", "0529:0001", number=port + 1, serial=serial)
    node = Node(tree, UsbRule("example.com/B", (KEY._replace(serial="B"),)), UsbRule(NAME, (KEY,)))
    node.look()
    assert {name: list(each.devices) for name, each in node.seen.items()} == {
        "example.com/B": [f"{BUS1}-2"],
        NAME: [f"{BUS1}-1", f"{BUS1}-3", f"{BUS1}-4"],
    }
    assert node.grant(f"{BUS1}-4", f"{BUS1}-1").env == {"USB_RESOURCE_EXAMPLE_COM_KEY": "1:5,1:2"}


def test_another_device_at_the_port_is_not_what_was_advertised(tree: HostTree) -> None:
    tree.usb("1-2", "0529:0001", number=4)
    node = Node(tree)
    node.look()
    tree.unplug("1-2")
    tree.usb("1-2", "08e6:3437", number=5)
    with raises_code(DEVICE_UNHEALTHY, "not plugged in any more"):
        node.grant(f"{BUS1}-2")


# Several that go together


@pytest.fixture
def pairs(tree: HostTree) -> Node:
    for port, model in enumerate(["0529:0001", "0529:0001", "08e6:3437", "08e6:3437", "08e6:3437"], 1):
        tree.usb(f"1-{port}", model, number=port + 1)
    return Node(tree, UsbRule(NAME, (READER, KEY)))


def test_one_device_for_each_selector_as_one_and_no_device_twice(pairs: Node) -> None:
    ids = [f"{BUS1}-3+{BUS1}-1", f"{BUS1}-4+{BUS1}-2"]
    assert pairs.look() == dict.fromkeys(ids)
    grant = pairs.grant(ids[1])
    assert grant.env == {"USB_RESOURCE_EXAMPLE_COM_KEY": "1:5,1:3"}
    assert grant.nodes == ("/dev/bus/usb/001/005", "/dev/bus/usb/001/003")


def test_what_a_pod_has_stays_together(pairs: Node) -> None:
    """Also for a daemon that has just been started: the ID says of which devices it consists."""
    held = f"{BUS1}-5+{BUS1}-1"
    assert pairs.look(usage({NAME: {held: "ns/pod"}})) == {held: None, f"{BUS1}-3+{BUS1}-2": None}


def test_what_a_pod_has_stays_together_though_a_part_alone_would_do_for_the_resource(tree: HostTree) -> None:
    for port, model in enumerate(["0529:0001", "08e6:3437"], 1):
        tree.usb(f"1-{port}", model, number=port + 1)
    node = Node(tree, UsbRule(NAME, (KEY,)), UsbRule(NAME, (KEY, READER)))
    held = f"{BUS1}-1+{BUS1}-2"
    parts = {f"{BUS1}-1": "ns/pod", held: "ns/pod"}
    assert node.look(usage({NAME: parts})) == {held: None}


def test_what_is_left_of_a_pods_devices_goes_to_nobody_else(pairs: Node) -> None:
    held = f"{BUS1}-3+{BUS1}-1"
    pairs.look()
    pairs.tree.unplug("1-3")
    assert pairs.look(usage({NAME: {held: "ns/pod"}})) == {held: "gone", f"{BUS1}-4+{BUS1}-2": None}
    assert pairs.look() == {f"{BUS1}-4+{BUS1}-2": None, f"{BUS1}-5+{BUS1}-1": None, held: "gone"}


def test_a_pod_that_had_it_under_an_earlier_name_still_has_it(pairs: Node) -> None:
    held = usage({"example.com/OLD": {f"{BUS1}-2": "ns/pod"}})
    assert pairs.look(held) == {f"{BUS1}-3+{BUS1}-1": None, f"{BUS1}-4+{BUS1}-2": "group-in-use"}


def test_cdi_files_name_each_device_and_follow_its_number(tree: HostTree, tmp_path: Path) -> None:
    """A name can't have the sign between the devices that go together. By CDI the container's user owns the nodes."""
    tree.usb("1-1", "0529:0001", number=2)
    tree.usb("1-2", "08e6:3437", number=3)
    cdi = CdiFiles(str(tmp_path / "cdi"), "usb")
    node = Node(tree, UsbRule(NAME, (READER, KEY)), cdi=cdi)
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi/launcherkit.io-vfio-usb.json").write_text("of the daemon before this one")

    def written() -> dict[str, str]:
        devices = json.loads(Path(cdi.path()).read_text())["devices"]
        return {each["name"]: each["containerEdits"]["deviceNodes"][0]["path"] for each in devices}

    async def turns() -> None:
        await node.turn()
        assert Path(cdi.path()).read_text() == "of the daemon before this one"  # which containers may need
        await node.turn()
        assert written() == {f"{BUS1}-1": "/dev/bus/usb/001/002", f"{BUS1}-2": "/dev/bus/usb/001/003"}
        tree.unplug("1-2")
        tree.usb("1-2", "08e6:3437", number=9)
        grant = await node.provider.allocate(node.seen[NAME], [f"{BUS1}-2+{BUS1}-1"])
        assert grant.cdi == (f"launcherkit.io/vfio={BUS1}-2", f"launcherkit.io/vfio={BUS1}-1")
        assert written()[f"{BUS1}-2"] == "/dev/bus/usb/001/009"
        (reading,) = node.provider.reconcile(NO_FACTS, NO_USAGE, 0.0)
        assert written()[f"{BUS1}-2"] == "/dev/bus/usb/001/009"  # though it hasn't been read yet
        await reading

    asyncio.run(turns())


def test_a_selector_with_a_serial_number_chooses_before_one_without(tree: HostTree) -> None:
    tree.usb("1-1", "0529:0001", number=2, serial="X")
    tree.usb("1-2", "0529:0001", number=3, serial="Y")
    node = Node(tree, UsbRule(NAME, (KEY, KEY._replace(serial="X"))))
    assert node.look() == {f"{BUS1}-2+{BUS1}-1": None}


def test_a_device_that_no_rule_selects_may_be_broken(tree: HostTree) -> None:
    """K9."""
    tree.usb("1-1", "0529:0001", number=2)
    tree.usb("1-2", "abcd:0001", number=3, serial="X")
    with failing(tree.root / "sys/bus/usb/devices/1-2/serial", errno.EIO):
        assert Node(tree).look() == {f"{BUS1}-1": None}


# What a guest can't have


def below(tree: HostTree, name: str, path: str) -> Path:
    """A directory below an interface of a device."""
    device = (tree.root / "sys/bus/usb/devices" / name).resolve()
    part = f"{name}:1.0"
    if not (tree.root / "sys/bus/usb/devices" / part).is_symlink():
        (device / part).mkdir()
        tree.link(f"sys/bus/usb/devices/{part}", device / part)
    directory: Path = device / part / path
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def key(tree: HostTree) -> Node:
    tree.usb("1-2", "0529:0001", number=4)
    return Node(tree)


def with_disk(node: Node) -> None:
    disk = below(node.tree, "1-2", "host0/block/sda")
    (disk / "dev").write_text("8:0\n")
    (disk / "uevent").write_text("DEVNAME=sda\n")
    (node.tree.root / "sys/class/block").mkdir(parents=True)
    node.tree.link("sys/class/block/sda", disk)


def test_a_disk_that_is_mounted_stays_with_the_host(key: Node) -> None:
    with_disk(key)
    assert key.look() == {f"{BUS1}-2": None}
    mounts = key.tree.root / "proc/1/mountinfo"
    mounts.write_text("36 35 8:0 / /backup rw,noatime master:1 - ext4 /dev/sda rw\n")
    assert key.why() == "1-2 0529:0001: sda is mounted at /backup"
    with raises_code(DEVICE_UNHEALTHY, "sda is mounted"):
        key.grant(f"{BUS1}-2")


def test_a_disk_of_which_it_is_unknown_whether_it_is_mounted_counts_as_mounted(key: Node) -> None:
    with_disk(key)
    (key.tree.root / "proc/2/comm").write_text("launcherkit-plu\n")
    assert key.why() == "1-2 0529:0001: whether sda is mounted can't be seen here"


def test_a_network_interface_stays_with_the_host_if_it_is_up_or_elsewhere(key: Node) -> None:
    net = below(key.tree, "1-2", "net")
    assert key.why() == "1-2 0529:0001: its network interface is in another network namespace"
    (net / "enx0").mkdir()
    (net / "enx0/flags").write_text("0x1002\n")
    (key.tree.root / "sys/class/net").mkdir(parents=True)
    key.tree.link("sys/class/net/enx0", net / "enx0")
    assert key.look() == {f"{BUS1}-2": None}
    (net / "enx0/flags").write_text("0x1003\n")
    assert key.why() == "1-2 0529:0001: network interface enx0 is up"


def test_a_keyboard_of_the_console_stays_with_the_host(key: Node) -> None:
    inputs = key.tree.root / "proc/bus/input/devices"
    inputs.parent.mkdir(parents=True)
    line = "S: Sysfs=/devices/pci0000:00/0000:00:14.0/usb1/{}/{}:1.0/0003:0529:0001.0001/input/input5\n"
    handlers = "H: Handlers={}event3 \n"
    inputs.write_text(line.format("1-3", "1-3") + handlers.format("sysrq kbd "))
    assert key.look() == {f"{BUS1}-2": None}
    inputs.write_text(line.format("1-2", "1-2") + handlers.format("mouse0 "))
    assert key.look() == {f"{BUS1}-2": None}
    inputs.write_text(line.format("1-2", "1-2") + handlers.format("sysrq kbd "))
    assert key.why() == "1-2 0529:0001: it is a keyboard of the host's console"


def test_one_without_a_node_or_that_is_not_authorized_is_unhealthy(key: Node) -> None:
    (key.tree.root / "dev/bus/usb/001/004").unlink()
    assert key.why() == "1-2 0529:0001: the device node /dev/bus/usb/001/004 is missing"
    key.tree.usb("1-2", "0529:0001", number=4, authorized="0")
    assert key.why() == "1-2 0529:0001 is not authorized: sys/bus/usb/devices/1-2/authorized is 0"


@pytest.mark.parametrize("node", ["/dev/bus/usb/001/004", "/dev/sda"])
def test_one_that_a_process_has_open_is_not_handed_out(key: Node, node: str) -> None:
    """Its own node, or that of a driver."""
    with_disk(key)
    key.look()
    key.open["/dev/sdb"] = "dd"
    key.grant(f"{BUS1}-2")
    key.open[node] = "pcscd"
    with raises_code(DEVICE_HELD, rf"{node} is open in pcscd \(PID 7\)"):
        key.grant(f"{BUS1}-2")
