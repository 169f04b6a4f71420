"""From pod to guest, in the machine: each step as it is done, with the time that it took.

`python -m tests.kernel.pod.inside` is run by `run.py`, and nowhere else: it makes its machine a node.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.kernel import sysfs
from tests.kernel.guests import read_listing
from tests.kernel.machine import SHARE
from tests.kernel.pod import observed
from tests.kernel.pod.manifests import NAMESPACE, NODE_LABEL, RESOURCE, VARIABLE, component, launcher, plugin
from tests.kernel.pod.node import SECONDS, Failed, Node, until
from tests.kernel.pod.observed import Observed, PluginSeen, PodSeen

FIRST, SECOND = "gpu-vm", "next-vm"
_CONTAINER = "cat /proc/1/status; env; ls -d /dev/vfio/*; ulimit -l"


@contextmanager
def step(what: str) -> Iterator[None]:
    """Say what is done, and when it is done how long it took."""
    began = time.monotonic()
    yield
    say(f"{time.monotonic() - began:6.1f} s  {what}")


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  this is what the machine's console is for


def detail(text: str) -> None:
    for line in text.splitlines():
        say(f"{'':10}{line}")


def main(kernel: Path, node: Node) -> None:
    """All of it; what was seen is left for the host.

    Raises:
        Failed: a step.
    """
    [card] = sysfs.cards()
    with step("the machine is a node: control groups, an address, images"):
        node.prepare("/dev/vda")
    with step("the cluster is up: etcd, API server, scheduler, controller manager, containerd, kubelet"):
        node.up()
    daemon = Plugin(node, card.display)
    with step("the DaemonSet's plugin has bound the card to vfio-pci, and the node offers it"):
        daemon.apply()
        until(lambda: node.allocatable(RESOURCE) == 1, f"{RESOURCE} on offer", pause=2)
    daemon.look()

    first = Launched(node, FIRST)
    with step(f"kubectl apply: pod {FIRST} is scheduled, its container runs"):
        first.apply(kernel)
    first.look()
    with step("launcherkit run: libvirt is up, the domain is defined, the guest has booted"):
        first.wait_for("guest: waiting")
    detail(first.said("guest: pci"))
    first_held = node.held(RESOURCE)
    detail(f"the kubelet says: {', '.join(f'{device} is of {pod}' for device, pod in first_held.items())}")

    # From here on a container may lock as much memory as it likes, so the next pod does without SYS_RESOURCE.
    node.unlimit_locked_memory()
    second = Launched(node, SECOND)
    with step(f"kubectl apply: pod {SECOND} has to wait, there is no other card"):
        second.create(kernel, raises_limit=False)
        waiting = second.why_not_scheduled()
    detail(waiting)

    with step(f"kubectl delete: the guest of {FIRST} is shut down, the card is free"):
        first.delete()
        until(lambda: FIRST not in str(node.held(RESOURCE)), "the card given back")
    detail(first.said("note: ", "guest: off"))
    with step(f"pod {SECOND}, without SYS_RESOURCE, has the same card in its container"):
        second.started()
    second.look()
    with step("its guest has booted"):
        second.wait_for("guest: waiting")
    detail(second.said("guest: pci"))
    second_held = node.held(RESOURCE)
    with step(f"kubectl delete: the guest of {SECOND} is shut down, nobody has the card"):
        second.delete()
        until(lambda: not node.held(RESOURCE), "the card given back")
    held_afterwards = node.held(RESOURCE)
    with step("component give-back: the card has the drivers that it had"):
        plugin = daemon.give_back()
    seen = first.seen(first_held), waiting, second.seen(second_held), held_afterwards
    observed.write(Observed(card.display, sysfs.group(card.display) or "", plugin, *seen), SHARE)


def drivers(function: str) -> dict[str, str]:
    """The members of a function's IOMMU group with their drivers."""
    return {address: sysfs.driver(address) or "" for address in sysfs.members(function)}


class Plugin:
    """The DaemonSet of deploy/plugin with the component `binding`, and a function whose IOMMU group it is to bind."""

    def __init__(self, node: Node, function: str) -> None:
        self._node = node
        self._function = function
        self._before = drivers(function)
        self._offered: dict[str, str] = {}
        self._said: list[str] = []
        self._documents, base = plugin()
        self._daemon_set = self._patched(base, "binding")

    def _patched(self, daemon_set: object, name: str) -> object:
        """As kustomize merges a component's patch: kubectl has the same code."""
        patch = ("-p", json.dumps(component(name)))
        how = ("--local", "--type=strategic", "--output=json", "-f", "-")
        return json.loads(self._node.kubectl("patch", *how, *patch, given=daemon_set))

    def apply(self) -> None:
        self._node.kubectl("label", "node", "--all", NODE_LABEL)
        for document in (*self._documents, self._daemon_set):
            self._node.kubectl("apply", "-f", "-", given=document)
        where = ("daemonset/launcherkit-plugin", "--namespace", NAMESPACE)
        self._node.kubectl("rollout", "status", *where, f"--timeout={SECONDS}s")
        self._node.follow("logs", "--follow", *where, log=SHARE / "plugin.log")

    def look(self) -> None:
        """Look at the drivers, and into its container."""
        self._offered = drivers(self._function)
        detail("\n".join(f"{address}  {driver}" for address, driver in self._offered.items()))
        words = ("exec", "daemonset/launcherkit-plugin", "--namespace", NAMESPACE, "-c", "plugin", "--", "sh", "-c")
        # Process 1 is the node's, by hostPID.
        self._said = self._node.kubectl(*words, "grep CapEff /proc/self/status; touch /new 2>&1; true").splitlines()

    def give_back(self) -> PluginSeen:
        """Let it give back what it has bound; what was seen of it, to its end."""
        self._node.kubectl("apply", "-f", "-", given=self._patched(self._daemon_set, "give-back"))
        until(lambda: drivers(self._function) == self._before, f"drivers as before: {self._before}", pause=2)
        capabilities, root = self._said
        seen = int(capabilities.split()[1], 16), root
        return PluginSeen(self._before, self._offered, *seen, drivers(self._function))


class Launched:
    """A launcher pod, from its manifest to its end."""

    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self._name = name
        self._log = SHARE / f"{name}.log"
        self._follower: subprocess.Popen[bytes] | None = None
        self._looked = ""

    def create(self, kernel: Path, *, raises_limit: bool) -> None:
        items = launcher(self._name, kernel, raises_limit=raises_limit)
        self._node.kubectl("apply", "-f", "-", given={"apiVersion": "v1", "kind": "List", "items": items})

    def apply(self, kernel: Path) -> None:
        self.create(kernel, raises_limit=True)
        self.started()

    def started(self) -> None:
        """Wait for its container, and follow its log from then on."""
        self._wait("Ready")
        self._follower = self._node.follow("logs", "--follow", self._name, log=self._log)

    def why_not_scheduled(self) -> str:
        """Wait until the scheduler has refused it; its reason."""
        self._wait("PodScheduled=False")
        conditions = self._node.pod(self._name)["status"]["conditions"]
        return next(str(one["message"]) for one in conditions if one["type"] == "PodScheduled")

    def _wait(self, condition: str) -> None:
        # Asking again and again would take as much of an emulated processor as what is waited for.
        self._node.kubectl("wait", f"--for=condition={condition}", f"pod/{self._name}", f"--timeout={SECONDS}s")

    def look(self) -> None:
        """Look into the container."""
        self._looked = self._node.kubectl("exec", self._name, "--", "sh", "-c", _CONTAINER)
        for line in self._looked.splitlines():
            if line.startswith((VARIABLE, "/dev/", "CapEff")):
                detail(line)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def said(self, *beginnings: str) -> str:
        """The lines of its log that begin so; libvirt has a lot to say that doesn't matter here."""
        return "\n".join(line for line in self.log().splitlines() if line.startswith(beginnings))

    def wait_for(self, text: str) -> None:
        assert self._follower
        until(lambda: text in self.log(), f"{text!r} in the log of {self._name}", [self._follower])

    def delete(self) -> None:
        """Delete it; its log is whole afterwards."""
        assert self._follower
        self._node.kubectl("delete", "pod", self._name, "--wait=false")
        until(lambda: self._follower is None or self._follower.poll() is not None, f"the end of {self._name}")

    def seen(self, held: dict[str, str]) -> PodSeen:
        lines = self._looked.splitlines()
        return PodSeen(
            variables=dict(line.partition("=")[::2] for line in lines if "_RESOURCE_" in line.partition("=")[0]),
            nodes=[line for line in lines if line.startswith("/dev/vfio/")],
            capabilities=next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")),
            locked_memory=lines[-1],
            listing=read_listing(self.log()),
            log=self.log(),
            held=held,
        )


if __name__ == "__main__":
    kernel, program, binaries = map(Path, sys.argv[1:])
    node = Node(program, binaries)
    try:
        main(kernel, node)
    except Failed as failure:
        say(f"failed: {failure}")
        with suppress(Failed, KeyError):  # there may be no cluster
            detail(node.kubectl("get", "events", "--all-namespaces"))
        for log in sorted(SHARE.glob("*.log")):
            detail(f"{log.name}: " + " | ".join(log.read_text(errors="replace").splitlines()[-15:]))
        sys.exit(1)
    finally:
        os.sync()
