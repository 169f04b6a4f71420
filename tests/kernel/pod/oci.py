"""A container of a pod as runc starts it: what a container runtime makes of the manifest, the image and the devices."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LOCKED_BYTES = 8 << 20
"""The limit of locked memory that containerd gives its containers."""
UNLIMITED = 2**64 - 1

_MOUNTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("/proc", "proc", ("nosuid", "noexec", "nodev")),
    ("/dev", "tmpfs", ("nosuid", "strictatime", "mode=755", "size=65536k")),
    ("/dev/pts", "devpts", ("nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5")),
    ("/dev/shm", "tmpfs", ("nosuid", "noexec", "nodev", "mode=1777", "size=65536k")),
    ("/dev/mqueue", "mqueue", ("nosuid", "noexec", "nodev")),
    ("/sys", "sysfs", ("nosuid", "noexec", "nodev", "ro")),
    ("/sys/fs/cgroup", "cgroup", ("nosuid", "noexec", "nodev", "relatime", "ro")),
)
"""Destination, type, options."""
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_MASKED = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware")


class Given(NamedTuple):
    """What a container has besides its manifest."""

    image: Mapping[str, Any]
    """The image's own configuration: ``Entrypoint``, ``Env``, ``User``."""
    volumes: Mapping[str, Path]
    """Where the pod's volumes are."""
    env: Mapping[str, str] = {}
    """A device plugin's variables."""
    nodes: Sequence[str] = ()
    """A device plugin's device nodes."""
    locked: int = LOCKED_BYTES
    """The limit of locked memory, in bytes."""
    kubelet_dir: Path = Path("/var/lib/kubelet")
    """The folder with the node's seccomp profiles."""


def specification(pod: Mapping[str, Any], root: Path, given: Given) -> dict[str, Any]:
    """The ``config.json`` of a pod's only container; its cgroup and its namespaces are its own.

    Args:
        pod: metadata and spec.
        root: the image's files.
    """
    spec = pod["spec"]
    (container,) = spec["containers"]
    security = container["securityContext"]
    capabilities = [f"CAP_{name}" for name in security["capabilities"].get("add", ())]
    user, _, group = str(security.get("runAsUser") or given.image["User"]).partition(":")
    namespaces = ["mount", "ipc", "uts", "network", "cgroup", *([] if spec.get("hostPID") else ["pid"])]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": int(user), "gid": int(group or 0)},
            "args": [*given.image["Entrypoint"], *container["args"]],
            "env": [
                *given.image["Env"],
                *_variables(pod, container),
                *(f"{name}={v}" for name, v in given.env.items()),
            ],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "noNewPrivileges": not security["allowPrivilegeEscalation"],
            "rlimits": [{"type": "RLIMIT_MEMLOCK", "soft": given.locked, "hard": given.locked}],
        },
        "root": {"path": str(root), "readonly": security["readOnlyRootFilesystem"]},
        "mounts": [
            *({"destination": at, "type": of, "source": of, "options": options} for at, of, options in _MOUNTS),
            *(_mount(mount, given.volumes[mount["name"]]) for mount in container["volumeMounts"]),
        ],
        "linux": {
            "namespaces": [{"type": name} for name in namespaces],
            "cgroupsPath": f"/{pod['metadata']['name']}",
            "devices": [_device(node) for node in given.nodes],
            "resources": {"devices": [{"allow": False, "access": "rwm"}, *map(_allowed, given.nodes)]},
            "readonlyPaths": _READ_ONLY,
            "maskedPaths": _MASKED,
            **_seccomp(security, given.kubelet_dir / "seccomp"),
        },
    }


def _seccomp(security: Mapping[str, Any], profiles: Path) -> dict[str, Any]:
    """A profile of the node, which containerd takes over as it is; the runtime's own isn't known here."""
    profile = security.get("seccompProfile", {})
    if profile.get("type") != "Localhost":
        return {}
    return {"seccomp": json.loads((profiles / profile["localhostProfile"]).read_text())}


def _variables(pod: Mapping[str, Any], container: Mapping[str, Any]) -> list[str]:
    """The manifest's own, those among them that are fields of the pod too."""
    fields = {f"metadata.{name}": pod["metadata"].get(name, "default") for name in ("name", "namespace")}
    return [
        f"{one['name']}={one['value'] if 'value' in one else fields[one['valueFrom']['fieldRef']['fieldPath']]}"
        for one in container.get("env", ())
    ]


def _mount(mount: Mapping[str, Any], source: Path) -> dict[str, Any]:
    source = source / mount.get("subPath", "")
    source.mkdir(parents=True, exist_ok=True)
    options = ["rbind", "rprivate", *(["ro"] if mount.get("readOnly") else [])]
    return {"destination": mount["mountPath"], "type": "bind", "source": str(source), "options": options}


def _numbers(node: str) -> dict[str, Any]:
    found = os.stat(node)
    assert stat.S_ISCHR(found.st_mode), node
    return {"type": "c", "major": os.major(found.st_rdev), "minor": os.minor(found.st_rdev)}


def _device(node: str) -> dict[str, Any]:
    return {"path": node, "fileMode": os.stat(node).st_mode & 0o777, "uid": 0, "gid": 0, **_numbers(node)}


def _allowed(node: str) -> dict[str, Any]:
    return {"allow": True, "access": "rwm", **_numbers(node)}
