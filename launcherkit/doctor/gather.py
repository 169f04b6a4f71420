"""Reads what the checks need beyond the host facts: the only module of this package with I/O.

It reads files and runs ``libvirtd --version`` and the like; it opens no device node and changes nothing. Missing or
unreadable facts are left out: the doctor has to work on odd hosts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping

from launcherkit.compatibility import Version
from launcherkit.doctor.facts import Gathered, KubeletNode, Machine, Node, Process, Resizable
from launcherkit.host.functions import DEVICES
from launcherkit.host.kernel import read_kernel
from launcherkit.host.tree import LARGE, DiskTree, Tree
from launcherkit.host.vfio_aliases import VfioAlias, best_alias, vfio_aliases
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts

_MODULES = ("vfio", "vfio_pci", "vfio_iommu_type1", "vfio_iommu_spapr_tce", "iommufd", "mdev")
_DAEMONS = ("virtqemud", "libvirtd")
_KUBELET, _CDI = "var/lib/kubelet", "var/run/cdi"
_CONTAINERD = "etc/containerd/config.toml"
_IPC_LOCK, _SYS_RESOURCE = 14, 24  # linux/capability.h
_ALIASES = 16 << 20
"""The most bytes of ``modules.alias``; distributions have 2 MB."""
_SECONDS = 10
"""How long a program may take to print its version."""


def gather(root: str, host: HostFacts, env: Mapping[str, str]) -> Gathered:
    """Read the facts of a machine.

    Args:
        root: above its ``sys/``, ``dev/`` and ``proc/``; versions are queried only if it is ``/``.
        host: its facts, for the nodes and functions that there are.
        env: this process's, to tell a container and to find programs.
    """
    here = os.path.realpath(root) == "/"
    with DiskTree(root, strict=False) as tree:
        return Gathered(
            machine=read_machine(tree, env if here else {}),
            process=read_process(tree),
            nodes=read_node_access(root, host.nodes or ()),
            resizable=read_resizable(tree, host),
            libvirt=ask_version(_DAEMONS, env) if here else None,
            qemu=ask_version((f"qemu-system-{os.uname().machine}", "qemu-kvm"), env) if here else None,
            kernel=read_kernel(tree),
            node=read_node(tree, root, env if here else None),
            variants=read_variants(tree, host),
        )


def read_machine(tree: Tree, env: Mapping[str, str]) -> Machine:
    """The kernel's command line, the firmware's tables, VFIO's modules and the CPU."""
    line = tree.read("proc/cmdline")
    tables = [name for name in tree.names("sys/firmware/acpi/tables") if name not in ("data", "dynamic")]
    modules = None
    if tree.names("sys/module"):
        modules = frozenset(name for name in _MODULES if tree.exists(f"sys/module/{name}"))
        if tree.exists("sys/bus/pci/drivers/vfio-pci"):
            modules |= {"vfio", "vfio_pci"}  # built-in modules need not have a directory
    bits = re.search(rb"address sizes\s*:\s*(\d{1,2}) bits physical", tree.read("proc/cpuinfo", LARGE) or b"")
    return Machine(
        container="KUBERNETES_SERVICE_HOST" in env
        or "container" in env
        or tree.exists(".dockerenv")
        or tree.exists("run/.containerenv"),
        command_line=None if line is None else tuple(line.decode(errors="replace").split()),
        firmware_tables=frozenset(tables) if tables else None,
        iommus=tuple(tree.names("sys/class/iommu")),
        modules=modules,
        unsafe_noiommu=tree.read("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", 1) == b"Y",
        address_bits=int(bits[1]) if bits else None,
    )


def read_variants(tree: Tree, host: HostFacts) -> dict[PciAddress, VfioAlias] | None:
    """The alias by which ``driver: auto`` chooses a variant of vfio-pci; None without ``modules.alias``."""
    release = (tree.read("proc/sys/kernel/osrelease") or b"").decode(errors="replace").strip()
    table = tree.read(f"lib/modules/{os.path.basename(release)}/modules.alias", _ALIASES)
    if table is None:
        return None
    aliases = vfio_aliases(table.decode(errors="replace").splitlines())
    best = {}
    for address in host.functions:
        modalias = (tree.read(f"{DEVICES}/{address}/modalias") or b"").decode(errors="replace").strip()
        if alias := best_alias(modalias, aliases):
            best[address] = alias
    return best


def read_node(tree: Tree, root: str, env: Mapping[str, str] | None) -> KubeletNode | None:
    """The facts for a DRA driver; programs are asked for their versions if ``env`` is given."""
    if not tree.exists(_KUBELET):
        return None
    enabled = re.search(rb"^\s*enable_cdi\s*=\s*(true|false)", tree.read(_CONTAINERD, LARGE) or b"", re.MULTILINE)
    sockets = tree.names(f"{_KUBELET}/plugins_registry")
    pods = tree.names(f"{_KUBELET}/pods")
    socket = f"{_KUBELET}/pods/{{}}/volumes/kubernetes.io~empty-dir/cluster-socket/daemon.sock"
    return KubeletNode(
        kubelet=None if env is None else ask_version(("kubelet",), env),
        containerd=None if env is None else ask_version(("containerd",), env),
        cdi_enabled=enabled[1] == b"true" if enabled else None,
        registry=tree.exists(f"{_KUBELET}/plugins_registry"),
        drivers=frozenset(name.removesuffix("-reg.sock") for name in sockets if name.endswith("-reg.sock")),
        cluster_sockets=sum(tree.exists(socket.format(pod)) for pod in pods),
        cdi_writable=_can_be_written(root, _CDI),
    )


def _can_be_written(root: str, folder: str) -> bool:
    """Whether a folder, or its nearest existing parent, is on a file system that can be written to."""
    path = os.path.join(root, folder)
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    try:
        return not os.statvfs(path).f_flag & os.ST_RDONLY
    except OSError:
        return False


def read_process(tree: Tree) -> Process | None:
    """The limits and capabilities of a running libvirt daemon, else of this process."""
    daemons = sorted(
        (_DAEMONS.index(name), int(entry), name)
        for entry in tree.names("proc")
        if entry.isascii() and entry.isdigit()
        for name in [(tree.read(f"proc/{entry}/comm", 32) or b"").decode(errors="replace").strip()]
        if name in _DAEMONS
    )
    for _, pid, name in daemons[:1]:
        process = _process(tree, str(pid), f"{name}, process {pid}")
        if process is not None:
            return process
    return _process(tree, "self", "this process")


def _process(tree: Tree, entry: str, name: str) -> Process | None:
    limits = re.search(rb"Max locked memory +(\S+) +(\S+)", tree.read(f"proc/{entry}/limits") or b"")
    effective = re.search(rb"CapEff:\s*([0-9a-fA-F]{1,16})\b", tree.read(f"proc/{entry}/status") or b"")
    if not limits or not effective:
        return None
    try:
        soft, hard = (None if text == b"unlimited" else int(text) for text in limits.groups())
    except ValueError:
        return None
    capabilities = int(effective[1], 16)
    may_raise, may_lock = (bool(capabilities >> bit & 1) for bit in (_SYS_RESOURCE, _IPC_LOCK))
    return Process(name, soft, hard, may_raise, may_lock)


def read_node_access(root: str, nodes: Iterable[str]) -> dict[str, Node]:
    """Owner and mode of the device nodes below a root, and whether this user may use them."""
    access = {}
    for node in sorted(nodes):
        path = os.path.join(root, node.lstrip("/"))
        try:
            status = os.stat(path)
        except OSError:
            continue
        usable = os.access(path, os.R_OK | os.W_OK)
        access[node] = Node(status.st_mode & 0o7777, status.st_uid, status.st_gid, usable)
    return access


def read_resizable(tree: Tree, host: HostFacts) -> dict[PciAddress, tuple[Resizable, ...]]:
    """The resizable BARs of functions bound to a VFIO driver; a sleeping device is not woken for it."""
    resizable = {}
    for address, detail in host.details.items():
        function = host.functions[address]
        if function.driver is None or "vfio" not in function.driver or detail.power_state == "D3cold":
            continue
        bars = []
        for bar in range(6):
            sizes = tree.read(f"{DEVICES}/{address}/resource{bar}_resize", 32)
            try:
                possible = int(sizes or b"0", 16)
            except ValueError:
                continue
            if possible:  # bit n stands for 2**n MiB
                bars.append(Resizable(bar, 1 << (possible.bit_length() - 1 + 20)))
        if bars:
            resizable[address] = tuple(bars)
    return resizable


def ask_version(programs: Iterable[str], env: Mapping[str, str]) -> Version | None:
    """The output of the first existing program for ``--version``; None if none exists or answers."""
    places = [*env.get("PATH", os.defpath).split(os.pathsep), "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/libexec"]
    for program in programs:
        path = shutil.which(program, path=os.pathsep.join(filter(None, places)))
        if path is None:
            continue
        try:
            done = subprocess.run(  # noqa: S603  # a program by its full path, without a shell
                [path, "--version"], capture_output=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.SubprocessError):
            continue
        printed = re.search(
            rb"(?:version |\(libvirt\) |Kubernetes v|containerd(?:/containerd(?:/v2)?|\.io) v?)"
            rb"(\d{1,3}(?:\.\d{1,3}){1,3})",
            done.stdout,
        )
        if printed:
            return tuple(map(int, printed[1].split(b".")))
    return None
