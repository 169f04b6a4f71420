"""vGPUs of a real kernel: what launcherkit reads of them, and what a guest gets."""

from __future__ import annotations

import errno
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcherkit import Host
from launcherkit.model.host import HostFacts
from launcherkit_lab import sysfs
from launcherkit_lab.driver.build import build
from launcherkit_lab.driver.vgpus import (
    LARGE,
    LARGE_NAME,
    MDEVS,
    SMALL,
    SMALL_NAME,
    VGPU,
    Parent,
    allow_mixed,
    vgpus,
)
from launcherkit_lab.packages import cache_folder, fetch
from tests.kernel.guests import Guests

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def module() -> Path:
    cache = cache_folder(os.environ)
    return build(fetch(cache).headers, cache)


@pytest.fixture(scope="module")
def all_parents(module: Path) -> Iterator[list[Parent]]:
    with vgpus(module) as found:
        yield found


@pytest.fixture
def parents(all_parents: list[Parent]) -> Iterator[list[Parent]]:
    """The functions that vGPUs can be made on; none stays on them."""
    yield all_parents
    for parent in all_parents:
        parent.clear()


@pytest.fixture
def parent(parents: list[Parent]) -> Parent:
    return parents[0]


@pytest.fixture
def mixed(parents: list[Parent]) -> Iterator[None]:
    """Types may be mixed on one parent."""
    allow_mixed(True)
    yield
    for parent in parents:
        parent.clear()
    allow_mixed(False)


def new(parent: Parent, type_id: str) -> str:
    """Make a vGPU; its UUID."""
    name = str(uuid.uuid4())
    parent.create(type_id, name)
    return name


def room(parent: Parent) -> tuple[int, int]:
    """How many of the small and of the large type there is room for."""
    return parent.available(SMALL), parent.available(LARGE)


def facts() -> HostFacts:
    return Host.from_sysfs("/").mdevs()


def offered(parent: Parent) -> dict[str, int | None]:
    """How many there is room for, as launcherkit reads it."""
    return {one.id: one.available_instances for one in facts().mdev_parents[parent.address].types}


def test_a_parent_offers_its_types_as_nvidia_does(parent: Parent) -> None:
    small, large = facts().mdev_parents[parent.address].types
    assert (small.id, small.name, small.device_api) == (SMALL, SMALL_NAME, "vfio-pci")
    assert (large.id, large.name, large.device_api) == (LARGE, LARGE_NAME, "vfio-pci")
    assert "framebuffer=1024M" in (small.description or "")


def test_the_first_vgpu_fixes_the_type_until_the_last_one_has_gone(parents: list[Parent]) -> None:
    parent, other = parents
    seen = [room(parent)]
    made = []
    for _ in range(4):
        made.append(new(parent, SMALL))
        seen.append(room(parent))
    assert seen == [(4, 2), (3, 0), (2, 0), (1, 0), (0, 0)]
    assert room(other) == (4, 2)
    for name in made:
        parent.remove(name)
        seen.append(room(parent))
    assert seen[5:] == [(1, 0), (2, 0), (3, 0), (4, 2)]
    new(parent, LARGE)
    assert room(parent) == (0, 1)


def test_where_there_is_no_room_none_is_made(parent: Parent) -> None:
    first = new(parent, LARGE)
    for type_id in (SMALL, LARGE, LARGE):
        if parent.available(type_id):
            new(parent, type_id)
            continue
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            new(parent, type_id)
    assert len(parent.made()) == 2
    assert first in parent.made()


def test_a_uuid_is_had_only_once(parents: list[Parent]) -> None:
    name = new(parents[0], SMALL)
    with pytest.raises(FileExistsError):
        parents[1].create(SMALL, name)


def test_launcherkit_reads_what_there_is(parents: list[Parent]) -> None:
    small, large = new(parents[0], SMALL), new(parents[1], LARGE)
    mdevs = facts().mdevs
    assert set(mdevs) == {small, large}
    assert (mdevs[small].parent, mdevs[small].type_id) == (parents[0].address, SMALL)
    assert (mdevs[large].parent, mdevs[large].type_name) == (parents[1].address, LARGE_NAME)
    assert mdevs[large].device_api == "vfio-pci"
    for name, mdev in mdevs.items():
        assert str(mdev.iommu_group) == sysfs.link(MDEVS / name / "iommu_group")
    assert offered(parents[0]) == {SMALL: 3, LARGE: 0}
    assert offered(parents[1]) == {SMALL: 0, LARGE: 1}


def test_a_guest_finds_its_vgpu(guests: Guests, parent: Parent) -> None:
    listing = guests.listing({"MDEV_PCI_RESOURCE_X": new(parent, SMALL)})
    assert list(listing.values()).count(VGPU) == 1, listing


def test_a_guest_finds_two_vgpus_of_two_parents_in_two_slots(guests: Guests, parents: list[Parent]) -> None:
    uuids = ",".join(new(parent, LARGE) for parent in parents)
    listing = guests.listing({"MDEV_PCI_RESOURCE_X": uuids})
    assert [address[-2:] for address, model in listing.items() if model == VGPU] == [".0", ".0"], listing


def test_the_first_vgpu_of_a_vm_has_a_display(guests: Guests, parent: Parent, tmp_path: Path) -> None:
    vmi = tmp_path / "vmi.json"
    vmi.write_text('{"spec": {"domain": {"devices": {"gpus": [{"name": "gpu0", "deviceName": "X"}]}}}}')
    screen = "<graphics type='vnc' socket='/run/libvirt/vnc'/><video><model type='vga'/></video>"
    guests.start({"MDEV_PCI_RESOURCE_X": new(parent, SMALL)}, "--vmi", str(vmi), devices=screen)
    assert VGPU in guests.listed().values()
    assert "display='on' ramfb='on'" in guests.pod.libvirt("dumpxml", "vm")


def test_a_vgpu_is_removed_only_when_the_guest_has_let_go(guests: Guests, parent: Parent) -> None:
    name = new(parent, SMALL)
    guests.start({"MDEV_PCI_RESOURCE_X": name}, does="wait")
    sysfs.until(lambda: "guest: waiting" in guests.serial("vm").read_text(), "the guest up")
    removal = subprocess.Popen(["sh", "-c", f"echo 1 >{MDEVS / name}/remove"])
    try:
        sysfs.until(lambda: not (MDEVS / name / "remove").exists(), "the removal under way")
        assert "vm" in guests.pod.libvirt("list", "--name")
        assert removal.poll() is None
        assert (parent.folder / name).exists()
        assert room(parent) == (3, 0)
    finally:
        guests.clear()
        assert removal.wait(sysfs.SECONDS) == 0
    assert not (parent.folder / name).exists()
    assert room(parent) == (4, 2)


def test_types_stand_side_by_side_where_the_driver_allows_it(parent: Parent, mixed: None) -> None:
    new(parent, LARGE)
    new(parent, SMALL)
    assert room(parent) == (1, 0)
    assert offered(parent) == {SMALL: 1, LARGE: 0}
