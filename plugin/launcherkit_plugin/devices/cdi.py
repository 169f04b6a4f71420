"""CDI: the device nodes of each device in a file, for container runtimes that put them in by name.

The names are `Grant.cdi`. The file is replaced by rename, always whole, and has what can be had at that moment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from launcherkit.atomic import write_atomically
from launcherkit.errors import UnwritableFile
from launcherkit_plugin.model.device import Grant, Resource
from launcherkit_plugin.model.errors import CdiNotWritten

KIND = "launcherkit.io/vfio"
VERSION = "0.5.0"
"""Of the specification: the oldest that lets a name begin with a digit and has a path on the host. A runtime refuses a
file that is newer than itself."""


def cdi_name(device_id: str) -> str:
    """The name by which a runtime is asked for a device: ``launcherkit.io/vfio=0000:e1:00.0``."""
    return f"{KIND}={device_id}"


def cdi_spec(nodes: Mapping[str, Sequence[str]], dev_root: str = "") -> bytes:
    """The file.

    Args:
        nodes: the paths of the nodes in the container, by device ID. At least one device; CDI has no empty files.
        dev_root: what stands before the paths on the host.
    """
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [_node(path, dev_root) for path in dict.fromkeys(paths)]}}
        for name, paths in sorted(nodes.items())
    ]
    return (json.dumps({"cdiVersion": VERSION, "kind": KIND, "devices": devices}, indent=1) + "\n").encode()


def _node(path: str, dev_root: str) -> dict[str, str]:
    where = {"hostPath": dev_root.rstrip("/") + path} if dev_root else {}
    return {"path": path, **where, "permissions": "rwm"}


class CdiFile:
    """The file in the runtimes' folder. What it says is kept; nothing is written that is written already.

    Args:
        folder: ``/var/run/cdi``, which runtimes look into for devices that come and go.
        part: whose devices these are: a kind may have several files, and each provider has its own.
        dev_root: as `cdi_spec` has it.
    """

    def __init__(self, folder: str, part: str, dev_root: str = "") -> None:
        self.path = os.path.join(folder, f"{KIND.replace('/', '-')}-{part}.json")
        self._dev_root = dev_root
        self._nodes: dict[str, tuple[str, ...]] = {}
        self._written: dict[str, tuple[str, ...]] | None = None

    def replace(self, nodes: Mapping[str, Sequence[str]]) -> None:
        """All devices from now on; those that are not among them are gone.

        Raises:
            CdiNotWritten: names the file and the reason; it is as it was.
        """
        self._nodes = {name: tuple(paths) for name, paths in nodes.items()}
        self._write()

    def add(self, nodes: Mapping[str, Sequence[str]]) -> None:
        """Devices as they have just been found to be, before a runtime is made to look for them.

        Raises:
            CdiNotWritten: names the file and the reason; it is as it was.
        """
        self._nodes |= {name: tuple(paths) for name, paths in nodes.items()}
        self._write()

    def remove(self) -> None:
        """No devices, no file. Containers that run keep their nodes."""
        self.replace({})

    def _write(self) -> None:
        nodes = {name: paths for name, paths in self._nodes.items() if paths}
        if nodes == self._written and os.path.exists(self.path) == bool(nodes):
            return
        if nodes:
            with suppress(OSError):  # the write below tells the reason
                os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
            try:
                write_atomically(self.path, cdi_spec(nodes, self._dev_root))
            except UnwritableFile as problem:
                raise _not_written(problem.message) from problem
        else:
            try:
                os.unlink(self.path)
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as problem:
                raise _not_written(f"{self.path}: {problem.strerror}") from problem
        self._written = nodes


def _not_written(why: str) -> CdiNotWritten:
    return CdiNotWritten(
        f"the CDI file can't be written: {why}",
        "Make room on that file system, or mount the folder writable (component `cdi`). It is tried again.",
    )


class GrantedNodes:
    """Device nodes for containers, and for their runtime where CDI is used.

    Args:
        cdi: where they are written down for the runtime.
        cdi_only: containers get them in no other way.
    """

    def __init__(self, cdi: CdiFile | None = None, *, cdi_only: bool = False) -> None:
        self._cdi = cdi
        self._only = cdi_only
        self._written: dict[str, tuple[str, ...]] = {}

    def grant(self, resource: Resource, nodes: Mapping[str, Sequence[str]]) -> Grant:
        """The answer for devices with these nodes, by ID in the order of the request.

        Raises:
            UnwritableFile: they can't be written down.
        """
        names: tuple[str, ...] = ()
        if self._cdi is not None:
            self._written |= {device: tuple(of_one) for device, of_one in nodes.items()}
            self._cdi.add(nodes)
            names = tuple(map(cdi_name, nodes))
        unique = tuple(dict.fromkeys(node for of_one in nodes.values() for node in of_one))
        return Grant({resource.variable: ",".join(nodes)}, () if names and self._only else unique, names)

    def refresh(self, there: Mapping[str, Sequence[str]], held: Collection[str]) -> None:
        """What is written down for the runtime: what there is, and what somebody has: it may be newer than the look.

        Args:
            there: the nodes of all devices that were there, by ID.
            held: the IDs of those that somebody has.

        Raises:
            UnwritableFile: they can't be written down.
        """
        if self._cdi is not None:
            self._written = {device: of_one for device, of_one in self._written.items() if device in held}
            self._written |= {device: tuple(of_one) for device, of_one in there.items()}
            self._cdi.replace(self._written)
