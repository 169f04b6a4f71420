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
from contextlib import contextmanager
from pathlib import Path

from tests.kernel import sysfs
from tests.kernel.guests import read_listing
from tests.kernel.machine import SHARE
from tests.kernel.pod import observed
from tests.kernel.pod.manifests import RESOURCE, VARIABLE, launcher, plugin_config
from tests.kernel.pod.node import SECONDS, Failed, Node, until
from tests.kernel.pod.observed import Observed, PodSeen

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


def main(image: Path, kernel: Path, node: Node) -> None:
    """All of it; what was seen is left for the host.

    Raises:
        Failed: a step.
    """
    [card] = sysfs.cards()
    with step("the machine is a node: control groups, an address"):
        node.prepare()
    with step("the cluster is up: etcd, API server, scheduler, controller manager, containerd, kubelet"):
        node.up()
    with step("the launcher's image is unpacked"):
        node.load(image)
    with step("launcherkit-plugin has bound the card to vfio-pci, and the node offers it"):
        plugin = start_plugin(node)
        until(lambda: node.allocatable(RESOURCE) == 1, f"{RESOURCE} on offer", [plugin], pause=2)
    members = {address: sysfs.driver(address) or "" for address in sysfs.members(card.display)}
    detail("\n".join(f"{address}  {driver}" for address, driver in members.items()))
    group = sysfs.group(card.display) or ""

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
    observed.write(
        Observed(
            card.display, members, group, first.seen(first_held), waiting, second.seen(second_held), node.held(RESOURCE)
        ),
        SHARE,
    )
    plugin.terminate()
    plugin.wait()


def start_plugin(node: Node) -> subprocess.Popen[bytes]:
    config = SHARE / "plugin.yaml"
    config.write_text(json.dumps(plugin_config()))  # JSON is YAML
    command = [sys.executable, "-m", "launcherkit_plugin", "serve", "--config", str(config)]
    return node.start(*command, log=SHARE / "plugin.log")


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
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), Node(Path(sys.argv[3]), Path(sys.argv[4])))
    except Failed as failure:
        say(f"failed: {failure}")
        for log in sorted(SHARE.glob("*.log")):
            detail(f"{log.name}: " + " | ".join(log.read_text(errors="replace").splitlines()[-15:]))
        sys.exit(1)
    finally:
        os.sync()
