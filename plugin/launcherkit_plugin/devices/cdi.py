"""CDI: the device nodes of each device in a file, for container runtimes that put them in by name.

The names are `Grant.cdi`. The file is replaced by rename, always whole, and has what can be had at that moment.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from launcherkit.atomic import write_atomically
from launcherkit.errors import UnwritableFile
from launcherkit_plugin.model.device import Grant
from launcherkit_plugin.model.errors import CdiNotWritten

KIND = "launcherkit.io/vfio"
VERSION = "0.5.0"
"""Of the specification: the oldest that lets a name begin with a digit and has a path on the host. A runtime refuses a
file that is newer than itself."""


def cdi_name(device_id: str) -> str:
    """The name by which a runtime is asked for a device: ``launcherkit.io/vfio=0000:e1:00.0``."""
    return f"{KIND}={device_id}"


def cdi_annotation(names: Sequence[str]) -> dict[str, str]:
    """The annotation of a container by which its runtime is asked for devices where the kubelet can't name them.

    Args:
        names: as `cdi_name` gives them; at least one. No other container has the first of them, nor another resource of
            this one, so the key is no other's.
    """
    key = re.sub(r"[^A-Za-z0-9.-]", "-", names[0].partition("=")[2])
    return {f"cdi.k8s.io/launcherkit_{key}": ",".join(names)}


def cdi_spec(nodes: Mapping[str, Sequence[str]], dev_root: str = "") -> bytes:
    """The file.

    Args:
        nodes: the paths of the nodes in the container, by device ID. At least one device; CDI has no empty files.
        dev_root: what stands before the paths on the host.
    """
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [node_edit(path, dev_root) for path in dict.fromkeys(paths)]}}
        for name, paths in sorted(nodes.items())
    ]
    return (json.dumps({"cdiVersion": VERSION, "kind": KIND, "devices": devices}, indent=1) + "\n").encode()


def node_edit(path: str, dev_root: str) -> dict[str, str]:
    """A device node of a container, as CDI writes it; the arguments as of `cdi_spec`."""
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

    def replace(self, nodes: Mapping[str, Sequence[str]], held: Collection[str] = ()) -> None:
        """From now on these devices; of others only those stay that somebody has, who may have got them since the look.

        Raises:
            CdiNotWritten: names the file and the reason; it is as it was.
        """
        kept = {name: paths for name, paths in self._nodes.items() if name in held}
        self._nodes = kept | {name: tuple(paths) for name, paths in nodes.items()}
        self._write()

    def add(self, nodes: Mapping[str, Sequence[str]]) -> None:
        """Devices as they have just been found to be, before a runtime is made to look for them.

        Raises:
            CdiNotWritten: names the file and the reason; it is as it was.
        """
        self._nodes |= {name: tuple(paths) for name, paths in nodes.items()}
        self._write()

    def _write(self) -> None:
        nodes = {name: paths for name, paths in self._nodes.items() if paths}
        if nodes == self._written and os.path.exists(self.path) == bool(nodes):
            return
        if nodes:
            with suppress(OSError):  # the write below gives the reason
                os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
            try:
                write_atomically(self.path, cdi_spec(nodes, self._dev_root))
            except UnwritableFile as problem:
                raise _not_written(self.path, problem.message) from problem
        else:
            try:
                os.unlink(self.path)
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as problem:
                raise _not_written(self.path, f"{self.path}: {problem.strerror}") from problem
        self._written = nodes


def _not_written(path: str, why: str) -> CdiNotWritten:
    return CdiNotWritten(
        f"the CDI file can't be written: {why}",
        "Make room on that file system, or mount the folder writable (component `cdi`). It is tried again.",
        file=path,
    )


def claimed_nodes(
    variable: str, nodes: Mapping[str, Sequence[str]], listed: Iterable[str], together: Sequence[str]
) -> Grant:
    """What a ResourceClaim gets, which has a CDI file of its own; the arguments as of `GrantedNodes.grant`."""
    each = {key: tuple(dict.fromkeys(of_one)) for key, of_one in nodes.items()}
    return Grant({variable: ",".join(listed)}, tuple(together), each=each)


class GrantedNodes:
    """Device nodes for containers, and for their runtime where CDI is used.

    Args:
        cdi: where the runtime finds them.
        cdi_only: containers get them in no other way.
        annotate: containers name them in an annotation too.
    """

    def __init__(self, cdi: CdiFile | None = None, *, cdi_only: bool = False, annotate: bool = False) -> None:
        self.cdi = cdi
        self._only = cdi_only
        self._annotate = annotate

    def grant(
        self,
        variable: str,
        nodes: Mapping[str, Sequence[str]],
        *,
        listed: Iterable[str] | None = None,
        together: Sequence[str] | None = None,
    ) -> Grant:
        """What a container gets for devices.

        Args:
            variable: that lists them.
            nodes: of each, by ID in the order of the request; they aren't used where the next two are given and there
                is no CDI file.
            listed: what the variable lists, if not the IDs.
            together: the nodes of all, if not those of each.

        Raises:
            CdiNotWritten: see `CdiFile`.
        """
        names: tuple[str, ...] = ()
        if self.cdi is not None:
            self.cdi.add(nodes)
            names = tuple(map(cdi_name, nodes))
        if together is None:
            together = tuple(dict.fromkeys(node for of_one in nodes.values() for node in of_one))
        env = {variable: ",".join(nodes if listed is None else listed)}
        annotations = cdi_annotation(names) if names and self._annotate else {}
        return Grant(env, () if names and self._only else tuple(together), names, annotations)
