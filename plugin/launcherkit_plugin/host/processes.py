"""What the host's proc says: which device nodes processes have open, which pods have processes, the boot's ID."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from launcherkit.host.use import shows_host


class HolderProcess(NamedTuple):
    """A process that has a device node open."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (PID {self.pid})"


class OpenNodes(NamedTuple):
    """Which processes have device nodes open."""

    holders: Mapping[str, tuple[HolderProcess, ...]]
    """By node, such as ``/dev/vfio/44`` or ``/dev/vfio/devices/vfio3``."""
    unseen: str = ""
    """Why there may be more: a process could not be inspected, or not all processes are visible. Empty: there are no
    more."""

    @property
    def complete(self) -> bool:
        """Whether all processes were inspected."""
        return not self.unseen

    def is_open(self, nodes: Iterable[str]) -> bool | None:
        """Whether a process has one of these nodes open; None if unknown."""
        if any(self.holders.get(node) for node in nodes):
            return True
        return False if self.complete else None


def read_open_nodes(proc: str = "/proc", devices: Mapping[str, tuple[int, int]] = {}) -> OpenNodes:
    """Find the processes that have VFIO's device nodes, or some others, open.

    This needs `launcherkit_plugin.host.open_files.CAPABILITIES` to inspect other users' processes, and the host's PID
    namespace (``hostPID``) to see them all.

    Args:
        proc: where the host's proc file system is mounted.
        devices: the other nodes, each with its major and minor number.
    """
    by_node: dict[str, list[HolderProcess]] = {}
    named: dict[str, list[str]] = {}
    for node in devices:
        named.setdefault(os.path.basename(node), []).append(node)

    def node_of(link: str, target: str) -> str | None:
        name = target.removesuffix(" (deleted)").rpartition("/")[2]
        return next((node for node in named.get(name, ()) if _is_device(link, devices[node])), None) or _node(target)

    unseen = "" if shows_host(proc) else f"{proc} does not show all processes of the host"
    try:
        processes = pids(proc)
    except OSError as problem:
        return OpenNodes({}, f"{proc} can't be read: {problem.strerror}")
    for pid in processes:
        try:
            nodes = _nodes_of(f"{proc}/{pid}/fd", node_of)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError:
            unseen = unseen or f"{HolderProcess(pid, _name(proc, pid))} can't be inspected"
            continue
        for node in nodes:
            by_node.setdefault(node, []).append(HolderProcess(pid, _name(proc, pid)))
    return OpenNodes({node: tuple(processes) for node, processes in by_node.items()}, unseen)


def pids(proc: str) -> list[int]:
    """The IDs of all processes, sorted.

    Raises:
        OSError: they can't be listed.
    """
    return sorted(int(name) for name in os.listdir(proc) if name.isascii() and name.isdigit())


def _nodes_of(directory: str, node_of: Callable[[str, str], str | None]) -> set[str]:
    """The device nodes that a process has open, among those looked for.

    Raises:
        OSError: it can't be inspected.
    """
    nodes: set[str] = set()
    for entry in os.listdir(directory):
        try:
            target = os.readlink(f"{directory}/{entry}")
        except FileNotFoundError:
            continue  # closed meanwhile
        node = node_of(f"{directory}/{entry}", target)
        if node is not None:
            nodes.add(node)
    return nodes


def _node(target: str) -> str | None:
    """The host's path of a VFIO node; in another mount namespace the path of ``/dev`` may differ."""
    directory, _, name = target.removesuffix(" (deleted)").rpartition("/")
    if directory.endswith("/vfio") and name.isascii() and name.isdigit():
        return f"/dev/vfio/{name}"
    if directory.endswith("/vfio/devices") and name.startswith("vfio"):
        return f"/dev/vfio/devices/{name}"
    return None


def _is_device(link: str, number: tuple[int, int]) -> bool:
    """Whether an open file is a device, by its number: in a container its path may differ.

    Call this only for files with the right name: for a file on a hanging network file system it would never return.
    """
    try:
        status = os.stat(link)
    except FileNotFoundError:
        return False  # closed meanwhile
    return stat.S_IFMT(status.st_mode) in (stat.S_IFCHR, stat.S_IFBLK) and number == (
        os.major(status.st_rdev),
        os.minor(status.st_rdev),
    )


def _name(proc: str, pid: int) -> str:
    try:
        with open(f"{proc}/{pid}/comm", "rb") as file:
            return file.read(64).decode(errors="replace").strip() or "?"
    except OSError:
        return "?"


def boot_id(proc: str) -> str:
    """The ID of this boot of the machine; empty if unknown, as in a tree that was made by hand."""
    try:
        with open(f"{proc}/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, ValueError):
        return ""


_POD = re.compile(rb"[/-]pod([\w-]{1,64})(?:\.slice)?(?=[/\n]|$)")
"""The name of a pod's cgroup, by both cgroup drivers: ``pod<UID>``, ``kubepods-burstable-pod<UID with _>.slice``."""

_CGROUP_BYTES = 4096


def pod_states(uids: Collection[str], kubelet_dir: str, proc: str) -> dict[str, bool]:
    """Which pods exist (True) and which have ended (False); a pod of which this is unknown is left out.

    A pod has ended if the kubelet's folder ``pods`` has no entry for it, or if no process is in its cgroup. The kubelet
    keeps the entry as long as the API server knows the pod, so processes decide where they are visible.

    Args:
        uids: UIDs of pods.
        kubelet_dir: ``/var/lib/kubelet``.
        proc: where the host's proc file system is mounted.
    """
    try:
        folders: frozenset[str] | None = frozenset(os.listdir(f"{kubelet_dir}/pods"))
    except OSError:
        folders = None
    running = _running(proc)
    states: dict[str, bool] = {}
    for uid in uids:
        if folders is not None and uid not in folders:
            states[uid] = False
        elif running is not None:
            states[uid] = uid.replace("_", "-") in running
        elif folders is not None:
            states[uid] = True
    return states


def _running(proc: str) -> frozenset[str] | None:
    """The UIDs of the pods that have processes; None if not all processes are visible."""
    if not shows_host(proc):
        return None
    uids: set[str] = set()
    try:
        processes = pids(proc)
    except OSError:
        return None
    for pid in processes:
        try:
            with open(f"{proc}/{pid}/cgroup", "rb") as file:
                text = file.read(_CGROUP_BYTES)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError:
            return None
        uids.update(match.decode().replace("_", "-") for match in _POD.findall(text))
    return frozenset(uids)
