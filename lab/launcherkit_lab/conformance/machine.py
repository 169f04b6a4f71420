"""What of the machine can go to a guest, by the kernel's own files, and what a container was given of it."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from launcherkit_lab import sysfs
from launcherkit_lab.conformance.cdi import DeviceNode, Edits, mounts_of, nodes_of, variables_of
from launcherkit_lab.conformance.expectation import NotTried
from launcherkit_lab.guest.listing import Listing
from launcherkit_lab.guest.qemu import listed
from launcherkit_lab.kubelet import Holding

VFIO = Path("/dev/vfio")
CONTAINER = str(VFIO / "vfio")
IOMMUFD = "/dev/iommu"
_VFIO_GROUP_GET_STATUS, _VIABLE = 0x3B67, 1  # linux/vfio.h


class Machine:
    """The PCI functions of a machine.

    Args:
        root: what is ``/`` to the driver.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.devices = root / sysfs.DEVICES.relative_to("/")

    def having(self, models: Iterable[str]) -> list[str]:
        """The addresses of the functions with these vendor and device IDs, ``1234:1111``."""
        return sorted(path.name for path in self.devices.iterdir() if self.model(path.name) in set(models))

    def model(self, address: str) -> str:
        """Its vendor and device ID."""
        return ":".join(f"{sysfs.number(address, name, self.devices):04x}" for name in ("vendor", "device"))

    def exists(self, address: str) -> bool:
        return (self.devices / address).is_dir()

    def driver(self, address: str) -> str | None:
        return sysfs.driver(address, self.devices)

    def group(self, address: str) -> str | None:
        return sysfs.group(address, self.devices)

    def members(self, group: str) -> list[str]:
        """The functions of an IOMMU group; empty where there is no such group."""
        folder = self.root / "sys/kernel/iommu_groups" / group / "devices"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def node(self, address: str) -> int | None:
        """Its NUMA node; None where it belongs to none."""
        number = int((self.devices / address / "numa_node").read_text())
        return None if number < 0 else number

    def on_vfio(self, address: str) -> bool:
        """Whether a VFIO driver has it: vfio-pci, or another that makes its character device."""
        return self.driver(address) == "vfio-pci" or (self.devices / address / "vfio-dev").is_dir()

    def cdev(self, address: str) -> str | None:
        """The path of its VFIO character device; None where the kernel makes none."""
        folder = self.devices / address / "vfio-dev"
        return sysfs.cdev(address, self.devices) if folder.is_dir() and any(folder.iterdir()) else None

    def unfit(self, address: str) -> str:
        """Why a function can't go to a guest; empty: it can (Documentation/driver-api/vfio.rst, groups).

        A member of its group may be without a driver, or a bridge, whose driver does no DMA for itself.
        """
        if not self.exists(address):
            return f"there is no function {address}"
        if not self.on_vfio(address):
            return f"{address} is bound to {self.driver(address) or 'no driver'}"
        group = self.group(address)
        if group is None:
            return f"{address} is in no IOMMU group"
        for member in self.members(group):
            driver = self.driver(member)
            bridge = sysfs.number(member, "class", self.devices) >> 16 == 6
            if driver not in (None, "pci-stub") and not self.on_vfio(member) and not bridge:
                return f"{address}: group {group} is not viable, as {member} in it is bound to {driver}"
        return ""

    def unusable(self, path: str) -> str:
        """Why a device node of the host can't be used; empty: it can be opened, and if it is a group's, is viable."""
        try:
            descriptor = os.open(self.root / path.lstrip("/"), os.O_RDWR)
        except OSError as error:
            return f"{path}: {error.strerror}"
        try:
            is_group = Path(path).parent == VFIO and path != CONTAINER
            return (
                "" if not is_group or self.is_viable(descriptor) else f"{path}: the kernel says that it is not viable"
            )
        finally:
            os.close(descriptor)

    def is_viable(self, group: int) -> bool:
        """What the kernel says of a group whose node is open."""
        status = bytearray(struct.pack("=II", 8, 0))
        fcntl.ioctl(group, _VFIO_GROUP_GET_STATUS, status)
        return bool(struct.unpack("=II", status)[1] & _VIABLE)

    def unbind(self, address: str) -> None:
        """Take a function from its driver."""
        sysfs.unbind(address)

    def bind(self, address: str, driver: str) -> None:
        """Give a function to a driver."""
        sysfs.bind(address, driver)

    def guest(self, addresses: Sequence[str], nodes: Mapping[str, str], seconds: float) -> Listing:
        """What a guest finds that has these functions by these nodes; see `launcherkit_lab.guest.qemu.listed`."""
        return listed(addresses, nodes, seconds)

    @contextmanager
    def unbound(self, address: str) -> Iterator[None]:
        """A function has no driver meanwhile.

        Raises:
            NotTried: it can't be taken from its driver.
        """
        driver = self.driver(address)
        assert driver is not None
        try:
            self.unbind(address)
        except (AssertionError, OSError) as error:
            raise NotTried(f"{address} can't be taken from its driver here: {error}") from error
        try:
            yield
        finally:
            self.bind(address, driver)


KUBEVIRT_PREFIX = "PCI_RESOURCE"
"""Of the variables in which KubeVirt looks for host devices; those for SR-IOV interfaces begin with ``PCIDEVICE``
(pkg/virt-launcher/virtwrap/device/hostdevice/sriov/pcipool.go)."""


def variable(resource: str, prefix: str) -> str:
    """The variable in which KubeVirt looks for a resource's devices (ResourceNameToEnvVar in its pkg/util/util.go)."""
    return f"{prefix}_{resource.upper().replace('/', '_').replace('.', '_')}"


class Given(NamedTuple):
    """What a container was given, by the answer itself and by the CDI devices that it names."""

    holding: Holding
    variables: Mapping[str, str]
    devices: tuple[DeviceNode, ...]
    mounts: tuple[str, ...]
    """Paths of the host."""
    addresses: tuple[str, ...]
    """What its variable names."""
    groups: frozenset[str]
    """The IOMMU groups of its addresses and of its nodes."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Its device nodes, as the container has them."""
        return tuple(device.path for device in self.devices)

    def __str__(self) -> str:
        return f"{', '.join(self.holding.ids)} of {self.holding.resource}"


def read_given(holding: Holding, machine: Machine, name: str, named: Sequence[Edits] = ()) -> Given:
    """What a holding comes to on a machine.

    Args:
        name: of the variable that has the addresses.
        named: the edits of the CDI devices that the answer names.
    """
    answer = holding.answer
    variables = {**answer.envs, **variables_of(named)}  # a runtime applies CDI in the end
    devices = {device.path: device for device in nodes_of(named)}
    for one in answer.devices:
        devices[one.container_path] = DeviceNode(one.container_path, one.host_path, one.permissions)
    mounts = (*mounts_of(named), *(mount.host_path for mount in answer.mounts))
    addresses = tuple(address for address in variables.get(name, "").split(",") if address)
    nodes = devices.keys()
    groups = {machine.group(address) for address in addresses if machine.exists(address)}
    groups |= {node.name for node in map(Path, nodes) if node.parent == VFIO and machine.members(node.name)}
    groups |= {machine.group(path.name) for path in machine.devices.iterdir() if machine.cdev(path.name) in nodes}
    held = frozenset(group for group in groups if group)
    return Given(holding, variables, tuple(devices.values()), mounts, addresses, held)
