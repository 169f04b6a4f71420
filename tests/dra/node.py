"""`launcherkit-plugin serve` as a DRA driver, a process between a kubelet, a cluster and a runtime of the double."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcherkit_lab.kubelet import Kubelet, running_kubelet
from tests.dra.api import NODE, Api
from tests.dra.cluster import Cluster
from tests.dra.held import Pod
from tests.dra.manager import PATIENT, Manager, running_manager
from tests.dra.plugins import Pace
from tests.dra.runtime import Container, Runtime
from tests.dra.scheduler import DeviceClass, Scheduler, requested
from tests.support.dying import Life, command, life
from tests.support.forked import PLUGIN
from tests.support.hooks import ROOT, ServerProcess
from tests.support.waiting import PATIENCE

DRIVER = "pci.launcherkit.io"
GPU = "example.com/GPU"
RULE = {"name": GPU, "select": [{"vendors": ["10de"], "classes": ["03"]}], "dra": True}
PYTHON = (sys.executable, "-m", "launcherkit_plugin")
"""The driver's program in a Python of its own, whose memory is no other's."""
ENV = {
    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugin'}",
    "PATH": os.environ.get("PATH", os.defpath),
    "NODE_NAME": NODE,
}


class Node:
    """A node with its driver; `running` makes one.

    Args:
        folder: for all that is neither the host's nor the kubelet's.
        host: where ``sys/`` and ``dev/`` are.
        manager: the kubelet's DRA manager.
        kubelet: the same kubelet's device manager.
    """

    def __init__(
        self, folder: Path, host: Path, manager: Manager, kubelet: Kubelet, scheduler: Scheduler, cluster: Cluster
    ) -> None:
        self.folder = folder
        self.manager = manager
        self.kubelet = kubelet
        self.api = manager.api
        self.runtime = manager.runtime
        self.scheduler = scheduler
        self.cluster = cluster
        self.process: ServerProcess | None = None
        self._made: list[tuple[str, str, str]] = []
        self._host = host
        self._earlier = 0
        """The registrations that there were before the driver was started."""
        self._config = folder / "plugin.yaml"
        self.configure(resources=[RULE])

    def configure(self, **values: object) -> None:
        """Replace the configuration; what isn't named is as always."""
        places = {"cdi": {"folder": str(self.folder / "cdi")}, "rescanSeconds": 1, "dra": {}}
        new = self._config.with_suffix(".new")
        new.write_text(json.dumps(places | values))
        new.rename(self._config)

    def start(
        self,
        *,
        wait: bool = True,
        env: Mapping[str, str] = {},
        socket: str = "cluster.sock",
        program: Sequence[str] = (PLUGIN,),
    ) -> ServerProcess:
        """Start the driver, until its slices are there."""
        process = self._start([*program, *self._arguments(socket)], env)
        if wait:
            self.wait_until_ready()
        return process

    def live(self, below: Sequence[str | Path], die_at: int) -> Life:
        """Start the driver, and wait until it is killed at a change; see `tests.support.dying.live`."""
        report = self.folder / "life"
        process = self._start(command([*PYTHON, *self._arguments("cluster.sock")], below, die_at, report), {})
        process.process.wait(10 * PATIENCE)
        self._forget()
        return life(report)

    def _arguments(self, socket: str) -> list[str]:
        host = [] if self._host == Path("/") else ["--host", self._host, "--dev-root", self._host]
        places = {
            "--config": self._config,
            "--kubelet-dir": self.manager.registry.parent,
            "--cluster-socket": self.folder / socket,
            "--ledger": self.folder / "ledger",
            "--state": self.folder / "state",
            "--features-dir": self.folder / "features.d",
        }
        return ["serve", *(str(part) for pair in places.items() for part in pair), *map(str, host)]

    def _start(self, words: Sequence[str], env: Mapping[str, str]) -> ServerProcess:
        assert self.process is None
        self._earlier = self.manager.registrations
        self.process = ServerProcess(words, ENV | dict(env))
        return self.process

    @contextmanager
    def replaced(self, **env: str) -> Iterator[ServerProcess]:
        """A rolling update: another process, in a pod of its own, while the former one still runs; gives that."""
        first, self.process = self.process, None
        assert first is not None
        try:
            with Cluster(self.folder / "second.sock", self.api):
                self.start(env=env, socket="second.sock")
                yield first
                self.close()
        finally:
            first.close()

    def wait_until_ready(self) -> None:
        """The driver is registered, and has published something.

        Who was killed stays registered until the kubelet sees the new socket: that connection may be to either.
        """
        self.wait(
            lambda: (
                self.manager.registrations > self._earlier and DRIVER in self.manager.drivers() and self.api.slices()
            ),
            "driver and slices",
        )

    def kill(self) -> None:
        """At once, whatever it is doing."""
        assert self.process is not None
        self.process.process.kill()
        self._forget()

    def _forget(self) -> None:
        process, self.process = self.process, None
        assert process is not None
        process.close()
        self.wait(lambda: not self.manager.instances(DRIVER), "the connection lost")

    def end(self) -> int:
        """In good order; gives the exit code."""
        process, self.process = self.process, None
        assert process is not None
        code = process.end()
        process.close()
        return code

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def close(self) -> None:
        if self.process is not None:
            self.kill()

    def wait(self, condition: Any, what: str) -> None:
        """Wait until something holds; what the driver has said is shown where it never does."""
        try:
            self.manager.wait(condition, what)
        except AssertionError as never:
            reported = self.process.reported() if self.process is not None else "it doesn't run"
            raise AssertionError(f"{never}; the driver says:\n{reported}") from None

    # Claims and pods

    def claim(self, name: str, *requests: Mapping[str, Any], **more: Any) -> str:
        """A claim for one device, or for what is requested; its UID."""
        made = self.api.create_claim(name, requests or [requested("gpu", "gpu")], **more)
        uid = str(made["metadata"]["uid"])
        self._made.append(("default", name, uid))
        return uid

    def clear(self) -> None:
        """End all pods, and give back what all claims had; nothing of them is left."""
        for pod in self.manager.pods():
            self.delete(pod)
        answers = self.manager.plugin(DRIVER).call("NodeUnprepareResources", self._made, PATIENCE)
        assert {answer.error for answer in answers.values()} <= {""}
        for _, name, _ in self._made:
            self.api.delete_claim(name)
        self._made = []
        assert self.left() == set()

    def pod(self, name: str, *claims: str, request: str = "") -> Pod:
        """A pod that is scheduled, with one container that has all claims.

        Raises:
            Unschedulable: the scheduler's.
        """
        for claim in claims:
            self.scheduler.reserve(claim, name)
        return Pod(name, claims, {"compute": [(claim, request) for claim in claims]})

    def run(self, pod: Pod, *, patience: float = PATIENCE) -> Container:
        """Start a pod; gives its container."""
        return self.manager.run(pod, patience=patience)["compute"]

    def delete(self, pod: Pod, *, patience: float = PATIENCE) -> None:
        """End a pod, and take its claims back."""
        self.manager.delete(pod, patience=patience)
        for claim in pod.claims:
            self.scheduler.release(claim, pod.name)

    def answer(self, claim: str, uid: str, method: str = "NodePrepareResources") -> Any:
        """The driver's own answer for a claim, whatever the kubelet would think of it."""
        return self.manager.plugin(DRIVER).call(method, [("default", claim, uid)], PATIENCE)[uid]

    def given(self, claim: str) -> list[str]:
        """The devices that are allocated to a claim."""
        allocation = self.api.claim("default", claim)["status"]["allocation"]
        return [result["device"] for result in allocation["devices"]["results"]]

    def left(self) -> set[str]:
        """What the driver has left in its folders for claims: CDI devices, and files beside what it has for itself."""
        own = self.manager.registry.parent / "plugins" / DRIVER
        stay = {"dra.sock", "serialize.lock", "boot"}
        files = {str(path.relative_to(own)) for path in own.rglob("*") if path.is_file() and path.name not in stay}
        return files | {name for name in self.runtime.names() if name.startswith(f"{DRIVER}/")}


@contextmanager
def running_node(
    host: Path,
    *,
    folder: Path | None = None,
    classes: Mapping[str, DeviceClass] | None = None,
    pace: Pace = PATIENT,
    chance: random.Random | None = None,
) -> Iterator[Node]:
    """A node whose kubelet runs and whose driver doesn't yet; nobody had anything to complain of in the end."""
    with tempfile.TemporaryDirectory(prefix="dra-", dir=folder) as name:
        place = Path(name)
        (place / "cdi").mkdir()
        api = Api()
        runtime = Runtime(place / "cdi")
        scheduler = Scheduler(api, classes or {"gpu": DeviceClass(DRIVER)}, chance)
        with (
            running_manager(place / "k", api, runtime, pace) as manager,
            running_kubelet(place / "k") as kubelet,
            Cluster(place / "cluster.sock", api) as cluster,
        ):
            node = Node(place, host, manager, kubelet, scheduler, cluster)
            try:
                yield node
                assert cluster.complaints == []
            finally:
                node.close()
