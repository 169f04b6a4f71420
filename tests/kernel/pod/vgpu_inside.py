"""vGPUs of pods on a real kubelet and a real mdev driver, in the machine, while the plugin is killed at its changes.

`python -m tests.kernel.pod.vgpu_inside` is run by test_vgpu_lifecycle.py, and nowhere else: its machine becomes a node,
with the kubelet of a cluster if it is given one, or else with the tests' double.
Pods come and go all the time. At every look each vGPU that the kubelet says a pod has is there, of the right type; in
the end, when no pod is left, none is.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import uuid4

from launcherkit.errors import UsageUnknown
from launcherkit_lab.driver.build import build
from launcherkit_lab.driver.vgpus import LARGE_NAME, MDEVS, SMALL, SMALL_NAME, Parent, vgpus
from launcherkit_lab.kubelet import NotAdmitted
from launcherkit_lab.machine import SHARE
from launcherkit_lab.packages import cache_folder, fetch
from tests.kernel.pod.bare import BareNode
from tests.kernel.pod.node import Failed, Node, until
from tests.support import confined, dying

RESOURCES = {f"nvidia.com/{name.replace(' ', '_')}": name for name in (SMALL_NAME, LARGE_NAME)}
MAX_PODS = 4
_REPORT = SHARE / "life"
_CONFIGURATION = {
    "rescanSeconds": 1,
    "vgpu": {
        "mediatedDevices": [{"types": [kind], "name": name, "mode": "dynamic"} for name, kind in RESOURCES.items()],
        "graceSeconds": 2,
    },
}


class Seen(NamedTuple):
    """What came to pass, so that a run in which nothing did isn't taken for a good one."""

    kills: int
    starts: int
    """Times that the plugin had all its resources registered before it was killed."""
    pods: int
    """Those that were seen to run with a vGPU."""
    looks: int
    """Times that everything was looked at."""
    removed: int
    """vGPUs that were there, and then were not."""


class Plugin:
    """The daemon under the seccomp profile that is shipped, as it is started on a node, but for its place."""

    def __init__(self, kubelet_dir: Path) -> None:
        config = SHARE / "plugin.yaml"
        config.write_text(json.dumps(_CONFIGURATION))
        command = [sys.executable, "-m", "launcherkit_plugin", "serve", "--config", str(config)]
        self._command = confined.command([*command, "--kubelet-dir", str(kubelet_dir)])
        self._folder = kubelet_dir / "device-plugins"
        self._sockets = [self._folder / f"kubevirt-{name.partition('/')[2]}.sock" for name in RESOURCES]
        self._left: list[tuple[int, int] | None] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, until it is killed with `kill`."""
        self._start(self._command)

    def start_to_die(self, chance: random.Random) -> None:
        """Start it, until it is about to create or remove a vGPU, or a socket of one of its two resources."""
        if chance.random() < 0.7:
            below, die_at = Path("/sys"), chance.randint(1, 4)
        else:
            below, die_at = self._folder, chance.randint(1, 2)
        _REPORT.unlink(missing_ok=True)
        self._start(dying.command(self._command, [below], die_at, _REPORT))

    def _start(self, command: list[str]) -> None:
        self._left = self._stamps()
        with open(SHARE / "plugin.log", "ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def registered(self) -> bool:
        """Whether it serves all resources: those that it left when it was killed may still be there."""
        return all(now not in (None, left) for now, left in zip(self._stamps(), self._left, strict=True))

    def _stamps(self) -> list[tuple[int, int] | None]:
        return [(stat.st_ino, stat.st_ctime_ns) if (stat := _stat(path)) else None for path in self._sockets]

    def has_died(self) -> bool:
        """Whether it was killed at a change; raises Failed: it has ended by itself."""
        assert self._process is not None
        if self._process.poll() is None:
            return False
        life = dying.life(_REPORT)
        if life.last is None:
            raise Failed(f"the plugin has ended by itself, with {life.code}")
        say(f"killed before {life.last.call} of {life.last.path}")
        return True

    def kill(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, "the plugin has ended by itself"
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def _stat(path: Path) -> os.stat_result | None:
    with suppress(FileNotFoundError):
        return path.stat()
    return None


class Pods(Protocol):
    """Pods that come and go on a kubelet."""

    parts: str
    """What kind of kubelet it is."""
    kubelet_dir: Path
    there: list[str]
    """Their names."""

    def add(self, resource: str) -> None:
        """One more, with a device."""

    def remove(self, name: str) -> None:
        """End one."""

    def held(self, resource: str) -> dict[str, str]:
        """Device ID to the pod that has it, from PodResources; raises USAGE_UNREADABLE."""


class StaticPods:
    """Of a real kubelet by itself: what is in its folder runs."""

    parts = "containerd and kubelet"

    def __init__(self, program: Path, binaries: Path) -> None:
        node = Node(program, binaries)
        node.prepare()
        node.up("standalone")
        self._folder = node.manifests
        self._names = iter(f"vm-{number}" for number in range(10**6))
        self.kubelet_dir = node.kubelet_dir
        self.held = node.held
        self.there: list[str] = []

    def add(self, resource: str) -> None:
        name = next(self._names)
        container = {
            "name": "compute",
            "image": "registry.local/busybox:1",
            "command": ["sleep", "100000"],
            "resources": {"limits": {resource: "1"}},
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "containers": [container]},
        }
        beside = self._folder.parent / f"{name}.yaml"
        beside.write_text(json.dumps(pod))
        beside.rename(self._folder / f"{name}.yaml")
        self.there.append(name)

    def remove(self, name: str) -> None:
        (self._folder / f"{name}.yaml").unlink()
        self.there.remove(name)


class AdmittedPods:
    """Of the tests' double of a kubelet, where nobody has a real one: they have devices, and no containers."""

    parts = "the tests' double"

    def __init__(self) -> None:
        self._node = BareNode({}, {})
        self._node.up()
        self._names = iter(f"vm-{number}" for number in range(10**6))
        self.kubelet_dir = self._node.kubelet_dir
        self.held = self._node.held
        self.there: list[str] = []

    def add(self, resource: str) -> None:
        name = next(self._names)
        with suppress(NotAdmitted):  # the plugin was killed meanwhile, or nothing is left
            self._node.kubelet.admit(name, [("compute", resource, 1)])
            self.there.append(name)

    def remove(self, name: str) -> None:
        self._node.kubelet.delete(name)
        self.there.remove(name)


class Watch:
    """Looks at the kubelet's word and at the kernel's, and holds them against each other."""

    def __init__(self, pods: Pods, parents: list[Parent], foreign: str) -> None:
        self._pods = pods
        self._parents = parents
        self._foreign = foreign
        self._before: set[str] = set()
        self.pods: set[str] = set()
        self.looks = 0
        self.removed = 0

    def look(self) -> None:
        """Raises Failed: a vGPU of a pod is not there, or somebody else's has gone."""
        held: dict[str, tuple[str, str]] = {}
        with suppress(UsageUnknown):  # a kubelet that is busy answers next time
            held = {
                device: (pod, kind)
                for resource, kind in RESOURCES.items()
                for device, pod in self._pods.held(resource).items()
            }
        there = self.there()
        for device, (pod, kind) in held.items():
            if device not in there and device in self.held_now():
                raise Failed(f"{pod} has {device}, and it is not there; there are: {sorted(there)}")
            with suppress(FileNotFoundError):
                name = (MDEVS / device / "mdev_type" / "name").read_text().strip()
                if name != kind:
                    raise Failed(f"{pod} has {device} as {kind}, and it is {name}")
            self.pods.add(pod)
        if self._foreign not in there:
            raise Failed(f"{self._foreign}, which the plugin didn't make, has gone")
        self.removed += len(self._before - there)
        self._before = there
        self.looks += 1

    def held_now(self) -> set[str]:
        """A pod may end between two looks."""
        with suppress(UsageUnknown):
            return {device for resource in RESOURCES for device in self._pods.held(resource)}
        return set()

    def there(self) -> set[str]:
        return {uuid for parent in self._parents for uuid in parent.made()}


def main(start: Callable[[], Pods], kills: int, seed: int) -> Seen:
    """All of it.

    Raises:
        Failed: something was lost, or stayed.
    """
    chance = random.Random(seed)
    cache = cache_folder(os.environ)
    with vgpus(build(fetch(cache).headers, cache)) as parents:
        pods = start()
        say(f"a kubelet is up: {pods.parts}")
        foreign = str(uuid4())
        parents[1].create(SMALL, foreign)
        watch, plugin, served = Watch(pods, parents, foreign), Plugin(pods.kubelet_dir), list[bool]()
        # It's chance whether a life is long enough to serve pods.
        for number in dying.rounds(kills, lambda: min(sum(served), len(watch.pods)) > kills / 10):
            plugin.start_to_die(chance)
            served.append(live(plugin, pods, watch, chance))
            watch.look()
            if number % 10 == 9:
                say(f"killed {number + 1} times; {len(watch.pods)} pods had vGPUs, {watch.removed} vGPUs were removed")
        plugin.start()
        settle(watch, pods, foreign)
        plugin.kill()
        parents[1].remove(foreign)
        return Seen(len(served), sum(served), len(watch.pods), watch.looks, watch.removed)


def live(plugin: Plugin, pods: Pods, watch: Watch, chance: random.Random) -> bool:
    """A life of the plugin, with pods coming and going; whether it had come to serve them."""
    served = False
    while not plugin.has_died():
        time.sleep(chance.uniform(0.1, 1.0))
        served = served or plugin.registered()
        if pods.there and (len(pods.there) >= MAX_PODS or chance.random() < 0.4):
            pods.remove(chance.choice(pods.there))
        elif served:  # the kubelet runs a pod whose resource it doesn't know, without a device
            pods.add(chance.choice(list(RESOURCES)))
        watch.look()
    return served


def settle(watch: Watch, pods: Pods, foreign: str) -> None:
    """What pods have stays; when there are none, nothing does but what others made."""
    for _ in range(3):
        time.sleep(3)
        watch.look()
    for name in list(pods.there):
        pods.remove(name)
    until(lambda: watch.there() == {foreign}, f"all vGPUs of pods gone, but for {watch.there()}")
    watch.look()


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  this is what the machine's console is for


if __name__ == "__main__":
    try:
        kills, seed, *places = sys.argv[1:]
        kubelet = partial(StaticPods, *map(Path, places)) if places else AdmittedPods
        found = main(kubelet, int(kills), int(seed))
        (SHARE / "seen.json").write_text(json.dumps(found._asdict()))
        say(str(found))
    except Failed as failure:
        say(f"failed: {failure}")
        sys.exit(1)
    finally:
        os.sync()
