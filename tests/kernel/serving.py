"""The kubelet of the machine with this project's plugin, and the guest of a pod."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

from launcherkit.host.source import Host
from launcherkit.rehearse.rehearsal import NodeOutcome
from launcherkit.request.template import find_template
from launcherkit_lab import sysfs
from launcherkit_lab.guest.listing import Listing, read_listing
from launcherkit_lab.kubelet import Holding, Kubelet, running_kubelet
from tests.kernel.containers import guest_in_container
from tests.kernel.rehearsed import check_found, rehearsed_with
from tests.kubelet.plugin import Plugin
from tests.libvirt.pod import Pod

GPU = "example.com/GPU"
_SECONDS = 120.0


class Node(NamedTuple):
    """The kubelet of this machine, and its plugin."""

    kubelet: Kubelet
    plugin: Plugin
    config: Mapping[str, object]
    """The plugin's."""

    def rehearsed(self, resource: str, folder: Path) -> NodeOutcome:
        """A rehearsal of a VM with a device, on a snapshot of the machine as it is before anybody has asked for one."""
        domain = find_template("q35").render({"name": "vm"})
        return rehearsed_with(self.config, [resource], domain, Host.from_sysfs("/").scan(), folder)

    def end(self, pod: str) -> None:
        """A pod ends that the plugin has seen. One that it hasn't could still be starting, and keeps what it got."""
        asked = self.kubelet.asked_for_pods
        self.kubelet.wait(lambda: self.kubelet.asked_for_pods > asked + 1, "the plugin asking who has what")
        self.kubelet.delete(pod)


Serving: TypeAlias = Callable[..., AbstractContextManager[Node]]


@contextmanager
def serve(folder: Path, *, nodes: str = "auto", vgpu: Mapping[str, object] = {}, **rule: object) -> Iterator[Node]:
    """A kubelet, and the plugin for the graphics cards with audio, under the seccomp profile that is shipped."""
    models = [{"addresses": [card.display for card in sysfs.cards()]}]
    with tempfile.TemporaryDirectory(prefix="k-") as place, running_kubelet(Path(place), _SECONDS) as kubelet:
        options = ("--kubelet-dir", place, "--ledger", str(folder / "ledger"))
        places = (*options, "--features-dir", str(folder / "features.d"))
        resource = {"name": GPU, "select": models, **rule}
        config = {"resources": [resource], "vgpu": vgpu, "nodes": nodes, "rescanSeconds": 2}
        plugin = Plugin(config, folder, *places, seccomp=True)
        plugin.start()
        try:
            yield Node(kubelet, plugin, config)
        finally:
            plugin.end()


def run_guest(place: Pod, holding: Holding, rehearsal: NodeOutcome, kernel: Path, folder: Path) -> Listing:
    """Be a container with what the kubelet was answered; gives what its guest finds. All is as the rehearsal said.

    That has a vGPU, which isn't made yet, in the group that the kernel makes next.
    """
    nodes = [device.container_path for device in holding.answer.devices]
    assert rehearsal.allocation is not None, rehearsal.errors
    assert rehearsal.allocation.env == dict(holding.answer.envs)
    assert rehearsal.allocation.facts.nodes == frozenset(nodes)
    listing = read_listing(guest_in_container(place, holding.answer.envs, nodes, kernel, folder))
    check_found(rehearsal, listing)
    return listing
