"""sysfs trees of any content: read without an exception, and a snapshot of what was read holds the same."""

from __future__ import annotations

from launcherkit.host.facts import read_machine, scan_all
from launcherkit.host.query import read_needed
from launcherkit.host.snapshot import dump, load
from launcherkit.host.umockdev import Directory, MemoryTree
from launcherkit.model.address import MdevAddress
from tests.fuzz.choices import Choices
from tests.fuzz.hosts import UUIDS

ADDRESSES = ("0000:01:00.0", "0000:01:00.1", "0000:02:00.0", "0000:02:00.4", "10000:e1:1f.7")
FILES = (
    "uevent", "vendor", "device", "class", "subsystem_vendor", "config", "resource", "numa_node", "revision", "rom",
    "driver_override", "power_state", "reset_method", "sriov_numvfs", "sriov_totalvfs", "serial_number",
    "nvidia/current_vgpu_type", "nvidia/creatable_vgpu_types", "vfio-dev/vfio0/dev", "name", "device_api",
    "available_instances", "description",
)  # fmt: skip
LINKS = ("driver", "iommu_group", "physfn", "virtfn0", "virtfn1", "virtfnx", "mdev_type", "subsystem", "self")
CONTENTS = (
    b"", b"-1\n", b"0\n", b"0x10de\n", b"0x030000\n", b"999999999999\n", b"D3cold\n", b"(null)\n", b"vfio-pci\n",
    b"\xff" * 64,
    b"PCI_CLASS=30000\nPCI_ID=10DE:2204\nPCI_SUBSYS_ID=1458:403B\nPCI_SLOT_NAME=x\n",
    b"DRIVER=vfio-pci\nPCI_CLASS=30000\nPCI_ID=10DE:2204\nPCI_SUBSYS_ID=1458:403B\n",
    b"0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200\n" * 3,
    b"ID    : vGPU Name\n557   : NVIDIA A40-4Q\n",
)  # fmt: skip
TARGETS = (
    "../../../kernel/iommu_groups/1", "../../../../bus/pci/drivers/vfio-pci", "../0000:01:00.0", "../0000:02:00.4", ".",
    "..", "loop", "/sys/bus/pci/devices/0000:01:00.0", "../mdev_supported_types/nvidia-1", "iommu_groups/12345678901",
)  # fmt: skip


def run(data: bytes) -> None:
    """Build a tree and read it in every way."""
    choices = Choices(data)
    root: Directory = {}
    for _ in range(choices.number(40)):
        _put(root, _place(choices), _entry(choices))
    tree = MemoryTree(root)
    facts = scan_all(tree)
    assert load(dump(facts, read_machine(tree))) == facts
    mdevs = [MdevAddress(uuid) for uuid in UUIDS]
    needed = read_needed(tree, facts.functions, mdevs)
    assert needed.functions.keys() == facts.functions.keys()
    for address, function in needed.functions.items():
        assert function == facts.functions[address]._replace(numa_node=None)


def _place(choices: Choices) -> str:
    address, uuid = choices.one_of(ADDRESSES), choices.one_of(UUIDS)
    device = choices.one_of(
        (
            f"sys/bus/pci/devices/{address}",
            f"sys/devices/pci0000:00/{address}",
            f"sys/bus/mdev/devices/{uuid}",
            f"sys/bus/mdev/devices/{uuid}/mdev_type",
            f"sys/class/mdev_bus/{address}/mdev_supported_types/nvidia-1",
            "sys/bus/pci/drivers/vfio-pci",
            "sys/kernel/iommu_groups/1/devices",
            "dev/vfio",
            "dev/vfio/devices",
        )
    )
    return f"{device}/{choices.one_of((*FILES, *LINKS, *ADDRESSES, '1', 'vfio', 'vfio0', ''))}"


def _entry(choices: Choices) -> bytes | str:
    kind = choices.number(3)
    if kind == 0:
        return choices.one_of(CONTENTS)
    if kind == 1:
        return choices.one_of(TARGETS)
    return choices.raw(80)


def _put(root: Directory, path: str, entry: bytes | str) -> None:
    """Where something is in the way nothing is put."""
    here = root
    *parts, name = path.split("/")
    for part in parts:
        below = here.setdefault(part, {})
        if not isinstance(below, dict):
            return
        here = below
    if name:
        here.setdefault(name, entry)
