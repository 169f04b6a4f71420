"""What the lab's suites are tried on here: a built host, and the lab's own plugin."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcherkit_lab.conformance.driver import Driver
from launcherkit_lab.conformance.machine import Machine
from launcherkit_lab.faulty import Plugin
from launcherkit_lab.guest.listing import Listing
from launcherkit_lab.guest.qemu import GuestRefused, NoGuest, place
from tests.plugin.resources import rebind
from tests.support.hosttree import HostTree


class BuiltMachine(Machine):
    """A host that was built: its functions change drivers as a kernel would have them."""

    def __init__(self, tree: HostTree) -> None:
        super().__init__(tree.root)
        self._tree = tree
        self.viable = True
        """What the kernel would say of a group: here it is a file, which has no ioctl."""
        self.no_guest = ""
        """Why none can be started."""
        self.strange: Listing = {}
        """What every guest finds besides, or in the place of something."""

    def is_viable(self, group: int) -> bool:
        return self.viable

    def guest(self, addresses: Sequence[str], nodes: Mapping[str, str], seconds: float) -> Listing:
        """A double of the guest; it refuses what QEMU and the kernel refuse, in their words."""
        if self.no_guest:
            raise NoGuest(self.no_guest)
        container = "/dev/vfio/vfio"
        # A driver that was told where the built host is names its nodes below it.
        nodes = {path: host.removeprefix(str(self.root)) for path, host in nodes.items()}
        found: Listing = {}
        for host in nodes.values():
            if not (self.root / host.lstrip("/")).exists():
                raise GuestRefused(f"a container can't have {host}: No such file or directory")
        missing = "No such file or directory"
        for address in addresses:
            group = self.group(address) if self.exists(address) else None
            own = f"/dev/vfio/{group}"
            if group is None:
                raise GuestRefused(f"vfio /sys/bus/pci/devices/{address}: no such host device: {missing}")
            if own not in nodes:
                raise GuestRefused(f"vfio {address}: failed to open {own}: {missing}")
            if nodes.get(container) != container:
                raise GuestRefused(f"vfio {address}: failed to setup container: failed to open {container}: {missing}")
            if not self.viable or self.unfit(address):
                raise GuestRefused(f"vfio {address}: group {group} is not viable")
            if nodes[own] != own:
                raise GuestRefused(f"vfio {address}: error getting device from group {group}: No such device")
            if address in addresses[: len(found)]:
                raise GuestRefused(f"vfio {address}: device is already attached")
            vendor, _, device = self.model(address).partition(":")
            found[place(len(found))] = int(vendor, 16), int(device, 16)
        return found | self.strange

    def unbind(self, address: str) -> None:
        rebind(self._tree, address, None)

    def bind(self, address: str, driver: str) -> None:
        rebind(self._tree, address, driver)


class PluginInThread(Driver):
    """The lab's own device plugin, which lives in a thread."""

    def __init__(self, kind: type[Plugin], resource: str, host: Path, folder: Path, log: Path) -> None:
        super().__init__([], log)
        self._kind = kind
        self._given = resource, host, folder / "device-plugins"
        self._plugin = kind(*self._given)
        self._thread = threading.Thread()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        if not self.running:
            self._plugin = self._kind(*self._given)
            self._thread = threading.Thread(target=self._plugin.run)
            self._thread.start()

    def kill(self) -> None:
        if self.running:
            self._plugin.ending.set()
            self._thread.join()
            self._plugin.socket.touch()  # which gRPC had no time to remove

    def end(self, seconds: float) -> int | None:
        self._plugin.end()
        self._thread.join(min(seconds, 1))  # which is enough here
        code = None if self.running else 0
        self.kill()
        return code
