"""Reads mediated devices, and the devices on which they can be created."""

from __future__ import annotations

from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.host import Mdev, MdevParent, MdevType
from launcherkit.sources.file_tree import Tree
from launcherkit.sources.identity import base_name, group_number, number, text

_DEVICES = "sys/bus/mdev/devices"
_PARENTS = "sys/class/mdev_bus"


def read_mdev(tree: Tree, uuid: str) -> Mdev | None:
    """The mdev with that UUID; None if it doesn't exist."""
    device = f"{_DEVICES}/{uuid}"
    type_id = base_name(tree.link(device + "/mdev_type"))
    if type_id is None:
        return None
    path = (tree.link(device) or "").split("/")
    return Mdev(
        uuid,
        path[-2] if len(path) > 1 else "",
        type_id,
        text(tree.read(device + "/mdev_type/name")),
        text(tree.read(device + "/mdev_type/device_api")),
        group_number(tree.link(device + "/iommu_group")),
    )


def read_mdevs(tree: Tree) -> dict[str, Mdev]:
    """Every mdev, by UUID."""
    mdevs = {}
    for name in tree.names(_DEVICES):
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
