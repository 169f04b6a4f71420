"""A guest moves between two libvirts, from one vGPU to another, with the hook of docs/reference/migration.md."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from launcherkit.cli.main import run
from launcherkit.host.vfio import NotAsked, ask_migration
from launcherkit_lab import sysfs
from launcherkit_lab.driver.vgpus import MDEVS, SMALL, Parent
from tests.kernel.guests import Guests
from tests.kernel.test_mdev import new
from tests.libvirt.daemon import DAEMON, SOCKET
from tests.libvirt.pod import DAEMONS, ROOT, SECONDS, Pod, pod
from tests.support.pages import blocks

pytestmark = pytest.mark.kernel

VARIABLE = "MDEV_PCI_RESOURCE_X"
MARK = "guest: mark 1a2b3c4d"
PAGE = blocks(ROOT / "docs/reference/migration.md")
(HOOK,) = [block.text for block in PAGE if block.reported.get("file") == "qemu-hook.sh"]
(MAY_MIGRATE,) = [block.text for block in PAGE if block.reported.get("is") == "a part of a domain"]


@pytest.fixture(scope="module")
def _new_enough() -> None:
    """Skips where QEMU doesn't speak the kernel's protocol yet."""
    done = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"version (\d+)\.(\d+)", done.stdout)
    if found and (int(found[1]), int(found[2])) < (8, 1):
        pytest.skip(f"QEMU migrates VFIO devices from 8.1 on; this is {found[0]}")


@pytest.fixture
def target(_new_enough: None) -> Iterator[Pod]:
    """The pod that a guest moves to: another host, to libvirt."""
    with pod() as made:
        with open(made.folder / "etc" / f"{DAEMON}.conf", "a") as conf:
            conf.write('host_uuid = "8ad3c4a2-0f0e-4f4b-9d6b-5d2f6c1a7e11"\n')
        yield made


def install_hook(target: Pod) -> None:
    """The hook of the page; its PATH is libvirt's, which begins with the folder of launcherkit."""
    programs = target.folder / "programs"
    programs.mkdir()
    program = "import sys; from launcherkit.cli.main import main; sys.exit(main())"
    line = f'cd {shlex.quote(str(ROOT))} && exec {shlex.quote(sys.executable)} -c {shlex.quote(program)} "$@"'
    for path, content in (
        (programs / "launcherkit", f"#!/bin/sh\n{line}\n"),
        (target.folder / "etc" / "hooks" / "qemu.d" / "launcherkit", HOOK),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)


def start(target: Pod, uuid: str) -> None:
    """Its libvirt, in a container that got a vGPU, on a host of another name."""
    install_hook(target)
    path = f"PATH={target.folder / 'programs'}:{os.environ['PATH']}"
    daemons = ["env", path, f"{VARIABLE}={uuid}", "unshare", "--uts", "sh", "-c", f"hostname target; {DAEMONS}"]
    process = target.start(*daemons, output=target.folder / "libvirtd")
    process.until((target.folder / "run" / SOCKET).exists, "libvirt's socket")


def migrate(source: Pod, target: Pod) -> subprocess.CompletedProcess[str]:
    socket = f"unix://{target.folder / 'migration'}"
    command = [
        "virsh",
        "--quiet",
        "--connect",
        source.uri,
        "migrate",
        "--live",
        "vm",
        target.uri,
        "--migrateuri",
        socket,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)


def told(error: str, *pods: Pod) -> str:
    """What virsh said, and the ends of the logs behind it."""
    logs = [path for each in pods for path in (each.folder / "stderr", *(each.folder / "log" / "qemu").glob("*.log"))]
    return "\n".join([error, *(f"{path}:\n{path.read_text(errors='replace')[-3000:]}" for path in logs)])


def running(where: Pod) -> bool:
    return "vm" in where.libvirt("list", "--name").split()


def waiting_guest(guests: Guests, uuid: str, head: str = MAY_MIGRATE) -> None:
    guests.start({VARIABLE: uuid}, does="mark wait", head=head, unrehearsed="the guest is about more than its devices")
    # All of its memory counts as written to all the time, and the default is 300 ms.
    guests.pod.libvirt("migrate-setmaxdowntime", "vm", "120000")
    sysfs.until(lambda: "guest: waiting" in guests.serial("vm").read_text(), "the guest up")


def test_a_guest_moves_to_the_vgpu_that_was_allocated_on_the_target_with_what_it_wrote_into_the_first(
    parents: list[Parent], target: Pod, guests: Guests
) -> None:
    there, here = (new(parent, SMALL) for parent in parents)
    waiting_guest(guests, here)
    before = guests.pod.libvirt("dumpxml", "--migratable", "vm")
    start(target, there)
    done = migrate(guests.pod, target)
    assert done.returncode == 0, told(done.stderr, guests.pod, target)
    assert (running(guests.pod), running(target)) == (False, True)
    assert target.libvirt("dumpxml", "--migratable", "vm") == before.replace(here, there)
    target.libvirt("shutdown", "vm")
    sysfs.until(lambda: not running(target), "the guest's end")
    assert MARK in guests.serial("vm").read_text()


def test_qemu_refuses_what_has_no_log_of_the_pages_that_it_writes_to(
    parents: list[Parent], target: Pod, guests: Guests
) -> None:
    waiting_guest(guests, new(parents[0], SMALL), head="")
    start(target, new(parents[1], SMALL))
    done = migrate(guests.pod, target)
    assert done.returncode != 0
    assert "VFIO device doesn't support device and IOMMU dirty tracking" in done.stderr
    assert (running(guests.pod), running(target)) == (True, False)


def test_an_error_on_the_target_leaves_the_guest_where_it_is(
    parents: list[Parent], target: Pod, guests: Guests
) -> None:
    here = new(parents[0], SMALL)
    waiting_guest(guests, here)
    start(target, "not-a-uuid")
    done = migrate(guests.pod, target)
    assert done.returncode != 0
    assert "error[LK" in done.stderr
    assert (running(guests.pod), running(target)) == (True, False)
    guests.pod.libvirt("shutdown", "vm")
    sysfs.until(lambda: not running(guests.pod), "the guest's end")
    assert MARK in guests.serial("vm").read_text()


def test_a_device_says_itself_whether_it_can_migrate_unless_it_is_in_use(
    parents: list[Parent], guests: Guests, capfd: pytest.CaptureFixture[str]
) -> None:
    """`launcherkit doctor --ask-devices`"""
    uuid = new(parents[0], SMALL)
    group = f"/dev/vfio/{sysfs.link(MDEVS / uuid / 'iommu_group')}"
    assert ask_migration(uuid, group=group, cdev=None) == ("peer to peer",)
    capfd.readouterr()
    run(["doctor", "--ask-devices"], {VARIABLE: uuid})
    assert "yes: the device itself says so, with peer to peer" in capfd.readouterr().out
    guests.start({VARIABLE: uuid}, does="wait", unrehearsed="it is about the device")
    with pytest.raises(NotAsked, match="in use"):
        ask_migration(uuid, group=group, cdev=None)


def test_a_function_of_vfio_pci_says_that_it_cant(card: sysfs.Card, bound: Callable[..., None]) -> None:
    bound(card.display, card.audio)
    group = f"/dev/vfio/{sysfs.link(sysfs.DEVICES / card.display / 'iommu_group')}"
    cdev = sysfs.DEVICES / card.display / "vfio-dev"
    own = f"/dev/vfio/devices/{next(cdev.iterdir()).name}" if cdev.is_dir() else None
    assert ask_migration(card.display, group=group, cdev=None) is None
    assert ask_migration(card.display, group=group, cdev=own) is None
