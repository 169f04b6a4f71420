"""CDI files: the device nodes of each device, which a container runtime adds to a container by the device's name.

The names are those of `Grant.cdi`. A file lists the devices that are available, and is replaced atomically, by rename.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from launcherkit.atomic import Disk
from launcherkit.choose.nodes import CDEVS
from launcherkit.errors import Collector, UnwritableFile
from launcherkit_plugin.model.config import CardUse, CdiConfig
from launcherkit_plugin.model.device import Grant, Resource
from launcherkit_plugin.model.errors import CDI_KIND_REFUSED, CDI_NOT_WRITTEN
from launcherkit_plugin.records import identity

KIND = "launcherkit.io/vfio"
_PREFIX = "launcherkit.io-vfio-"
"""The beginning of the files' names."""
VERSION = "0.5.0"
"""The version of the CDI specification: the oldest in which a name may begin with a digit and a node has a host path. A
runtime refuses files of a newer version than it knows."""


_SAYABLE = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?", re.ASCII)
"""A kind, vendor/class, as that version allows it. Later versions allow a ``.`` in the class. Domains have no ``_``."""


def cdi_name(device_id: str, kind: str = KIND) -> str:
    """The qualified CDI name of a device: ``launcherkit.io/vfio=0000:e1:00.0``."""
    return f"{kind}={device_id}"


def check_kinds(named: Iterable[tuple[str, CardUse]], cdi: CdiConfig | None) -> None:
    """Check that the name of each resource that has its own CDI file can be a CDI kind.

    Args:
        named: the names of resources, each with what its devices are for; without those of DRA, whose claims have files
            of another kind.
        cdi: what is configured. Kata's resources always have such files.

    Raises:
        CDI_KIND_REFUSED, SeveralErrors: names each resource whose name can't.
    """
    by_name = {"kata", "vm"} if cdi is not None and cdi.kind == "resource" else {"kata"}
    errors = Collector()
    for name in [name for name, use in named if use in by_name]:
        if not _SAYABLE.fullmatch(name):
            errors.add(
                CDI_KIND_REFUSED(
                    f"{name} can't be the kind of a CDI file: domain and name begin with a letter, and the name has "
                    "only letters, digits, '-' and '_'",
                    "Give it another name: `name` in its rule, `aliases` for models and vGPU types, `domains` for "
                    "vendors. Only `kind: resource` and Kata need that.",
                    resource=name,
                    key="cdi.kind",
                )
            )
    errors.raise_if_any()


def opened_outside(nodes: Sequence[str]) -> tuple[str, ...]:
    """The nodes by which a VMM outside the container, such as Kata's, identifies a device: only VFIO's character
    devices if there are any, else all nodes. The VMM has ``/dev/iommu`` anyway."""
    return tuple(node for node in nodes if node.startswith(CDEVS)) or tuple(nodes)


def cdi_annotation(names: Sequence[str]) -> dict[str, str]:
    """The annotation that names a container's CDI devices, for kubelets that can't pass the names to the runtime.

    Args:
        names: at least one, from `cdi_name`. The annotation's key is made of the first, which no other container and
            no other resource of this container has, so keys are unique.
    """
    key = re.sub(r"[^A-Za-z0-9.-]", "-", names[0].partition("=")[2])
    return {f"cdi.k8s.io/launcherkit_{key}": ",".join(names)}


def cdi_spec(nodes: Mapping[str, Sequence[str]], dev_root: str = "", kind: str = KIND) -> bytes:
    """The content of a CDI file.

    Args:
        nodes: the paths of the nodes in the container, by device ID. At least one device: CDI has no empty files.
        dev_root: prefix of the paths on the host.
        kind: of the devices.
    """
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [node_edit(path, dev_root) for path in dict.fromkeys(paths)]}}
        for name, paths in sorted(nodes.items())
    ]
    return (json.dumps({"cdiVersion": VERSION, "kind": kind, "devices": devices}, indent=1) + "\n").encode()


def node_edit(path: str, dev_root: str) -> dict[str, str]:
    """A device node of a container in CDI's form; for ``dev_root`` see `cdi_spec`."""
    where = {"hostPath": dev_root.rstrip("/") + path} if dev_root else {}
    return {"path": path, **where, "permissions": "rwm"}


class CdiFiles:
    """The CDI files of one provider: one for all its devices, or one for each resource, with its name as the kind.

    A file is written only if its content changes.

    Args:
        folder: ``/var/run/cdi``, where runtimes look for the files of dynamic devices.
        part: the provider's part of the file names. A kind may have several files; each provider has its own.
        dev_root: see `cdi_spec`.
        by_resource: each resource has its own file. Kata asks for ``<resource>=<ID>`` of every device of a pod.
        unused: parts that no provider uses now; files that earlier configurations left there are removed too.
        disk: writes and removes the files.
    """

    def __init__(
        self,
        folder: str,
        part: str,
        dev_root: str = "",
        *,
        by_resource: bool = False,
        unused: Iterable[str] = (),
        disk: Disk | None = None,
    ) -> None:
        self.by_resource = by_resource
        self._folder = folder
        self._part = part
        self._dev_root = dev_root
        self._ours = tuple(f"{_PREFIX}{each}{end}" for each in (part, *unused) for end in ("-", ".json"))
        self._nodes: dict[str, dict[str, tuple[str, ...]]] = {}
        """The nodes of devices, by kind and ID."""
        self._disk = disk or Disk()
        self._written: dict[str, tuple[dict[str, tuple[str, ...]], tuple[int, ...] | None]] = {}
        """What was written, and the file's identity then: what anybody else makes of it is undone."""

    def names(self, resource: str, ids: Iterable[str]) -> tuple[str, ...]:
        """The qualified CDI names of devices."""
        return tuple(cdi_name(key, self._kind(resource)) for key in ids)

    def replace(self, nodes: Mapping[str, Mapping[str, Sequence[str]]], held: Collection[str] = ()) -> None:
        """Replace the devices in the files. The files of resources that are gone are removed.

        Args:
            nodes: the nodes of each device, by resource and ID.
            held: IDs that stay in the files even if they aren't among ``nodes``: they may have been allocated after the
                scan.

        Raises:
            CDI_NOT_WRITTEN: names the file and the reason; the file is unchanged.
        """
        listed: dict[str, dict[str, tuple[str, ...]]] = {
            kind: {key: paths for key, paths in of_kind.items() if key in held} for kind, of_kind in self._nodes.items()
        }
        for resource, of_one in nodes.items():
            listed.setdefault(self._kind(resource), {}).update(_tuples(of_one))
        self._nodes = listed
        for kind in listed:
            self._write(kind)
        self._remove_others()

    def add(self, resource: str, nodes: Mapping[str, Sequence[str]]) -> None:
        """Add or update devices of a resource, before a runtime is asked for them.

        Raises:
            CDI_NOT_WRITTEN: names the file and the reason; the file is unchanged.
        """
        kind = self._kind(resource)
        self._nodes.setdefault(kind, {}).update(_tuples(nodes))
        self._write(kind)

    def path(self, kind: str = KIND) -> str:
        """The path of the file of a kind."""
        of_kind = "" if kind == KIND else f"-{kind.replace('/', '_')}"
        return os.path.join(self._folder, f"{_PREFIX}{self._part}{of_kind}.json")

    def _kind(self, resource: str) -> str:
        return resource if self.by_resource else KIND

    def _write(self, kind: str) -> None:
        path, nodes = self.path(kind), {key: paths for key, paths in self._nodes[kind].items() if paths}
        if (nodes, identity(path)) == self._written.get(kind):
            return
        try:
            if nodes:
                self._disk.replace(path, cdi_spec(nodes, self._dev_root, kind))
            else:
                self._disk.remove(path)
        except UnwritableFile as problem:
            raise _not_written(path, problem.message) from problem
        self._written[kind] = nodes, identity(path)

    def _remove_others(self) -> None:
        """Remove the files of an earlier daemon or of another configuration."""
        own = {os.path.basename(self.path(kind)) for kind in self._nodes}
        with suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(self._folder):
                if name.startswith(self._ours) and name.endswith(".json") and name not in own:
                    path = os.path.join(self._folder, name)
                    try:
                        self._disk.remove(path)
                    except UnwritableFile as problem:
                        raise _not_written(path, problem.message) from problem


def _tuples(nodes: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(paths) for key, paths in nodes.items()}


def _not_written(path: str, reason: str) -> UnwritableFile:
    return CDI_NOT_WRITTEN(
        f"the CDI file can't be written: {reason}",
        "Make room on that file system, or mount the folder writable (component `cdi`). It is tried again.",
        file=path,
    )


def claimed_nodes(
    variable: str, nodes: Mapping[str, Sequence[str]], listed: Iterable[str], together: Sequence[str]
) -> Grant:
    """What a ResourceClaim gets: each claim has its own CDI file. For the arguments see `GrantedNodes.grant`."""
    by_device = {key: tuple(dict.fromkeys(of_one)) for key, of_one in nodes.items()}
    return Grant({variable: ",".join(listed)}, tuple(together), each=by_device)


class GrantedNodes:
    """How containers get device nodes: from the kubelet, by CDI, or both.

    Args:
        cdi: the CDI files; None: CDI isn't used.
        cdi_only: containers get nodes by CDI alone.
        annotate: CDI names are also in an annotation.
        environment: containers get the variables of E1.
    """

    def __init__(
        self,
        cdi: CdiFiles | None = None,
        *,
        cdi_only: bool = False,
        annotate: bool = False,
        environment: bool = True,
    ) -> None:
        self.cdi = cdi
        self._only = cdi_only
        self._annotate = annotate
        self._environment = environment

    def replace(self, nodes: Mapping[str, Mapping[str, Sequence[str]]], held: Collection[str] = ()) -> None:
        """Set the devices in the CDI files, if CDI is used: see `CdiFiles.replace`."""
        if self.cdi is not None:
            self.cdi.replace(
                {name: {key: self._opened(paths) for key, paths in of_one.items()} for name, of_one in nodes.items()},
                held,
            )

    def _opened(self, nodes: Sequence[str]) -> tuple[str, ...]:
        return opened_outside(nodes) if self.cdi is not None and self.cdi.by_resource else tuple(nodes)

    def grant(
        self,
        resource: Resource,
        nodes: Mapping[str, Sequence[str]],
        *,
        listed: Iterable[str] | None = None,
        together: Sequence[str] | None = None,
    ) -> Grant:
        """What a container gets for devices.

        Args:
            resource: of the devices.
            nodes: of each device, by ID in the order of the request. Unused if the next two are given and CDI isn't
                used.
            listed: what the variable lists; None: the IDs.
            together: the nodes of all devices together; None: those of each.

        Raises:
            CDI_NOT_WRITTEN: see `CdiFiles`.
        """
        names: tuple[str, ...] = ()
        if self.cdi is not None:
            self.cdi.add(resource.name, {key: self._opened(paths) for key, paths in nodes.items()})
            names = self.cdi.names(resource.name, nodes)
        if together is None:
            together = tuple(dict.fromkeys(node for of_one in nodes.values() for node in of_one))
        env = {resource.variable: ",".join(nodes if listed is None else listed)} if self._environment else {}
        annotations = cdi_annotation(names) if names and self._annotate else {}
        return Grant(env, () if names and self._only else self._opened(together), names, annotations)
