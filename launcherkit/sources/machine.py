"""Reads a machine's identity, which only ``launcherkit snapshot --all`` shows."""

from __future__ import annotations

from launcherkit.sources.file_tree import Tree
from launcherkit.sources.identity import DEVICES, text

_FILES = {
    "hostname": "proc/sys/kernel/hostname",
    "kernel": "proc/sys/kernel/osrelease",
    "vendor": "sys/class/dmi/id/sys_vendor",
    "product": "sys/class/dmi/id/product_name",
    "board": "sys/class/dmi/id/board_name",
    "bios": "sys/class/dmi/id/bios_version",
    "serial_number": "sys/class/dmi/id/product_serial",
}


def read_machine(tree: Tree) -> dict[str, object]:
    """Host name, kernel, DMI names and serial numbers, as far as they exist and are readable."""
    machine: dict[str, object] = {key: value for key, path in _FILES.items() if (value := text(tree.read(path)))}
    with tree.below(DEVICES) as devices:
        serials = {name: text(devices.read(f"{name}/serial_number")) for name in devices.names("")}
    found = {name: serial for name, serial in serials.items() if serial}
    if found:
        machine["pci_serial_numbers"] = found
    return machine
