"""A container of a pod as runc starts it: what a container runtime makes of the manifest, the image and the devices."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from launcherkit_lab.container.image import ImageConfig
from launcherkit_lab.container.manifest import TOKEN_MOUNT, Pod, arguments, variables
from launcherkit_lab.container.objects import BadManifest, Container, Mount, Security

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
# fmt: off
_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)
# fmt: on
"""capabilities(7), by their numbers."""
_DEFAULT_CAPABILITIES = frozenset(_CAPABILITIES[number] for number in (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31))
"""Those that containerd leaves a container that says nothing."""
_PROPAGATION = {"Bidirectional": "rshared", "HostToContainer": "rslave"}


class Extras(NamedTuple):
    """What a container has besides its manifest."""

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


def specification(pod: Pod, container: Container, image: ImageConfig, root: Path, extras: Extras) -> dict[str, Any]:
    """The ``config.json`` of a pod's container; its cgroup is its own, and namespaces that it doesn't share.

    Where the pod asks an API server, it shares the machine's network, for there is none of pods.

    Args:
        root: the image's files.

    Raises:
        BadManifest: it wants what isn't here.
    """
    security = pod.spec.security_context.overridden(container.security_context)
    privileged = security.privileged
    env = {**variables(pod, container, image.env), **extras.env}
    has_network = pod.spec.host_network or pod.identity is not None
    shared = {"network": has_network, "ipc": pod.spec.host_ipc, "pid": pod.spec.host_pid}
    namespaces = ["mount", "uts", "cgroup", *(kind for kind, is_shared in shared.items() if not is_shared)]
    nodes = [*_all_nodes()] if privileged else extras.nodes
    devices = [{"allow": privileged, "access": "rwm"}, *map(_allowed, () if privileged else nodes)]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": _user(security, image, root),
            "args": arguments(container, image.entrypoint, image.command, env),
            "env": [f"{name}={value}" for name, value in env.items()],
            "cwd": container.working_dir or image.folder,
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), _capabilities(security)),
            "noNewPrivileges": not (privileged or security.allow_privilege_escalation),
            "rlimits": [{"type": "RLIMIT_MEMLOCK", "soft": extras.locked, "hard": extras.locked}],
        },
        "root": {"path": str(root), "readonly": security.read_only_root_filesystem},
        "hostname": pod.name,
        "mounts": [
            *(_own_mount(*mount, privileged=privileged) for mount in _MOUNTS),
            *(_mount(mount, extras.volumes[mount.name]) for mount in _volume_mounts(pod, container)),
        ],
        "linux": {
            "namespaces": [{"type": name} for name in namespaces],
            "cgroupsPath": f"/{pod.name}-{container.name}",
            "devices": [_device(node) for node in nodes],
            "resources": {"devices": devices},
            **({} if privileged else {"readonlyPaths": _READ_ONLY, "maskedPaths": _MASKED}),
            **_seccomp(pod, security, extras.kubelet_dir / "seccomp"),
        },
    }


def _capabilities(security: Security) -> list[str]:
    if security.privileged:
        with open("/proc/sys/kernel/cap_last_cap") as file:
            return [f"CAP_{name}" for name in _CAPABILITIES[: int(file.read()) + 1]]
    dropped, added = (
        {name.upper().removeprefix("CAP_") for name in names}
        for names in (security.capabilities.drop, security.capabilities.add)
    )
    kept = frozenset[str]() if "ALL" in dropped else _DEFAULT_CAPABILITIES - dropped
    return [f"CAP_{name}" for name in _CAPABILITIES if name in kept | added or "ALL" in added]


def _user(security: Security, image: ImageConfig, root: Path) -> dict[str, Any]:
    """User and group by number; names are those of the image's own files."""
    said = image.user if security.run_as_user is None else str(security.run_as_user)
    name, _, of_image = said.partition(":")
    uid, primary = _entry(root / "etc/passwd", name or "0")
    group = (of_image or primary) if security.run_as_group is None else str(security.run_as_group)
    more = {*security.supplemental_groups, *filter(None, [security.fs_group])}
    return {"uid": int(uid), "gid": int(_entry(root / "etc/group", group)[0]), "additionalGids": sorted(more)}


def _entry(file: Path, name: str) -> tuple[str, str]:
    """The number of a user or group and what comes after it, of a user his group."""
    lines = file.read_text(errors="replace").splitlines() if file.is_file() and not file.is_symlink() else []
    for words in (line.split(":") for line in lines):
        if len(words) > 3 and name in (words[0], words[2]) and words[2].isdigit():
            return words[2], words[3] if words[3].isdigit() else "0"
    if not name.isdigit():
        raise BadManifest(f"the image's /{file.parent.name}/{file.name} has no {name}, as which it is to run")
    return name, "0"


def _seccomp(pod: Pod, security: Security, profiles: Path) -> dict[str, Any]:
    """A profile of the node, which containerd takes over as it is; the runtime's own isn't known here."""
    profile = security.seccomp_profile
    if profile is None or profile.type != "Localhost" or security.privileged:
        return {}
    file = profiles / profile.localhost_profile
    try:
        return {"seccomp": json.loads(file.read_text())}
    except (OSError, ValueError) as error:
        raise BadManifest(f"{pod}: seccompProfile: {file}: {error}") from error


def _own_mount(at: str, kind: str, options: Sequence[str], *, privileged: bool) -> dict[str, Any]:
    """A mount of every container; a privileged one may write to what is the kernel's."""
    kept = [option for option in options if not (privileged and option == "ro")]
    return {"destination": at, "type": kind, "source": kind, "options": kept}


def _volume_mounts(pod: Pod, container: Container) -> Sequence[Mount]:
    mounts = container.volume_mounts
    if pod.has_token and TOKEN_MOUNT.mount_path not in [mount.mount_path for mount in mounts]:
        return [*mounts, TOKEN_MOUNT]
    return mounts


def _mount(mount: Mount, source: Path) -> dict[str, Any]:
    source = source / mount.sub_path
    if not source.exists():
        source.mkdir(parents=True)
    propagation = _PROPAGATION.get(mount.mount_propagation, "rprivate")
    options = ["rbind", propagation, *(["ro"] if mount.read_only else [])]
    return {"destination": mount.mount_path, "type": "bind", "source": str(source), "options": options}


def _all_nodes() -> Iterator[str]:
    """All device nodes of the machine, but for terminals, as containerd gives a privileged container."""
    for folder, below, names in os.walk("/dev"):
        if folder == "/dev":
            below[:] = [name for name in below if name not in ("pts", "shm", "mqueue")]
        for path in (os.path.join(folder, name) for name in names):
            with suppress(FileNotFoundError):  # it has gone meanwhile
                kind = os.lstat(path).st_mode
                if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
                    yield path


def _numbers(node: str) -> dict[str, Any]:
    status = os.stat(node)
    kind = "c" if stat.S_ISCHR(status.st_mode) else "b"
    return {"type": kind, "major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)}


def _device(node: str) -> dict[str, Any]:
    return {"path": node, "fileMode": os.stat(node).st_mode & 0o777, "uid": 0, "gid": 0, **_numbers(node)}


def _allowed(node: str) -> dict[str, Any]:
    return {"allow": True, "access": "rwm", **_numbers(node)}
