"""What a domain document says of memory and the PCI window."""

from __future__ import annotations

import pytest

from launcherkit.domain.guest import read_guest
from launcherkit.domain.xml import read_document
from launcherkit.model.guest import GuestFacts

GIB = 1 << 30


def guest(inside: str, attributes: str = "") -> GuestFacts:
    return read_guest(read_document(f"<domain type='kvm'{attributes}>{inside}</domain>").root)


@pytest.mark.parametrize(
    ("memory", "size"),
    [
        ("<memory>1048576</memory>", GIB),
        ("<memory unit='KiB'>1048576</memory>", GIB),
        ("<memory unit='GiB'>2</memory>", 2 * GIB),
        ("<memory unit='G'>2</memory>", 2 * GIB),
        ("<memory unit='MB'>1000</memory>", 10**9),
        ("<memory unit='b'> 4096 </memory>", 4096),
        ("<memory unit='parsec'>2</memory>", None),
        ("<memory>much</memory>", None),
        ("<memory>-1</memory>", None),
        (f"<memory>{'9' * 5000}</memory>", None),
        ("", None),
    ],
)
def test_memory_is_read_in_libvirts_units(memory: str, size: int | None) -> None:
    assert guest(memory).memory == size


def test_numa_cells_and_dimms_add_up_as_in_libvirt() -> None:
    cells = "<cpu><numa><cell id='0' memory='1' unit='GiB'/><cell id='1' memory='1048576'/></numa></cpu>"
    dimm = "<memory model='dimm'><target><size unit='GiB'>4</size></target></memory>"
    assert guest(f"<memory unit='GiB'>9</memory>{cells}<devices>{dimm}</devices>").memory == 6 * GIB


def test_what_decides_about_locked_memory_is_read() -> None:
    found = guest(
        "<memtune><hard_limit unit='GiB'>8</hard_limit></memtune><memoryBacking><locked/></memoryBacking><devices>"
        "<hostdev mode='subsystem' type='pci'/><hostdev mode='subsystem' type='mdev'/><hostdev type='usb'/>"
        "<interface type='hostdev'/><interface type='vdpa'/><disk type='nvme'/><disk type='file'/>"
        "<iommu model='intel'/></devices>"
    )
    assert (found.hard_limit, found.locked, found.viommu) == (8 * GIB, True, True)
    assert (found.vfio_devices, found.other_memory_lockers) == (3, 2)


def test_an_iommu_past_libvirt_is_seen() -> None:
    found = guest(
        "<qemu:commandline><qemu:arg value='-device'/><qemu:arg value='intel-iommu,caching-mode=on'/>"
        "</qemu:commandline>",
        " xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'",
    )
    assert (found.viommu, found.hidden_viommu) == (False, True)


def test_the_window_of_the_root_is_read() -> None:
    root = "<controller type='pci' index='0' model='pcie-root'><pcihole64 unit='{}'>{}</pcihole64></controller>"
    assert guest(f"<devices>{root.format('KiB', 1048576)}</devices>").window == GIB
    assert guest(f"<devices>{root.format('GiB', 128)}</devices>").window == 128 * GIB
    assert guest("<devices><controller type='pci' index='0' model='pcie-root'/></devices>").window is None


def test_uefi_is_told_by_firmware_or_by_its_loader() -> None:
    assert guest("<os firmware='efi'><type arch='aarch64'>hvm</type></os>").uefi
    assert guest("<os><type>hvm</type><loader type='pflash'>/OVMF.fd</loader></os>").uefi
    found = guest("<os><type arch='aarch64'>hvm</type></os>")
    assert (found.uefi, found.arch) == (False, "aarch64")
