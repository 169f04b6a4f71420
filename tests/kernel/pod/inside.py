"""From pod to guest, in the machine: each step as it is done, with the time that it took.

`python -m tests.kernel.pod.inside` is run by `run.py`, and nowhere else: it makes its machine a node.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.render import DEPLOY
from launcherkit_lab import sysfs
from launcherkit_lab.guest.listing import read_listing
from launcherkit_lab.machine import SHARE
from tests.kernel.pod import observed
from tests.kernel.pod.bare import BareNode
from tests.kernel.pod.manifests import RESOURCE, VARIABLE, component, launcher, plugin
from tests.kernel.pod.node import Failed, Node, PodNode, do, until
from tests.kernel.pod.observed import Observed, PluginSeen, PodSeen

FIRST, SECOND = "gpu-vm", "next-vm"
DESCRIBED = "node.json"
"""The file in which the host says what the node is made of."""
DRIVERS = ("bochs-drm", "snd_hda_intel")
"""Those of the machine's kernel for the card: display, audio."""
_LOG = SHARE / "plugin.log"
_CALLS = {
    "ptrace": (101, (0, 0, 0, 0)),
    "unshare": (272, (0,)),
    "perf_event_open": (298, (0, 0, -1, -1, 0)),
    "open_by_handle_at": (304, (-1, 0, 0)),
    "setns": (308, (-1, 0)),
    "process_vm_readv": (310, (1, 0, 0, 0, 0, 0)),
    "process_vm_writev": (311, (1, 0, 0, 0, 0, 0)),
    "kcmp": (312, (1, 1, 99, 0, 0)),
    "userfaultfd": (323, (-1,)),
    "io_uring_setup": (425, (0, 0)),
    "pidfd_getfd": (438, (-1, 0, 0)),
}
"""Numbers on x86-64 of what has some other error, or none, for who may call it with these arguments."""
_TRY = """
import ctypes, json
call = ctypes.CDLL(None, use_errno=True).syscall
found = {}
for name, (number, arguments) in %r.items():
    found[name] = ctypes.get_errno() if call(number, *map(ctypes.c_long, arguments)) < 0 else 0
print(json.dumps(found))
"""
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


def main(kernel: Path, node: PodNode) -> None:
    """All of it; what was seen is left for the host.

    Raises:
        Failed: a step.
    """
    [card] = sysfs.cards()
    with step("the machine is a node, and its own drivers have the card"):
        node.prepare()
        sysfs.modprobe("bochs", "snd_hda_intel")
        sysfs.until(lambda: drivers(card.display) == dict(zip(card, DRIVERS, strict=True)), "the card's own drivers")
    with step(f"the node is up: {node.parts}"):
        node.up()
    daemon = Plugin(node, card.display)
    with step("the DaemonSet's plugin has bound the card to vfio-pci, and the node offers it"):
        daemon.apply()
        until(lambda: node.allocatable(RESOURCE) == 1, f"{RESOURCE} on offer", pause=2)
    daemon.look()

    first = Launched(node, FIRST)
    with step(f"{node.create}: pod {FIRST} gets the card, its container runs"):
        first.create(kernel)
        first.started()
    first.look()
    with step("launcherkit run: libvirt is up, the domain is defined, the guest has booted"):
        first.wait_for("guest: waiting")
    detail(first.said("guest: pci"))
    first_held = node.held(RESOURCE)
    detail(f"the kubelet says: {', '.join(f'{device} is of {pod}' for device, pod in first_held.items())}")

    # From here on a container may lock as much memory as it likes, so the next pod does without SYS_RESOURCE.
    node.unlimit_locked_memory()
    second = Launched(node, SECOND)
    with step(f"{node.create}: pod {SECOND} has to wait, there is no other card"):
        second.create(kernel, raises_limit=False)
        waiting = node.why_not_scheduled(SECOND)
    detail(waiting)

    with step(f"{node.remove}: the guest of {FIRST} is shut down, the card is free"):
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
    with step(f"{node.remove}: the guest of {SECOND} is shut down, nobody has the card"):
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

    def __init__(self, node: PodNode, function: str) -> None:
        self._node = node
        self._function = function
        self._before = drivers(function)
        self._offered: dict[str, str] = {}
        self._root = ""
        self._refused: dict[str, int] = {}
        self._processes: dict[str, tuple[int, int]] = {}
        self._documents, base = plugin()
        self._daemon_set = node.merged(node.merged(base, component("binding")), component("seccomp"))

    def apply(self) -> None:
        profile = DEPLOY / "seccomp" / "launcherkit-plugin.json"
        do("install", "-D", "--mode=644", str(profile), str(self._node.kubelet_dir / "seccomp" / profile.name))
        self._node.start_plugin(self._documents, self._daemon_set, _LOG)

    def look(self) -> None:
        """Look at the drivers, and into its container."""
        self._offered = drivers(self._function)
        detail("\n".join(f"{address}  {driver}" for address, driver in self._offered.items()))
        self._root = self._node.in_plugin("touch /new 2>&1; true").strip()
        code = shlex.quote(_TRY % _CALLS)
        self._refused = json.loads(self._node.in_plugin(f"/opt/launcherkit/bin/python -c {code}"))
        # They are seen from here too, by hostPID. The helper is started by the daemon.
        daemon, helper = (path for path in sorted(Path("/proc").glob("[0-9]*"), key=_number) if _serves(path))
        self._processes = {"daemon": _rights(daemon), "helper": _rights(helper)}
        detail(f"it may use the capabilities {self._processes}")

    def give_back(self) -> PluginSeen:
        """Let it give back what it has bound; what was seen of it, to its end."""
        self._node.change_plugin(self._node.merged(self._daemon_set, component("give-back")), _LOG)
        until(lambda: drivers(self._function) == self._before, f"drivers as before: {self._before}", pause=2)
        capabilities = {name: permitted for name, (permitted, _) in self._processes.items()}
        filtered = [mode for _, mode in self._processes.values()]
        seen = capabilities, filtered, self._refused, self._root
        return PluginSeen(self._before, self._offered, *seen, drivers(self._function))


def _number(path: Path) -> int:
    return int(path.name)


def _serves(process: Path) -> bool:
    """Whether a process, by its folder in proc, is the plugin's daemon or was forked by it."""
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended
    return words[1:3] == [b"/opt/launcherkit/bin/launcherkit-plugin", b"serve"]


def _rights(process: Path) -> tuple[int, int]:
    """The capabilities that a process may use, and its mode of seccomp."""
    lines = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return int(lines["CapPrm"], 16), int(lines["Seccomp"])


class Launched:
    """A launcher pod, from its manifest to its end."""

    def __init__(self, node: PodNode, name: str) -> None:
        self._node = node
        self._name = name
        self._log = SHARE / f"{name}.log"
        self._follower: subprocess.Popen[bytes] | None = None
        self._looked = ""

    def create(self, kernel: Path, *, raises_limit: bool = True) -> None:
        self._node.create_pod(self._name, launcher(self._name, kernel, raises_limit=raises_limit))

    def started(self) -> None:
        """Wait for its container, and follow its log from then on."""
        self._follower = self._node.start_pod(self._name, self._log)

    def look(self) -> None:
        """Look into the container."""
        self._looked = self._node.in_pod(self._name, _CONTAINER)
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
        self._node.delete_pod(self._name)
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


def place(described: Mapping[str, Any]) -> PodNode:
    """The node that the host has described."""
    if "cluster" in described:
        program, binaries = map(Path, described["cluster"])
        return Node(program, binaries, described["disk"])
    return BareNode(described["images"], described["disks"])


if __name__ == "__main__":
    node = place(json.loads((SHARE / DESCRIBED).read_text()))
    try:
        main(Path(sys.argv[1]), node)
    except (Failed, AssertionError) as failure:
        say(f"failed: {failure}")
        detail(node.events())
        for log in sorted(SHARE.glob("*.log")):
            detail(f"{log.name}: " + " | ".join(log.read_text(errors="replace").splitlines()[-15:]))
        sys.exit(1)
    finally:
        os.sync()
