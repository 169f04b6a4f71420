"""Reads a whole host from a tree with ``sys/`` and ``dev/``."""

from __future__ import annotations

from launcherkit.errors import UnreadableFile
from launcherkit.host.functions import DEVICES, DRIVERS, DetailReader, IdentityReader, number, text
from launcherkit.host.query import MDEVS, is_container_dev, is_noiommu, read_mdev, read_numa, scan_identity
from launcherkit.host.tree import Tree, why_unread
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.host import HostFacts, Mdev, MdevParent, MdevType

# Mediated devices, and the devices on which they can be created.

_PARENTS = "sys/class/mdev_bus"


def read_mdevs(tree: Tree) -> dict[str, Mdev]:
    """Every mdev, by UUID."""
    mdevs = {}
    for name in tree.names(MDEVS):
        try:
            uuid = MdevAddress.parse(name).uuid
        except ValueError:
            continue
        mdev = read_mdev(tree, name)
        if mdev is not None:
            mdevs[uuid] = mdev._replace(uuid=uuid)
    return mdevs


def read_parents(tree: Tree) -> dict[str, MdevParent]:
    """Every device on which mdevs can be created, with its types, by name."""
    parents = {}
    for name in tree.names(_PARENTS):
        types = f"{_PARENTS}/{name}/mdev_supported_types"
        offered = tuple(_read_type(tree, types, type_id) for type_id in tree.names(types))
        try:
            address = PciAddress.parse(name)
        except ValueError:
            address = None
        parents[name] = MdevParent(name, address, offered)
    return parents


def _read_type(tree: Tree, types: str, type_id: str) -> MdevType:
    return MdevType(
        type_id,
        text(tree.read(f"{types}/{type_id}/name")),
        text(tree.read(f"{types}/{type_id}/device_api")),
        number(tree.read(f"{types}/{type_id}/available_instances")),
        text(tree.read(f"{types}/{type_id}/description")),
    )


# The machine's identity, which only ``launcherkit snapshot --all`` shows.

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
    numbers = {name: serial for name, serial in serials.items() if serial}
    if numbers:
        machine["pci_serial_numbers"] = numbers
    return machine


# The device nodes below a tree's ``dev/``, and whether that is a container's.


def read_nodes(tree: Tree) -> frozenset[str] | None:
    """The paths of VFIO's device nodes; None if the tree has no ``dev/``."""
    nodes = ["/dev/vfio/" + name for name in tree.names("dev/vfio") if name != "devices"]
    nodes += ["/dev/vfio/devices/" + name for name in tree.names("dev/vfio/devices")]
    if tree.exists("dev/iommu"):
        nodes.append("/dev/iommu")
    return frozenset(nodes) if nodes or tree.exists("dev") else None


def scan_all(tree: Tree) -> HostFacts:
    """Everything about the host."""
    facts = scan_identity(tree)
    details = {}
    unknown = dict(facts.unknown)
    with tree.below(DEVICES) as devices, tree.below(DRIVERS) as drivers:
        reader = DetailReader(drivers, IdentityReader())
        for address, function in facts.functions.items():
            name = str(address)
            with devices.below(name) as directory:
                try:
                    details[address] = reader.whole(directory, function, devices.link(name))
                except UnreadableFile as problem:
                    unknown[address] = why_unread(problem)
    return facts._replace(
        details=details,
        mdevs=read_mdevs(tree),
        mdev_parents=read_parents(tree),
        nodes=read_nodes(tree),
        container_dev=is_container_dev(tree),
        unknown=unknown,
        noiommu=frozenset(group for group in facts.groups if is_noiommu(tree, group)),
        numa=read_numa(tree),
    )
