"""Reads the USB devices of the node from sysfs, and what keeps one from guests."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from launcherkit.host.tree import DiskTree, Tree
from launcherkit.host.use import USB_DEVICES, read_usb_uses
from launcherkit.model.address import UsbAddress
from launcherkit_plugin.model.device import Problem
from launcherkit_plugin.model.usb_device import UsbDevice, usb_id

_NODES = "dev/bus/usb"
_NAME = re.compile(r"(\d+)-(\d+(?:\.\d+)*)")
"""Bus and ports (Linux: Documentation/ABI/stable/sysfs-bus-usb). Root hubs, ``usb1``, and interfaces, ``1-1:1.0``, have
other names."""
_HUB = "09"
"""The class of hubs (USB: Defined Class Codes)."""
_SUPER_SPEED = 5000
"""Mbit/s of the slowest root hub of USB 3."""


def read_usb(root: str, proc: str, models: Collection[tuple[int, int]]) -> tuple[UsbDevice, ...]:
    """The USB devices of these models, by controller and port; blocks.

    Args:
        root: the directory that contains the host's ``sys`` and perhaps its ``dev``.
        proc: where the host's proc file system is mounted.
        models: vendor and product IDs.

    Raises:
        UnreadableFile: a file of sysfs exists and can't be read, so it is unknown which devices there are (T2).
    """
    with DiskTree(root) as tree:
        present = [device for name in tree.names(USB_DEVICES) for device in _device(tree, name, models)]
    uses = read_usb_uses(root, proc, [device.name for device in present])
    devices = [
        device._replace(problem=Problem("other-use", f"{device}: {uses[device.name][0].text}"))
        if device.problem is None and uses[device.name]
        else device
        for device in present
    ]
    return tuple(sorted(devices, key=_place))


def _device(tree: Tree, name: str, models: Collection[tuple[int, int]]) -> Iterator[UsbDevice]:
    """The device of this name; nothing if it is a hub, of another model, or has just been unplugged."""
    match = _NAME.fullmatch(name)
    if match is None:
        return
    try:
        vendor, product = (int(_text(tree, f"{USB_DEVICES}/{name}/{file}"), 16) for file in ("idVendor", "idProduct"))
    except ValueError:
        return
    model = vendor, product
    if model not in models:  # nobody waits for what else is wrong with it (K9)
        return
    read = {file: _text(tree, f"{USB_DEVICES}/{name}/{file}") for file in _FILES}
    controller = _controller(tree.link(f"{USB_DEVICES}/{name}") or "", match[1])
    try:
        address = UsbAddress(int(read["busnum"]), int(read["devnum"]))
    except ValueError:
        return
    if read["bDeviceClass"] == _HUB or not controller:
        return
    generation = 3 if _number(_text(tree, f"{USB_DEVICES}/usb{match[1]}/speed")) >= _SUPER_SPEED else 2
    numa = _text(tree, f"sys/bus/pci/devices/{controller}/numa_node")
    device = UsbDevice(
        usb_id(controller, generation, match[2]),
        name,
        address,
        *model,
        read["serial"],
        f"{read['manufacturer']} {read['product']}".strip(),
        read["version"],
        _number(read["speed"]),
        int(numa) if numa.isdecimal() else None,
    )
    yield device._replace(problem=_problem(tree, device, read["authorized"]))


_FILES = (
    *("bDeviceClass", "busnum", "devnum", "serial", "manufacturer", "product"),
    *("version", "speed", "authorized"),
)


def _problem(tree: Tree, device: UsbDevice, authorized: str) -> Problem | None:
    if authorized == "0":
        return Problem("driver", f"{device} is not authorized: {USB_DEVICES}/{device.name}/authorized is 0")
    # A container may see no nodes; the kernel makes one for each device.
    if tree.exists(_NODES) and not tree.exists(device.address.node.removeprefix("/")):
        return Problem("node", f"{device}: the device node {device.address.node} is missing")
    return None


def _controller(link: str, bus: str) -> str:
    """The name of the directory above the root hub: ``0000:00:14.0``; empty if there is none."""
    parts = link.split("/")
    return parts[parts.index(f"usb{bus}") - 1] if f"usb{bus}" in parts[1:] else ""


def _place(device: UsbDevice) -> tuple[str, list[int]]:
    """The key for sorting: port 10 comes after port 9."""
    start, _, ports = device.id.rpartition("-")
    return start, [int(port) for port in ports.split(".")]


def _text(tree: Tree, path: str) -> str:
    """What a device says of itself is no text that a terminal should get as it is."""
    return "".join(filter(str.isprintable, (tree.read(path) or b"").decode(errors="replace").strip()))


def _number(text: str) -> int:
    """``480``; 1 for ``1.5``, 0 for anything that isn't a number, such as ``unknown``."""
    whole = text.partition(".")[0]
    return int(whole) if whole.isdecimal() else 0
