"""What libvirt will place in a domain, in its order (P2); tests/libvirt holds it against libvirt itself."""

from __future__ import annotations

import pytest
from lxml import etree

from launcherkit.domain.reader import read_facts
from tests.support.domains import domain, pci_hostdev

NONE = "<memballoon model='none'/>", "<controller type='usb' model='none'/>"
NIC = "<interface type='user'><model type='virtio'/></interface>"
E1000 = "<interface type='user'><model type='e1000'/></interface>"
DISK = "<disk><target dev='vda' bus='virtio'/></disk>"
WATCHDOG = "<watchdog model='i6300esb'/>"
PLACED = "<address type='pci' domain='0x0000' bus='0x04' slot='0x00' function='0x0'/>"


def needs(*devices: str, arch: str = "x86_64", machine: str = "q35") -> list[str]:
    facts = read_facts(etree.fromstring(domain(*devices, arch=arch, machine=machine)))
    return [device.needs if device.hostdev is None else f"hostdev {device.hostdev}" for device in facts.unplaced]


def test_libvirt_adds_a_usb_controller_and_a_memory_balloon_on_q35() -> None:
    assert needs() == ["pcie", "pcie"]
    assert needs(*NONE) == []
    assert needs(arch="aarch64", machine="virt") == []


def test_kinds_of_devices_have_their_order_whatever_the_documents_is() -> None:
    found = needs(WATCHDOG, pci_hostdev("0000:e1:00.0"), DISK, E1000, *NONE)
    assert found == ["pci", "pcie", "hostdev 0", "pci"]


def test_controllers_for_scsi_hostdevs_come_before_the_usb_controller_that_is_added_and_those_for_disks_after() -> None:
    drive = "<address type='drive' controller='1' bus='0' target='0' unit='6'/>"
    hostdev = f"<hostdev mode='subsystem' type='scsi'>{drive}</hostdev>"
    disk = "<disk><target dev='sdo' bus='scsi'/></disk>"  # of the third controller
    no_balloon = NONE[0]
    assert needs(hostdev, no_balloon) == ["pci", "pci", "pcie"]
    assert needs(disk, no_balloon) == ["pcie", "pci", "pci", "pci"]
    assert needs(disk, hostdev, no_balloon) == ["pci", "pci", "pci", "pcie"], "those of one type stay together"


def test_what_has_an_address_is_not_placed() -> None:
    assert needs(*NONE, NIC.replace("</interface>", f"{PLACED}</interface>")) == []


@pytest.mark.parametrize(
    ("device", "found"),
    [
        ("<interface type='user'/>", ["pci"]),
        ("<interface type='hostdev'/>", ["pcie"]),
        ("<interface type='user'><model type='usb-net'/></interface>", []),
        ("<filesystem><driver type='virtiofs'/></filesystem>", ["pcie"]),
        ("<filesystem><driver type='mtp'/></filesystem>", []),
        ("<disk><target dev='vdb'/></disk>", ["pcie"]),
        ("<disk model='virtio-transitional'><target dev='vdb' bus='virtio'/></disk>", ["pci"]),
        ("<disk><target dev='sda' bus='sata'/></disk>", []),
        ("<disk><target dev='sdg' bus='sata'/></disk>", ["pci"]),
        ("<disk><target dev='sdh' bus='scsi'/></disk>", ["pci", "pci"]),
        ("<controller type='scsi' model='virtio-scsi'/>", ["pcie"]),
        ("<controller type='sata' index='0'/>", []),
        ("<channel type='unix'><target type='virtio'/></channel>", ["pcie"]),
        ("<console><target type='virtio'/></console>", ["pcie"]),
        ("<sound model='ich9'/>", []),
        ("<sound model='ich6'/>", ["pci"]),
        ("<video><model type='virtio'/></video>", []),
        ("<graphics type='vnc'/>", []),
        ("<input type='tablet' bus='usb'/>", []),
        ("<input type='tablet' bus='virtio'/>", ["pcie"]),
        ("<serial type='pty'><target type='pci-serial'/></serial>", ["pci"]),
        ("<serial type='pty'/>", []),
        ("<tpm model='tpm-crb'/>", []),
        ("<vsock model='virtio'/>", ["pcie"]),
        ("<shmem name='s'/>", ["pci"]),
        ("<memory model='virtio-mem'/>", ["pcie"]),
        ("<memory model='dimm'/>", []),
        ("<hostdev mode='subsystem' type='scsi_host'/>", ["pcie"]),
        ("<controller type='pci' index='3' model='pcie-to-pci-bridge'/>", ["pcie"]),
        ("<controller type='pci' index='3' model='pcie-root-port'/>", []),
    ],
)
def test_a_device_needs_the_slot_that_its_model_needs(device: str, found: list[str]) -> None:
    assert needs(*NONE, device) == found


def test_a_second_video_device_has_no_slot_of_the_chipset() -> None:
    video = "<video><model type='virtio'/></video>"
    assert needs(*NONE, video, video) == ["pcie"]
    assert needs(video, video, arch="aarch64", machine="virt") == ["pcie", "pcie"]


def test_usb2_controllers_of_one_index_share_a_slot() -> None:
    models = ("ich9-ehci1", "ich9-uhci1", "ich9-uhci2", "ich9-uhci3")
    usb2 = [f"<controller type='usb' index='0' model='{model}'/>" for model in models]
    assert needs(NONE[0], *usb2) == []
    assert needs(*usb2, arch="aarch64", machine="virt") == ["pci"]


def test_controllers_of_one_type_come_by_index() -> None:
    first, second = (
        "<controller type='scsi' index='0' model='lsilogic'/>",
        "<controller type='scsi' index='1' model='virtio-scsi'/>",
    )
    assert needs(*NONE, second, first) == ["pci", "pcie"]


def test_one_device_at_a_virtio_mmio_address_makes_all_virtio_devices_such() -> None:
    mmio = NIC.replace("</interface>", "<address type='virtio-mmio'/></interface>")
    assert needs(mmio, NIC, DISK, arch="aarch64", machine="virt") == []
    assert needs(NIC, DISK, arch="aarch64", machine="virt") == ["pcie", "pcie"]


@pytest.mark.parametrize("machine", ["pc", "s390-ccw-virtio"])
def test_nothing_is_foreseen_where_there_are_no_root_ports(machine: str) -> None:
    assert needs(NIC, machine=machine) == []
