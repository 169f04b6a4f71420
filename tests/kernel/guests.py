"""Guests of the machine: 3 KB that list their PCI bus on the serial port, as an operating system would find it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from launcherkit.cli.main import run
from launcherkit.doctor.guest_view import check_guest
from launcherkit.domain.reader import read_facts
from launcherkit.domain.xml import read_document
from launcherkit.host.source import Host
from launcherkit.model.host import HostFacts
from launcherkit.rehearse.rehearsal import NodeOutcome
from launcherkit_lab.guest.listing import Listing, read_listing
from launcherkit_lab.sysfs import until
from tests.kernel.bus import as_sysfs
from tests.kernel.rehearsed import agreeing, check_found, rehearsed
from tests.libvirt.pod import Pod


class Guests:
    """Defines guests by launcherkit, at the libvirt of a pod.

    Each is verified: what it says of its devices is held against its domain and the host, as `launcherkit verify` does.
    """

    def __init__(self, pod: Pod, kernel: Path, folder: Path) -> None:
        self.pod = pod
        self.kernel = kernel
        self._folder = folder
        self._rehearsals: dict[str, NodeOutcome] = {}
        self._unverified: dict[str, HostFacts] = {}
        """The host of each guest that was started, as it was then."""

    def document(self, name: str, does: str, *, head: str = "", devices: str = "") -> Path:
        """The domain of a guest without devices, or with these hostdevs; what `does` may be is in guest.c."""
        path = self._folder / f"{name}.xml"
        path.write_text(
            f"<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><name>{name}</name>{head}"
            "<memory unit='MiB'>64</memory><vcpu>1</vcpu>"
            f"<os><type arch='x86_64' machine='q35'>hvm</type><kernel>{self.kernel}</kernel>"
            f"<cmdline>pci {does}</cmdline></os><features><acpi/></features><on_poweroff>destroy</on_poweroff>"
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
        does: str = "off",
        head: str = "",
        devices: str = "",
        nodes: str = "auto",
        unrehearsed: str = "",
        host: Host | None = None,
    ) -> None:
        """Translate, define and start, by the one command that does it; see `document`.

        It is rehearsed first, on a snapshot of this machine, and comes to what the rehearsal says.

        Args:
            nodes: which device nodes the device plugin of the rehearsal hands out.
            unrehearsed: why a rehearsal can't know what is going to happen.
            host: what the machine is taken for, where a flag says so to the command.

        Raises:
            LauncherkitError: as the command does.
        """
        domain = self.document(name, does, head=head, devices=devices)
        self.serial(name).unlink(missing_ok=True)
        command = ["define", "--domain", str(domain), "--connect", self.pod.uri, "--start", *flags]
        self._rehearsals.pop(name, None)
        facts = (host or Host.from_sysfs("/")).scan()
        if unrehearsed:
            assert run(command, env) == 0
        else:
            rehearsal = self.rehearsed(env, domain, nodes)
            with agreeing(rehearsal):
                assert run(command, env) == 0
            self._rehearsals[name] = rehearsal
        self._unverified[name] = facts

    def rehearsed(self, env: Mapping[str, str], domain: Path, nodes: str = "auto") -> NodeOutcome:
        return rehearsed(env, domain.read_bytes(), Host.from_sysfs("/"), self._folder, nodes=nodes)

    def listing(self, env: Mapping[str, str], *flags: str, name: str = "vm", unrehearsed: str = "") -> Listing:
        """What a guest with these devices finds on its PCI bus."""
        self.start(env, *flags, name=name, unrehearsed=unrehearsed)
        return self.listed(name)

    def listed(self, name: str = "vm") -> Listing:
        """What a guest that was started has found, which is what was promised; it has ended by then."""
        until(lambda: not self._runs(name), f"the end of {name}")
        self._verify(name)
        listing = read_listing(self.serial(name).read_text())
        if name in self._rehearsals:
            check_found(self._rehearsals[name], listing)
        return listing

    def _verify(self, name: str) -> None:
        """Nothing that a guest says of its devices is otherwise than the domain and the host say."""
        facts = self._unverified.pop(name)
        domain = read_facts(read_document(self.pod.libvirt("dumpxml", name).encode()).root, name)
        found = check_guest(domain, facts, as_sysfs(self.serial(name).read_text()))
        failed = [finding for finding in found if finding.status == "fail"]
        assert not failed, failed

    def _wait_for_listing(self, name: str) -> None:
        until(lambda: self._has_listed(name) or not self._runs(name), f"what {name} says of its devices")

    def _has_listed(self, name: str) -> bool:
        return "guest: listed" in self.serial(name).read_text()

    def _runs(self, name: str) -> bool:
        return name in self.pod.libvirt("list", "--name").split()

    def clear(self) -> None:
        """No guest stays; each is verified that a test hasn't taken away itself."""
        for name in self._unverified.keys() & set(self.pod.libvirt("list", "--all", "--name").split()):
            self._wait_for_listing(name)
            if self._has_listed(name):
                self._verify(name)
        for name in self.pod.libvirt("list", "--name").split():
            self.pod.libvirt("destroy", name)
        for name in self.pod.libvirt("list", "--all", "--name").split():
            self.pod.libvirt("undefine", name)


def slots_with(listing: Listing, *models: tuple[int, int]) -> list[str]:
    """The guest's slots whose functions, from 0 on, are of these models and no others: ``0000:01:00``."""
    slots = sorted({address.partition(".")[0] for address in listing})
    wanted = dict(enumerate(models))
    return [
        slot
        for slot in slots
        if {int(address[-1]): model for address, model in listing.items() if address.startswith(slot + ".")} == wanted
    ]
