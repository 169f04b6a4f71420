"""USB devices on a real kernel: from the device plugin to a guest that has it, and unplugged in between (K14)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from launcherkit_lab import sysfs
from launcherkit_lab.kubelet import Holding, Kubelet, NotAdmitted, running_kubelet
from tests.kernel.guests import Guests
from tests.kubelet.plugin import Plugin

pytestmark = pytest.mark.kernel

NAME = "example.com/TABLET"
VARIABLE = "USB_RESOURCE_EXAMPLE_COM_TABLET"
MODEL = {"vendor": "0627", "product": "0001"}
DEVICES = Path("/sys/bus/usb/devices")


@pytest.fixture
def kubelet(tablet: str, tmp_path: Path) -> Iterator[Kubelet]:
    """The kubelet, and the plugin for the tablet, under the seccomp profile that is shipped."""
    assert tablet
    with tempfile.TemporaryDirectory(prefix="k-") as folder, running_kubelet(Path(folder), 120.0) as kubelet:
        config = {"usb": [{"name": NAME, "selectors": [MODEL]}], "rescanSeconds": 2}
        plugin = Plugin(config, tmp_path, "--kubelet-dir", folder, seccomp=True)
        plugin.start()
        try:
            yield kubelet
        finally:
            plugin.end()


def tablet_name() -> str:
    """In sysfs: ``1-1``."""
    (path,) = (path.parent for path in DEVICES.glob("*/idVendor") if path.read_text().strip() == MODEL["vendor"])
    return path.name


def number() -> str:
    """Bus and device number, as the kernel has them now."""
    return ":".join((DEVICES / tablet_name() / file).read_text().strip() for file in ("busnum", "devnum"))


def open_nodes() -> set[str]:
    """The nodes of USB devices that any process has open."""
    links = set()
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            links.add(os.readlink(path))
    return {link for link in links if link.startswith("/dev/bus/usb/")}


def run_guest(guests: Guests, holding: Holding) -> None:
    """A guest with what the kubelet was answered has the tablet, by the node that the container got and no other."""
    assert dict(holding.answer.envs) == {VARIABLE: number()}
    bus, device = map(int, number().split(":"))
    (node,) = (device.host_path for device in holding.answer.devices)
    assert node == f"/dev/bus/usb/{bus:03d}/{device:03d}"
    guests.start(dict(holding.answer.envs), does="wait", unrehearsed="a snapshot has no USB devices")
    assert "QEMU USB Tablet" in guests.pod.libvirt("qemu-monitor-command", "vm", "--hmp", "info usb")
    assert open_nodes() == {node}


def test_a_guest_gets_what_was_allocated_and_gets_it_again_after_it_was_unplugged(
    kubelet: Kubelet, guests: Guests
) -> None:
    name, (hub, port) = tablet_name(), tablet_name().split("-")
    controller = (DEVICES / f"usb{hub}").resolve().parent.name
    key = f"usb-{controller}-2-{port}"
    kubelet.wait_for(NAME, {key: True})
    (holding,) = kubelet.admit("vm", [("compute", NAME, 1)])
    run_guest(guests, holding)
    with pytest.raises(NotAdmitted):  # a process has it open, whatever the kubelet knows
        kubelet.call_allocate(NAME, [key])
    guests.clear()
    kubelet.delete("vm")

    before = number()
    switch = DEVICES / f"usb{hub}" / f"{hub}-0:1.0" / f"usb{hub}-port{port}" / "disable"
    switch.write_text("1")  # as if it were unplugged (Linux: Documentation/ABI/testing/sysfs-bus-usb)
    kubelet.wait_for(NAME, {key: False})
    switch.write_text("0")
    sysfs.until((DEVICES / name / "devnum").exists, "the tablet back")
    kubelet.wait_for(NAME, {key: True})
    assert number() != before
    (holding,) = kubelet.admit("next", [("compute", NAME, 1)])
    run_guest(guests, holding)


def test_one_that_is_not_authorized_is_not_handed_out(kubelet: Kubelet) -> None:
    kubelet.wait(lambda: True in kubelet.devices(NAME).values(), "the tablet")
    (key,) = kubelet.devices(NAME)
    authorized = DEVICES / tablet_name() / "authorized"
    authorized.write_text("0")
    kubelet.wait_for(NAME, {key: False})
    authorized.write_text("1")
    kubelet.wait_for(NAME, {key: True})
