"""What the lab's suites are tried on here: a built host, and the lab's own plugin."""

from __future__ import annotations

import threading
from pathlib import Path

from launcherkit_lab.conformance.driver import Driver
from launcherkit_lab.conformance.machine import Machine
from launcherkit_lab.faulty import Plugin
from tests.plugin.resources import rebind
from tests.support.hosttree import HostTree


class BuiltMachine(Machine):
    """A host that was built: its functions change drivers as a kernel would have them."""

    def __init__(self, tree: HostTree) -> None:
        super().__init__(tree.root)
        self._tree = tree
        self.viable = True
        """What the kernel would say of a group: here it is a file, which has no ioctl."""

    def is_viable(self, group: int) -> bool:
        return self.viable

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
