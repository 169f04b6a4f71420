"""The pages of the errors show what is really said."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from launcherkit.errors import LauncherkitError
from launcherkit_plugin.__main__ import run
from launcherkit_plugin.cli import binding
from launcherkit_plugin.host.drivers import Sysfs
from launcherkit_plugin.host.kernel_modules import modprobe
from launcherkit_plugin.kubelet.client import list_pod_devices
from tests.support.hosttree import HostTree
from tests.support.kernel import VFIO, FakeKernel
from tests.support.provoked import provoked

GPU, AUDIO, DISK = "0000:01:00.0", "0000:01:00.1", "0000:02:00.0"


class Node:
    """A machine without a kubelet: a card with a disk in its group."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._monkeypatch = root, monkeypatch
        self.tree = HostTree(root)
        ids = {"nvidia": {(0x10DE, 0x2204)}, "snd_hda_intel": {(0x10DE, 0x1AEF)}, "nvme": {(0x144D, 0xA808)}}
        self.kernel = FakeKernel(self.tree, ids)
        self.tree.card("0000:01:00", group=44, driver=None)
        for path, driver in ((GPU, "nvidia"), (AUDIO, "snd_hda_intel")):
            self.kernel.write(f"{root}/sys/bus/pci/drivers/{driver}/bind", path)
        (root / "proc/1/fd").mkdir(parents=True)
        (root / "proc/2").mkdir()
        (root / "proc/2/comm").write_text("kthreadd\n")
        monkeypatch.setattr(binding, "Sysfs", partial(Sysfs, make_worker=self.kernel.hand))

    def run(self, command: str) -> None:
        """Run it for the card."""
        places = ["--host", self.root, "--ledger", self.root / "run/launcherkit-plugin/binding"]
        run([command, *map(str, places), "--kubelet-dir", f"{self.root}/none", GPU], {})

    def no_kubelet(self) -> None:
        asyncio.run(list_pod_devices(f"{self.root}/var/lib/kubelet/pod-resources/kubelet.sock"))

    def mounted_disk(self) -> None:
        self.tree.function(DISK, vendor=0x144D, device=0xA808, class_code=0x010802, driver="nvme", group=44)
        part = self.tree.path(DISK) / "nvme/nvme0/nvme0n1/nvme0n1p2"
        part.mkdir(parents=True)
        (part / "dev").write_text("259:2\n")
        (self.root / "sys/class/block").mkdir(parents=True)
        self.tree.link("sys/class/block/nvme0n1p2", part)
        (self.root / "proc/1/mountinfo").write_text("29 1 259:2 / /srv rw - ext4 /dev/nvme0n1p2 rw\n")
        self.run("bind")

    def running_vm(self) -> None:
        self.run("bind")
        (self.root / "proc/812/fd").mkdir(parents=True)
        (self.root / "proc/812/comm").write_text("qemu-system-x86\n")
        (self.root / "proc/812/fd/7").symlink_to("/dev/vfio/44")
        self.run("unbind")

    def other_processes(self) -> None:
        self.run("bind")
        (self.root / "proc/2/comm").unlink()
        self.run("unbind")

    def bound_by_others(self) -> None:
        self.run("bind")
        (self.root / f"run/launcherkit-plugin/binding/{GPU}.json").unlink()
        self.run("unbind")

    def no_module(self) -> None:
        program = self.root / "bin/modprobe"
        program.parent.mkdir()
        program.write_text(
            "#!/bin/sh\n"
            "echo 'modprobe: FATAL: Module vfio-pci not found in directory /lib/modules/6.1.0-28-amd64' >&2\n"
            "exit 1\n"
        )
        program.chmod(0o755)
        self._monkeypatch.setenv("PATH", str(program.parent), prepend=":")
        modprobe("vfio-pci")

    def not_taken(self) -> None:
        self.kernel.probe_fails.add((VFIO, AUDIO))
        self.run("bind")

    def busy_driver(self) -> None:
        self.kernel.busy.add(GPU)
        self.run("bind")

    def emptied_record(self) -> None:
        self.run("bind")
        (self.root / f"run/launcherkit-plugin/binding/{GPU}.json").write_text("")
        self.run("unbind")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """The kubelet's socket is below it, and a socket's path has 107 bytes at most."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("code", "provoke"),
    [
        ("LK721", Node.no_kubelet),
        ("LK722", Node.mounted_disk),
        ("LK723", Node.running_vm),
        ("LK724", Node.other_processes),
        ("LK725", Node.bound_by_others),
        ("LK726", Node.no_module),
        ("LK727", Node.not_taken),
        ("LK728", Node.busy_driver),
        ("LK729", Node.emptied_record),
    ],
)
def test_the_page_shows_what_is_said(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, provoke: Callable[[Node], None]
) -> None:
    node = Node(short_path, monkeypatch)
    with pytest.raises(LauncherkitError) as raised:
        provoke(node)
    (leaf,) = raised.value.leaves()
    assert [f"{leaf.code}: {leaf.message}".replace(str(short_path), "")] == provoked("binding", code)
    page = Path(__file__).parents[3].joinpath(f"docs/errors/{code}.md").read_text()
    shown = "\n      ".join(leaf.remedy.replace(str(short_path), "").split("\n"))
    assert f"help: {shown}" in page
