"""Whether pods are still there, by what the kubelet and the kernel keep of them: a folder, and processes."""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from launcherkit_plugin.host.open_nodes import pids, sees_all

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
