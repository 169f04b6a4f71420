"""Makes the machine a node of a cluster: the cluster that the tests are given, started in here."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from launcherkit_lab.sysfs import modprobe
from launcherkit_plugin.kubelet.client import list_pod_devices
from tests.kernel.pod.manifests import NAMESPACE

_PATIENT = """
import runpy, sys, time
real = time.monotonic
time.monotonic = lambda: real() / 5
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a program of Python with a slower clock: what it waits for takes longer on an emulated processor."""
_STATE = Path("/run/cluster")
_PLUGIN = ("daemonset/launcherkit-plugin", "--namespace", NAMESPACE)
_CGROUPS = Path("/sys/fs/cgroup")
SECONDS = 600
"""The longest that anything here is waited for."""


class Failed(Exception):
    """A step did not come to its end; the text says what was seen."""


class PodNode(Protocol):
    """A node that runs the plugin and pods, by Kubernetes or by what stands in for it."""

    parts: str
    """What it is made of."""
    create: str
    """How a pod is made; ``remove``: how it is ended."""
    remove: str

    def prepare(self) -> None:
        """Make of the machine what a node is."""

    def up(self) -> None:
        """Start it."""

    @property
    def kubelet_dir(self) -> Path:
        """The kubelet's folder, as it is seen from outside."""

    def merged(self, document: Any, patch: Any) -> Any:
        """A document with a strategic merge patch."""

    def start_plugin(self, documents: list[dict[str, Any]], daemon_set: Any, log: Path) -> None:
        """Start the DaemonSet, with what it needs beside it."""

    def change_plugin(self, daemon_set: Any, log: Path) -> None:
        """Replace the DaemonSet."""

    def in_plugin(self, script: str) -> str:
        """What a script prints in the plugin's container."""

    def create_pod(self, name: str, items: list[dict[str, Any]]) -> None:
        """Ask for a pod; the last of the items is it."""

    def why_not_scheduled(self, name: str) -> str:
        """Wait until it has been refused; the reason."""

    def start_pod(self, name: str, log: Path) -> subprocess.Popen[bytes]:
        """Wait for its container; gives what writes its log, and ends with it."""

    def in_pod(self, name: str, script: str) -> str:
        """What a script prints in its container."""

    def delete_pod(self, name: str) -> None:
        """End it."""

    def allocatable(self, resource: str) -> int:
        """How many devices are on offer."""

    def held(self, resource: str) -> dict[str, str]:
        """Device ID to the pod that has it, from PodResources."""

    def unlimit_locked_memory(self) -> None:
        """Let containers that are started from now on have all the locked memory they like."""

    def events(self) -> str:
        """What has happened, for a step that failed."""


class Node:
    """The cluster, and what is asked of it.

    Args:
        program: `cluster` of the folder that LAUNCHERKIT_TEST_CLUSTER names.
        binaries: where it has its own, on the host.
        disk: has containerd's own folder, with images; empty: there are none yet.
    """

    parts = "etcd, API server, scheduler, controller manager, containerd, kubelet"
    create, remove = "kubectl apply", "kubectl delete"

    def __init__(self, program: Path, binaries: Path, disk: str = "") -> None:
        self._cluster = [str(program), "--state", str(_STATE / "state")]
        self._binaries = binaries
        self._disk = disk
        self._places: dict[str, str] = {}

    def prepare(self) -> None:
        """What a kubelet wants of a node: control groups, an address, a file system that layers can be stacked on."""
        _mount_cgroups()
        modprobe("dummy")
        modprobe("vfio-pci")  # which a node loads at boot: the plugin's pod may not
        for words in ("link add node0 type dummy", "addr add 10.88.0.2/24 dev node0", "link set node0 up"):
            do("busybox", "ip", *words.split())
        do("busybox", "ip", "route", "add", "default", "via", "10.88.0.1")  # its address is that of the default route
        (_STATE / "state").mkdir(parents=True)
        do("mount", "-t", "tmpfs", "-o", "mode=755,size=75%", "cluster", str(_STATE))
        (_STATE / "state").mkdir()
        (_STATE / "state" / "bin").symlink_to(self._binaries)
        if self._disk:
            modprobe("virtio_blk", "ext4")
            (_STATE / "state" / "containerd").mkdir()
            do("mount", "-t", "ext4", self._disk, str(_STATE / "state" / "containerd"))

    def up(self, what: Literal["cluster", "standalone"] = "cluster") -> None:
        """Start it; again where it gave up waiting, which happens on a host that is busy with other things.

        Standalone is a kubelet by itself, which runs the pods that it finds in `manifests`.
        """
        program, *words = self._cluster
        patient = (sys.executable, "-c", _PATIENT, program) if _is_python(Path(program)) else (program,)
        for _ in range(2):
            with suppress(Failed):
                do(*patient, *words, "up", what)
                break
        else:
            do(*patient, *words, "up", what)
        reported = do(*self._cluster, "env")
        self._places = dict(word.partition("=")[::2] for line in reported.splitlines() for word in shlex.split(line))

    @property
    def kubelet_dir(self) -> Path:
        """The kubelet's folder, as it is seen from outside."""
        return Path(self._places["CLUSTER_KUBELET_DIR"])

    @property
    def manifests(self) -> Path:
        """Where a kubelet by itself finds its pods."""
        return Path(self._places["CLUSTER_MANIFESTS"])

    def start(self, *command: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a program where the kubelet's folders are at their usual paths."""
        with open(log, "wb") as file:
            words = [*self._cluster, "run", "--", *command]
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)

    def merged(self, document: Any, patch: Any) -> Any:
        """As kustomize merges a component's patch: kubectl has the same code."""
        how = ("--local", "--type=strategic", "--output=json", "-f", "-", "-p", json.dumps(patch))
        return json.loads(self.kubectl("patch", *how, given=document))

    def start_plugin(self, documents: list[dict[str, Any]], daemon_set: Any, log: Path) -> None:
        """Apply all of it, and wait for its pod."""
        for document in (*documents, daemon_set):
            self.kubectl("apply", "-f", "-", given=document)
        self.kubectl("rollout", "status", *_PLUGIN, f"--timeout={SECONDS}s")
        self.follow("logs", "--follow", *_PLUGIN, log=log)

    def change_plugin(self, daemon_set: Any, log: Path) -> None:
        """Apply it."""
        self.kubectl("apply", "-f", "-", given=daemon_set)

    def in_plugin(self, script: str) -> str:
        """What a script prints in its container."""
        return self.kubectl("exec", *_PLUGIN, "-c", "plugin", "--", "sh", "-c", script)

    def create_pod(self, name: str, items: list[dict[str, Any]]) -> None:
        """Apply it, with what belongs to it."""
        self.kubectl("apply", "-f", "-", given={"apiVersion": "v1", "kind": "List", "items": items})

    def why_not_scheduled(self, name: str) -> str:
        """Wait until the scheduler has refused it; its reason."""
        self._wait(name, "PodScheduled=False")
        conditions = json.loads(self.kubectl("get", "pod", name, "--output=json"))["status"]["conditions"]
        return next(str(one["message"]) for one in conditions if one["type"] == "PodScheduled")

    def start_pod(self, name: str, log: Path) -> subprocess.Popen[bytes]:
        """Wait for its container; gives what follows its log to its end."""
        self._wait(name, "Ready")
        return self.follow("logs", "--follow", name, log=log)

    def in_pod(self, name: str, script: str) -> str:
        """What a script prints in its container."""
        return self.kubectl("exec", name, "--", "sh", "-c", script)

    def delete_pod(self, name: str) -> None:
        """Delete it, and don't wait for its end."""
        self.kubectl("delete", "pod", name, "--wait=false")

    def events(self) -> str:
        """All that the cluster tells of."""
        with suppress(Failed, KeyError):  # there may be no cluster
            return self.kubectl("get", "events", "--all-namespaces")
        return ""

    def _wait(self, name: str, condition: str) -> None:
        # Asking again and again would take as much of an emulated processor as what is waited for.
        self.kubectl("wait", f"--for=condition={condition}", f"pod/{name}", f"--timeout={SECONDS}s")

    def kubectl(self, *arguments: str, given: object = None) -> str:
        """kubectl as the cluster's admin; ``given`` is its input, as JSON."""
        return do(*self._kubectl(), *arguments, given=None if given is None else json.dumps(given))

    def follow(self, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a kubectl that goes on."""
        with open(log, "wb") as file:
            command = [*self._kubectl(), *arguments]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)

    def allocatable(self, resource: str) -> int:
        [node] = json.loads(self.kubectl("get", "nodes", "--output=json"))["items"]
        return int(node["status"]["allocatable"].get(resource, 0))

    def held(self, resource: str) -> dict[str, str]:
        """Device ID to the pod that has it, from the kubelet's own PodResources."""
        socket = f"{self.kubelet_dir}/pod-resources/kubelet.sock"
        holders = asyncio.run(list_pod_devices(socket)).held.get(resource, {})
        return {device: holder.pod for device, holder in holders.items()}

    def unlimit_locked_memory(self) -> None:
        """Let containers that are started from now on have all the locked memory they like."""
        for pid in do("busybox", "pidof", "containerd").split():
            do("prlimit", "--pid", pid, "--memlock=unlimited:unlimited")

    def _kubectl(self) -> list[str]:
        return [f"{self._places['CLUSTER_BIN']}/kubectl", f"--kubeconfig={self._places['KUBECONFIG']}"]


def _mount_cgroups() -> None:
    """Version 1, which this kubelet knows."""
    do("umount", str(_CGROUPS))
    do("mount", "-t", "tmpfs", "-o", "mode=755", "cgroups", str(_CGROUPS))
    known = Path("/proc/cgroups").read_text().splitlines()[1:]
    for name, enabled in [(line.split()[0], line.split()[3]) for line in known]:
        if enabled == "1":
            (_CGROUPS / name).mkdir()
            do("mount", "-t", "cgroup", "-o", name, "cgroup", str(_CGROUPS / name))
    (_CGROUPS / "systemd").mkdir()
    do("mount", "-t", "cgroup", "-o", "none,name=systemd", "cgroup", str(_CGROUPS / "systemd"))


def do(*command: str, given: str | None = None) -> str:
    """What a program prints.

    Raises:
        Failed: it failed, or took too long.
    """
    found = shutil.which(command[0]) or command[0]
    try:
        done = subprocess.run(
            [found, *command[1:]],
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            timeout=SECONDS + 30,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"`{shlex.join(command)}` did nothing for {SECONDS} s") from None
    if done.returncode:
        raise Failed(f"`{shlex.join(command)}`: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def until(
    holds: Callable[[], object], what: str, alive: Sequence[subprocess.Popen[bytes]] = (), pause: float = 0.5
) -> None:
    """Wait until something holds.

    Raises:
        Failed: it took too long, or one of the processes that should see to it has ended.
    """
    deadline = time.monotonic() + SECONDS
    while not holds():
        if any(process.poll() is not None for process in alive):
            raise Failed(f"{what}: never seen; {os.path.basename(str(alive[0].args))} has ended")
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not seen in {SECONDS} s")
        time.sleep(pause)


def _is_python(program: Path) -> bool:
    """Whether a program's first line says that Python runs it."""
    with open(program, "rb") as file:
        return b"python" in file.readline()
