"""vGPUs that are virtual functions, on a real kernel: what launcherkit reads of them, and from a pod to its guest."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcherkit import Host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import VgpuVf, bound_to_vfio
from launcherkit_lab import sysfs
from launcherkit_lab.conformance.machine import CONTAINER
from launcherkit_lab.driver.build import VFS, build
from launcherkit_lab.driver.vgpus import VF_LARGE, VF_NAMES, VF_SMALL, VGPU, Vf, vgpu_vfs
from launcherkit_lab.guest.qemu import GuestRefused, listed, place
from launcherkit_lab.packages import cache_folder, fetch
from tests.kernel.rehearsed import check_found
from tests.kernel.serving import Serving, run_guest
from tests.libvirt.pod import Pod

pytestmark = pytest.mark.kernel

VGPUS = "example.com/VGPU"


@pytest.fixture
def two(vfs: list[str]) -> Iterator[list[Vf]]:
    """The VFs of a card that has room for two small vGPUs or a large one."""
    cache = cache_folder(os.environ)
    with vgpu_vfs(build(fetch(cache).headers, cache, VFS), vfs, 2048) as found:
        yield found
        for vf in found:
            vf.be(0)


def nodes_of(vf: Vf) -> dict[str, str]:
    """VFIO's nodes of a container that has it."""
    nodes = (CONTAINER, f"/dev/vfio/{sysfs.group(vf.address)}")
    return dict(zip(nodes, nodes, strict=True))


def read(vf: Vf) -> VgpuVf | None:
    """What launcherkit makes of it."""
    return Host.from_sysfs("/").scan().details[PciAddress.parse(vf.address)].vgpu


def refused(vf: Vf, number: int) -> int:
    """The error with which the kernel refuses a type."""
    try:
        vf.be(number)
    except OSError as error:
        return error.errno or 0
    pytest.fail(f"it takes {number}")


def test_types_and_room_are_read_as_the_driver_has_them(two: list[Vf]) -> None:
    one, other = two
    assert read(one) == read(other) == VgpuVf(0, tuple(VF_NAMES.items()))
    one.be(VF_SMALL)
    assert read(one) == VgpuVf(VF_SMALL, ())
    assert read(other) == VgpuVf(0, ((VF_SMALL, VF_NAMES[VF_SMALL]),))
    assert refused(other, VF_LARGE) == errno.ENOSPC
    one.be(0)
    one.be(VF_LARGE)
    assert read(other) == VgpuVf(0, ())
    assert refused(other, VF_SMALL) == errno.ENOSPC
    assert (refused(one, VF_SMALL), refused(other, 7)) == (errno.EINVAL, errno.EINVAL)


def test_the_drivers_name_says_nothing_and_the_type_says_that_it_is_on_vfio(two: list[Vf]) -> None:
    """V1: QEMU opens a VF with a type, and none without."""
    vf, _ = two
    address = PciAddress.parse(vf.address)
    with pytest.raises(GuestRefused, match="No such device"):
        listed([vf.address], nodes_of(vf), sysfs.SECONDS)
    host = Host.from_sysfs("/").scan()
    assert not bound_to_vfio(host.functions[address], host.details[address])
    vf.be(VF_SMALL)
    host = Host.from_sysfs("/").scan()
    assert bound_to_vfio(host.functions[address], host.details[address])
    assert listed([vf.address], nodes_of(vf), sysfs.SECONDS) == {place(0): VGPU}


@contextmanager
def opened(vf: Vf) -> Iterator[None]:
    """It is open, as QEMU has it (Documentation/driver-api/vfio.rst)."""
    set_container, set_iommu, get_device_fd = (ord(";") << 8 | number for number in (104, 102, 106))
    files = [os.open(path, os.O_RDWR) for path in nodes_of(vf)]
    container, group = files
    try:
        fcntl.ioctl(group, set_container, struct.pack("=i", container))
        fcntl.ioctl(container, set_iommu, 1)  # VFIO_TYPE1_IOMMU
        files.append(fcntl.ioctl(group, get_device_fd, bytearray(f"{vf.address}\0".encode())))
        yield
    finally:
        for file in reversed(files):
            os.close(file)


def test_while_it_is_open_its_type_stays(two: list[Vf]) -> None:
    vf, _ = two
    vf.be(VF_SMALL)
    with opened(vf):
        assert refused(vf, 0) == errno.EBUSY
        assert vf.type == VF_SMALL
    vf.be(0)
    with pytest.raises(OSError, match="No such device"), opened(vf):
        pass


def test_a_pod_has_a_vgpu_that_was_made_for_it_and_is_taken_back(
    two: list[Vf], serving: Serving, tmp_path: Path
) -> None:
    """By plain QEMU, as of libvirt only newer ones take such a VF."""
    rule = {"name": VGPUS, "types": [VF_NAMES[VF_LARGE]], "mode": "dynamic"}
    with serving(vgpu={"virtualFunctions": [rule], "graceSeconds": 1}) as node:
        node.kubelet.wait_for(VGPUS, {vf.address: True for vf in two})
        rehearsal = node.rehearsed(VGPUS, tmp_path)
        (holding,) = node.kubelet.admit("vm", [("compute", VGPUS, 1)])
        (vf,) = (vf for vf in two if [vf.address] == list(holding.ids))
        (other,) = (each for each in two if each != vf)
        assert (vf.type, other.type, other.creatable()) == (VF_LARGE, 0, [])
        assert rehearsal.allocation is not None, rehearsal.errors
        assert rehearsal.allocation.env == dict(holding.answer.envs) == {"PCI_RESOURCE_EXAMPLE_COM_VGPU": vf.address}
        nodes = {device.container_path: device.host_path for device in holding.answer.devices}
        assert nodes == nodes_of(vf)
        assert refused(other, VF_SMALL) == errno.ENOSPC
        listing = listed([vf.address], nodes, sysfs.SECONDS)
        assert list(listing.values()) == [VGPU]
        check_found(rehearsal, listing)
        node.end("vm")
        sysfs.until(lambda: vf.type == 0, "the type taken away")
        assert other.creatable() == [VF_SMALL, VF_LARGE]


def test_a_pod_starts_a_guest_with_its_vgpu_by_libvirt(
    two: list[Vf], serving: Serving, empty_pod: Pod, kernel: Path, tmp_path: Path
) -> None:
    version = subprocess.run(["virsh", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if sysfs.version(version) < (9, 7):
        pytest.skip(f"libvirt {version} takes no VFIO driver but vfio-pci; 9.7 does")
    rule = {"name": VGPUS, "types": [VF_NAMES[VF_SMALL]], "mode": "dynamic"}
    with serving(vgpu={"virtualFunctions": [rule], "graceSeconds": 1}) as node:
        node.kubelet.wait_for(VGPUS, {vf.address: True for vf in two})
        rehearsal = node.rehearsed(VGPUS, tmp_path)
        (holding,) = node.kubelet.admit("vm", [("compute", VGPUS, 1)])
        listing = run_guest(empty_pod, holding, rehearsal, kernel, tmp_path)
        assert list(listing.values()).count(VGPU) == 1, listing
        assert sorted(vf.type for vf in two) == [0, VF_SMALL]
        assert {sysfs.driver(vf.address) for vf in two} == {"nvidia"}
        node.end("vm")
        sysfs.until(lambda: not any(vf.type for vf in two), "the type taken away")
