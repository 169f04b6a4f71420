"""A node without Kubernetes: the lab's double of a kubelet, and runc. Plugin and pods are their images."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcherkit_lab.container.image import read_config
from launcherkit_lab.container.manifest import make_volumes, pod_of
from launcherkit_lab.container.oci import UNLIMITED, Extras, specification
from launcherkit_lab.kubelet import Holding, Kubelet, NotAdmitted
from launcherkit_lab.sysfs import modprobe
from launcherkit_plugin.kubelet.client import list_pod_devices
from tests.kernel.pod.manifests import NAMESPACE, RESOURCE, merged
from tests.kernel.pod.node import SECONDS, Failed, do, until

_KUBELET = Path("/var/lib/kubelet")
_PLACE = Path("/run/pods")
_PLUGIN = "launcherkit-plugin"


class BareNode:
    """What is asked of `Node`, done by a double and runc.

    Args:
        images: configuration of each image, by its name.
        disks: of each image, the device with its files.
    """

    parts = "a double of the kubelet stands for Kubernetes, runc starts containers"
    create, remove = "Allocate and runc", "SIGTERM"
    kubelet_dir = _KUBELET

    def __init__(self, images: Mapping[str, Mapping[str, Any]], disks: Mapping[str, str]) -> None:
        self._images = images
        self._disks = disks
        self._kubelet: Kubelet | None = None
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._pods: dict[str, list[dict[str, Any]]] = {}
        self._plugin: list[dict[str, Any]] = []
        self._locked = Extras(volumes={}).locked

    def prepare(self) -> None:
        """What a container runtime wants: the images' files, a file system that layers can be stacked on."""
        modprobe("vfio-pci", "virtio_blk", "ext4", "overlay")
        _PLACE.mkdir()
        do("mount", "-t", "tmpfs", "-o", "mode=755", "pods", str(_PLACE))
        for name, disk in self._disks.items():
            (_PLACE / name).mkdir()
            do("mount", "-t", "ext4", "-o", "ro", disk, str(_PLACE / name))

    def up(self) -> None:
        """Serve as the kubelet."""
        self._kubelet = Kubelet(_KUBELET, patience=SECONDS)
        self._kubelet.others.append((NAMESPACE, _PLUGIN))
        self._kubelet.start()

    @property
    def kubelet(self) -> Kubelet:
        assert self._kubelet is not None
        return self._kubelet

    def merged(self, document: Any, patch: Any) -> Any:
        """A document with a strategic merge patch."""
        return merged(document, patch)

    def start_plugin(self, documents: list[dict[str, Any]], daemon_set: Any, log: Path) -> None:
        self._plugin = documents
        self.change_plugin(daemon_set, log)

    def change_plugin(self, daemon_set: Any, log: Path) -> None:
        """Replace its pod, as a DaemonSet does."""
        self._end(_PLUGIN)
        template = daemon_set["spec"]["template"]
        pod = {"kind": "Pod", "metadata": {"name": _PLUGIN, "namespace": NAMESPACE}, "spec": template["spec"]}
        self._run("plugin", pod, self._plugin, log)

    def in_plugin(self, script: str) -> str:
        return self._exec(_PLUGIN, script)

    def create_pod(self, name: str, items: list[dict[str, Any]]) -> None:
        self._pods[name] = items

    def why_not_scheduled(self, name: str) -> str:
        """Admit it, or say why not."""
        try:
            self.kubelet.admit(name, [("launcher", RESOURCE, 1)])
        except NotAdmitted as reason:
            return f"Insufficient {RESOURCE}: {reason}"
        return ""

    def start_pod(self, name: str, log: Path) -> subprocess.Popen[bytes]:
        """Start its container as soon as it is admitted; the process ends with it."""
        until(lambda: not self.why_not_scheduled(name), f"{name} admitted")
        (holding,) = (one for one in self.kubelet.holdings if one.pod == name)
        *others, pod = self._pods[name]
        process = self._run("launcher", pod, others, log, holding)
        until(lambda: self._state(name) == "running", f"{name} running", [process])
        return process

    def in_pod(self, name: str, script: str) -> str:
        return self._exec(name, script)

    def delete_pod(self, name: str) -> None:
        """End its container, in good order; its devices are free then."""
        self._end(name)
        self.kubelet.delete(name)

    def allocatable(self, resource: str) -> int:
        return self.kubelet.allocatable(resource)

    def held(self, resource: str) -> dict[str, str]:
        """Device ID to the pod that has it, from the double's PodResources.

        Raises:
            Failed: the plugin has done what a kubelet would choke on.
        """
        if self.kubelet.complaints:
            raise Failed("\n".join(self.kubelet.complaints))
        holders = asyncio.run(list_pod_devices(f"{_KUBELET}/pod-resources/kubelet.sock")).held.get(resource, {})
        return {device: holder.pod for device, holder in holders.items()}

    def unlimit_locked_memory(self) -> None:
        """Let containers that are started from now on have all the locked memory they like."""
        self._locked = UNLIMITED

    def events(self) -> str:
        """Nothing: a complaint of the double is a failure of its own."""
        return ""

    def _run(
        self, image: str, pod: dict[str, Any], others: list[dict[str, Any]], log: Path, holding: Holding | None = None
    ) -> subprocess.Popen[bytes]:
        name = pod["metadata"]["name"]
        bundle = _PLACE / "bundles" / name
        for part in ("rootfs", "upper", "work"):
            (bundle / part).mkdir(parents=True, exist_ok=True)
        if not (bundle / "config.json").exists():
            layers = f"lowerdir={_PLACE / image},upperdir={bundle / 'upper'},workdir={bundle / 'work'}"
            do("mount", "-t", "overlay", "-o", layers, "overlay", str(bundle / "rootfs"))
        read = pod_of([pod, *others])
        shutil.rmtree(bundle / "volumes", ignore_errors=True)
        volumes = make_volumes(read, bundle / "volumes")
        extras = Extras(volumes, locked=self._locked, kubelet_dir=self.kubelet_dir)
        if holding is not None:
            nodes = [device.host_path for device in holding.answer.devices]
            extras = extras._replace(env=dict(holding.answer.envs), nodes=nodes)
        (bundle / "config.json").write_text(
            json.dumps(
                specification(read, read.containers[0], read_config(self._images[image]), bundle / "rootfs", extras)
            )
        )
        with open(log, "ab") as file:
            words = ["runc", "run", "--bundle", str(bundle), name]
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        self._running[name] = process
        return process

    def _exec(self, name: str, script: str) -> str:
        return do("runc", "exec", name, "sh", "-c", script)

    def _state(self, name: str) -> str:
        found = {one["id"]: str(one["status"]) for one in json.loads(do("runc", "list", "--format", "json")) or ()}
        return found.get(name, "")

    def _end(self, name: str) -> None:
        if process := self._running.pop(name, None):
            do("runc", "kill", name, "TERM")
            until(lambda: process.poll() is not None, f"the end of {name}")
