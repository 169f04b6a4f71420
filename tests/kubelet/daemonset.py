"""The device plugin as a cluster starts it: the DaemonSet of deploy/plugin, from its image."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tests.support.cluster import Cluster
from tests.support.images import archived
from tests.support.waiting import until
from tests.test_deploy_plugin import BASE, COMPONENTS
from tools.release.images import name_of

NAMESPACE = "launcherkit"
NAME = "launcherkit-plugin"
PROBE_SOCKET = "/run/launcherkit-probe/probe.sock"
_CLUSTER = COMPONENTS["cluster"]
_PATCHES = [COMPONENTS[name] / "daemonset.yaml" for name in ("cluster", "metrics")]
CONTAINERS = ("plugin", "cluster", "web")


class DaemonSet:
    """The base with the components `cluster` and `metrics`: containers with the devices, a token, and a port.

    Changed is what this machine and cluster have not got: the host is a tree of stand-ins, mounted at its own path; and
    the Service `kubernetes` has no effect there, so the pod has the node's network and the server's address.

    Args:
        configuration: the plugin's.
        root: the host's tree.
        folder: for files that the plugin writes.
        port: of the metrics.
    """

    def __init__(self, cluster: Cluster, configuration: Mapping[str, Any], root: Path, folder: Path, port: int) -> None:
        self._cluster = cluster
        self._documents = [
            *_documents(BASE / "namespace.yaml"),
            *_documents(BASE / "serviceaccount.yaml"),
            *_documents(_CLUSTER / "rbac.yaml"),
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": NAME, "namespace": NAMESPACE},
                "data": {"plugin.yaml": json.dumps(configuration)},  # which is YAML too
            },
        ]
        self._daemon_set = _changed(self._patched(), root, folder, port)
        self._archive = archived("plugin", folder)

    def _patched(self) -> dict[str, Any]:
        """As kustomize merges the components' patches: kubectl has the same code."""
        merged = (BASE / "daemonset.yaml").read_text()
        for path in _PATCHES:
            (patch,) = _documents(path)
            command = ("patch", "--local", "--type=strategic", "--output=json", "-f", "-", "-p", json.dumps(patch))
            merged = self._cluster.kubectl(*command, given=merged)
        daemon_set: dict[str, Any] = json.loads(merged)
        return daemon_set

    def start(self) -> None:
        """Load the image, and apply all of it."""
        self._cluster.load_image(self._archive)
        self._apply(*self._documents, self._daemon_set)

    def use(self, *options: str) -> None:
        """Start it anew, with options besides its own."""
        changed = json.loads(json.dumps(self._daemon_set))
        _container(changed, "plugin")["args"] += options
        self._apply(changed)

    def delete(self) -> None:
        """Take away all that `start` has made."""
        self._kubectl("delete", "daemonset", NAME, "--ignore-not-found", "--wait=false")
        everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": self._documents})
        self._cluster.kubectl("delete", "--ignore-not-found", "-f", "-", given=everything)

    def kill(self) -> None:
        """Kill the daemon, whatever it is doing; the kubelet starts its container again."""
        before = self._status("plugin")["restartCount"]
        os.kill(self.pid("plugin"), signal.SIGKILL)
        until(lambda: self._status("plugin").get("restartCount", 0) > before or not self.running, "its end")

    @property
    def running(self) -> bool:
        """Whether all of its containers run."""
        return all("running" in self._status(name).get("state", {}) for name in CONTAINERS)

    def logs(self) -> str:
        """What its containers wrote, for a test that fails."""
        return self._kubectl("logs", f"daemonset/{NAME}", "--all-containers", "--tail=50")

    def shell(self, container: str, script: str) -> str:
        """What a script prints in one of its containers, errors too."""
        return self.exec(container, "sh", "-c", f"({script}) 2>&1; true")

    def exec(self, container: str, *command: str) -> str:
        """What a program prints in one of its containers.

        Raises:
            tests.support.cluster.Refused: it failed.
        """
        return self._kubectl("exec", self.pod()["metadata"]["name"], "-c", container, "--", *command)

    def pod(self) -> dict[str, Any]:
        """Its pod that isn't being deleted; empty while there is none."""
        found = json.loads(self._kubectl("get", "pods", "--output=json"))["items"]
        return next((pod for pod in found if "deletionTimestamp" not in pod["metadata"]), {})

    def pid(self, container: str) -> int:
        """Of the first process of a container, on this machine."""
        identity = self._status(container)["containerID"].rpartition("/")[2]
        for process in Path("/proc").iterdir():
            with suppress(OSError, StopIteration):
                if process.name.isdigit() and identity in (process / "cgroup").read_text():
                    lines = (process / "status").read_text().splitlines()
                    if next(line for line in lines if line.startswith("NSpid:")).split()[-1] == "1":
                        return int(process.name)
        raise AssertionError(f"no process of {container} {identity}")

    def _status(self, container: str) -> dict[str, Any]:
        statuses = self.pod().get("status", {}).get("containerStatuses", ())
        return next((status for status in statuses if status["name"] == container), {})

    def _apply(self, *documents: Mapping[str, Any]) -> None:
        given = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
        self._cluster.kubectl("apply", "-f", "-", given=given)

    def _kubectl(self, *arguments: str) -> str:
        return self._cluster.kubectl("--namespace", NAMESPACE, *arguments)


def _changed(daemon_set: dict[str, Any], root: Path, folder: Path, port: int) -> dict[str, Any]:
    spec = daemon_set["spec"]["template"]["spec"]
    spec["hostNetwork"] = True
    plugin, speaker, web = (_container(daemon_set, name) for name in CONTAINERS)
    web["args"] = [argument.replace(":8080", f"127.0.0.1:{port}") for argument in web["args"]]
    plugin["args"] += [f"--host={root}", f"--dev-root={root}"]
    (metrics,) = web["ports"]
    metrics["containerPort"] = port
    plugin["volumeMounts"].append({"name": "host", "mountPath": str(root), "readOnly": True})
    spec["volumes"].append({"name": "host", "hostPath": {"path": str(root), "type": "Directory"}})
    paths = {"vfio": root / "dev/vfio", "features": folder}
    for volume in spec["volumes"]:
        if volume["name"] in paths:
            volume["hostPath"]["path"] = str(paths[volume["name"]])
    server = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    speaker["env"] += [{"name": name, "value": value} for name, value in server.items()]
    for container in (plugin, speaker, web):
        container["image"] = name_of("plugin")
    return daemon_set


def _container(daemon_set: Mapping[str, Any], name: str) -> dict[str, Any]:
    containers: list[dict[str, Any]] = daemon_set["spec"]["template"]["spec"]["containers"]
    return next(container for container in containers if container["name"] == name)


def _documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))
