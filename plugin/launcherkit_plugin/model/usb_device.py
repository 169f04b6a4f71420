"""A USB device of the node."""

from __future__ import annotations

from typing import NamedTuple

from launcherkit.model.address import UsbAddress
from launcherkit_plugin.model.device import Problem


class UsbDevice(NamedTuple):
    """A USB device that is plugged in."""

    id: str
    """Where it is plugged in: see `usb_id`."""
    name: str
    """In sysfs: ``1-1.3``. The first number is that of the bus, which may be another one after a reboot."""
    address: UsbAddress
    """Bus and device number. A device that is plugged in again has another device number."""
    vendor: int
    product: int
    serial: str = ""
    """Empty if it reports none."""
    text: str = ""
    """What it calls itself: manufacturer and product."""
    version: str = ""
    """Of USB, as the device reports it: ``2.10``."""
    speed: int = 0
    """Mbit/s; 1 for the 1.5 of low speed; 0: unknown."""
    numa_node: int | None = None
    """Of its controller."""
    problem: Problem | None = None
    """Why no guest can have it."""

    @property
    def model(self) -> tuple[int, int]:
        """Vendor and product ID."""
        return self.vendor, self.product

    def __str__(self) -> str:
        return f"{self.name} {self.vendor:04x}:{self.product:04x} {self.text}".rstrip()


USB_PREFIX = "usb-"
"""The beginning of the ID of every USB device."""


def usb_id(controller: str, generation: int, ports: str) -> str:
    """The ID of a device by where it is plugged in: ``usb-0000:00:14.0-2-1.3``. It stays the same when a device is
    plugged in again, and after a reboot.

    Args:
        controller: the BDF of its controller; the name of one that isn't a PCI function.
        generation: 3 if the root hub is the controller's for USB 3, else 2. A controller may have one of each, and both
            count their ports from 1.
        ports: the numbers of the ports from the root hub on, ``1.3``.
    """
    return f"{USB_PREFIX}{controller}-{generation}-{ports}"


def controller_in(device_id: str) -> str:
    """The controller in a device's ID; empty if it is no ID of a USB device."""
    return device_id.removeprefix(USB_PREFIX).rsplit("-", 2)[0] if device_id.startswith(USB_PREFIX) else ""
