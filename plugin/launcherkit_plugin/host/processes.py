"""What the host's proc says: which device nodes processes have open, which pods have any, which boot this is."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Mapping

from launcherkit.model.value import NamedTuple

_HOST_PID_NAMESPACE = "pid:[4026531836]"
"""The first PID namespace has this number on every Linux (PROC_PID_INIT_INO)."""


class HolderProcess(NamedTuple):
    """Somebody who has a node open."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (PID {self.pid})"


class OpenNodes(NamedTuple):
    """What was found."""

    holders: Mapping[str, tuple[HolderProcess, ...]]
    """By node, as ``/dev/vfio/44`` or ``/dev/vfio/devices/vfio3``."""
    unseen: str = ""
    """Why there may be more: a process that could not be looked into, or that can't be seen at all. Empty: there are no
    more."""

    @property
    def complete(self) -> bool:
        """Whether all processes were looked into."""
        return not self.unseen

    def is_open(self, nodes: Iterable[str]) -> bool | None:
        """Whether a process has one of these nodes open; None where that is unknown."""
        if any(self.holders.get(node) for node in nodes):
            return True
        return False if self.complete else None


def read_open_nodes(proc: str = "/proc", devices: Mapping[str, tuple[int, int]] = {}) -> OpenNodes:
    """Look through all processes, for VFIO's nodes and some others.

    It takes root to look into those of others, and the host's PID namespace (``hostPID``) to see them at all.

    Args:
        proc: where the host's proc file system is mounted.
        devices: the other nodes, each with its major and minor number.
    """
    found: dict[str, list[HolderProcess]] = {}
    named: dict[str, list[str]] = {}
    for node in devices:
        named.setdefault(os.path.basename(node), []).append(node)

    def node_of(link: str, target: str) -> str | None:
        name = target.removesuffix(" (deleted)").rpartition("/")[2]
        return next((node for node in named.get(name, ()) if _is_device(link, devices[node])), None) or _node(target)

    unseen = "" if sees_all(proc) else f"{proc} does not show all processes of the host"
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
            found.setdefault(node, []).append(HolderProcess(pid, _name(proc, pid)))
    return OpenNodes({node: tuple(processes) for node, processes in found.items()}, unseen)


def sees_all(proc: str) -> bool:
    """Whether the processes of the whole host are there to be seen."""
    try:
        return os.readlink(f"{proc}/1/ns/pid") == _HOST_PID_NAMESPACE
    except OSError:
        return False


def pids(proc: str) -> list[int]:
    """The processes that there are.

    Raises:
        OSError: that is unknown.
    """
    return sorted(int(name) for name in os.listdir(proc) if name.isascii() and name.isdigit())


def _nodes_of(directory: str, node_of: Callable[[str, str], str | None]) -> set[str]:
    """The nodes that a process has open, of those that are looked for.

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
    """A path as the host calls it: from another mount namespace the way to ``/dev`` may look otherwise."""
    directory, _, name = target.removesuffix(" (deleted)").rpartition("/")
    if directory.endswith("/vfio") and name.isascii() and name.isdigit():
        return f"/dev/vfio/{name}"
    if directory.endswith("/vfio/devices") and name.startswith("vfio"):
        return f"/dev/vfio/devices/{name}"
    return None


def _is_device(link: str, number: tuple[int, int]) -> bool:
    """Whether an open file is a device. Its number tells: in a container its path may be another.

    To be called only for files of the right name: for one on a network file system that hangs it would never return.
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
    """Which boot of the machine this is; empty where that is unknown, as in a tree that was made by hand."""
    try:
        with open(f"{proc}/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, ValueError):
        return ""


_POD = re.compile(rb"[/-]pod([\w-]{1,64})(?:\.slice)?(?=[/\n]|$)")
"""The name of a pod's cgroup, by either driver: ``pod<UID>``, ``kubepods-burstable-pod<UID with _>.slice``."""

_CGROUP_BYTES = 4096


def pod_states(uids: Collection[str], kubelet_dir: str, proc: str) -> dict[str, bool]:
    """Which pods are there (True) and which have ended (False); one of which neither is known is left out.

    A pod has ended when the kubelet's folder ``pods`` has nothing of it any more, or when no process is in its cgroup;
    the kubelet keeps the folder for as long as the API server knows the pod, so where processes can be seen they count.

    Args:
        uids: of pods.
        kubelet_dir: ``/var/lib/kubelet``.
        proc: where the host's proc file system is mounted.
    """
    try:
        folders: frozenset[str] | None = frozenset(os.listdir(f"{kubelet_dir}/pods"))
    except OSError:
        folders = None
    running = _running(proc)
    found: dict[str, bool] = {}
    for uid in uids:
        if folders is not None and uid not in folders:
            found[uid] = False
        elif running is not None:
            found[uid] = uid.replace("_", "-") in running
        elif folders is not None:
            found[uid] = True
    return found


def _running(proc: str) -> frozenset[str] | None:
    """The UIDs of the pods that have processes; None where not all processes can be seen."""
    if not sees_all(proc):
        return None
    found: set[str] = set()
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
        found.update(match.decode().replace("_", "-") for match in _POD.findall(text))
    return frozenset(found)
