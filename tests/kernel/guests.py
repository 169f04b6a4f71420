"""Guests of the machine: 2 KB that list their PCI bus on the serial port, as an operating system would find it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from launcherkit.cli.main import run
from tests.kernel.rehearsed import promised, rehearsed, slots_of
from tests.kernel.sysfs import until
from tests.libvirt.pod import Pod

Listing: TypeAlias = dict[str, tuple[int, int]]
"""Guest address to vendor and device ID."""

_LINE = re.compile(r"^guest: pci (\S+) ([0-9a-f]{4}):([0-9a-f]{4}) ", re.MULTILINE)


class Guests:
    """Defines guests by launcherkit, at the libvirt of a pod."""

    def __init__(self, pod: Pod, kernel: Path, folder: Path) -> None:
        self.pod = pod
        self.kernel = kernel
        self._folder = folder

    def document(self, name: str, does: str, *, head: str = "", devices: str = "") -> Path:
        """The domain of a guest without devices, or with these hostdevs; what `does` may be is in guest.c."""
        path = self._folder / f"{name}.xml"
        path.write_text(
            f"<domain type='qemu'><name>{name}</name>{head}<memory unit='MiB'>64</memory><vcpu>1</vcpu>"
            f"<os><type arch='x86_64' machine='q35'>hvm</type><kernel>{self.kernel}</kernel>"
            f"<cmdline>{does}</cmdline></os><features><acpi/></features><on_poweroff>destroy</on_poweroff>"
            f"<devices><controller type='usb' model='qemu-xhci'/><memballoon model='none'/>{devices}"
            f"<serial type='file'><source path='{self.serial(name)}'/></serial></devices></domain>"
        )
        return path

    def serial(self, name: str) -> Path:
        return self._folder / f"{name}.serial"

    def translated(self, env: Mapping[str, str]) -> bytes:
        """What libvirt would be given for a guest with these devices: it mends some of what a document lacks."""
        output = self._folder / "translated.xml"
        assert run(["translate", "--domain", str(self.document("vm", "off")), "--output", str(output)], env) == 0
        return output.read_bytes()

    def start(
        self,
        env: Mapping[str, str],
        *flags: str,
        name: str = "vm",
        does: str = "pci off",
        head: str = "",
        devices: str = "",
    ) -> None:
        """Translate, define and start, by the one command that does it; see `document`.

        Raises:
            LauncherkitError: as the command does.
        """
        domain = str(self.document(name, does, head=head, devices=devices))
        self.serial(name).unlink(missing_ok=True)
        assert run(["define", "--domain", domain, "--connect", self.pod.uri, "--start", *flags], env) == 0

    def listing(self, env: Mapping[str, str], *flags: str, name: str = "vm") -> Listing:
        """What a guest with these devices finds on its PCI bus."""
        self.start(env, *flags, name=name)
        return self.listed(name)

    def listing_as_rehearsed(self, env: Mapping[str, str]) -> Listing:
        """The same, after a rehearsal on a snapshot of this machine, which has promised that and nothing else."""
        rehearsal = rehearsed(env, self.document("vm", "pci off"), self._folder)
        assert rehearsal.starts, rehearsal.errors
        found, wanted = self.listing(env), promised(rehearsal)
        slots = slots_of(found)
        assert wanted
        assert {shape: slots[shape] for shape in wanted} == wanted
        return found

    def listed(self, name: str = "vm") -> Listing:
        """What a guest that was started has found; it has ended by then."""
        until(lambda: name not in self.pod.libvirt("list", "--name").split(), f"the end of {name}")
        return read_listing(self.serial(name).read_text())

    def clear(self) -> None:
        """No guest stays."""
        for name in self.pod.libvirt("list", "--name").split():
            self.pod.libvirt("destroy", name)
        for name in self.pod.libvirt("list", "--all", "--name").split():
            self.pod.libvirt("undefine", name)


def read_listing(text: str) -> Listing:
    """The PCI bus of a guest, from what it said on the serial port."""
    assert "guest: hello" in text, f"the guest said: {text!r}"
    return {address: (int(vendor, 16), int(device, 16)) for address, vendor, device in _LINE.findall(text)}


def slots_with(listing: Listing, *models: tuple[int, int]) -> list[str]:
    """The guest's slots whose functions, from 0 on, are of these models and no others: ``0000:01:00``."""
    slots = sorted({address.partition(".")[0] for address in listing})
    wanted = dict(enumerate(models))
    return [
        slot
        for slot in slots
        if {int(address[-1]): model for address, model in listing.items() if address.startswith(slot + ".")} == wanted
    ]
