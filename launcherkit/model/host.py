"""What is known about a host: functions, groups, mediated devices, VFIO nodes."""

from collections.abc import Mapping
from typing import NamedTuple

from launcherkit.model.address import PciAddress

# What sysfs says about one PCI function, in two parts.


class PciFunction(NamedTuple):
    """Identity of a PCI function: four reads of sysfs.

    Attributes:
        address: Its BDF.
        vendor: Vendor ID.
        device: Device ID.
        subsystem_vendor: 0 if sysfs doesn't say.
        subsystem_device: 0 if sysfs doesn't say.
        class_code: 24 bits, 0xCCSSPP, as in the file ``class``.
        driver: The kernel driver to which it is bound; None for none.
        iommu_group: None if it is in none.
        numa_node: None if the kernel says -1.
        physfn: The physical function of which this one is a VF.
    """

    address: PciAddress
    vendor: int
    device: int
    subsystem_vendor: int
    subsystem_device: int
    class_code: int
    driver: str | None
    iommu_group: int | None
    numa_node: int | None
    physfn: PciAddress | None

    @property
    def is_vf(self) -> bool:
        return self.physfn is not None

    @property
    def is_bridge_by_class(self) -> bool:
        """Whether it is a PCI-PCI, CardBus or semi-transparent bridge: classes with a bridge's header in config space.

        Others of class 06 are endpoints: NVSwitches, host bridges, ISA bridges. The header itself decides if it is
        known: see `launcherkit.choose.functions.is_bridge`.
        """
        return self.class_code >> 8 in (0x0604, 0x0607, 0x0609)

    @property
    def is_hd_audio(self) -> bool:
        """Whether it is HD audio, as on most graphics cards; its small BAR doesn't matter for the window (P5)."""
        return self.class_code >> 8 == 0x0403

    @property
    def ids(self) -> str:
        """Vendor and device ID as text: ``10de:2204``."""
        return f"{self.vendor:04x}:{self.device:04x}"

    @property
    def model(self) -> tuple[int, int]:
        """Vendor and device ID, which tell further primaries of a card from siblings (C2, S1)."""
        return self.vendor, self.device


class Bar(NamedTuple):
    """One line of the file ``resource``.

    Attributes:
        line: Counted from 0; 6 is the ROM, 7 and up are the VFs' windows.
        start: The first address.
        end: The last address.
        flags: The kernel's ``IORESOURCE_*``.
    """

    line: int
    start: int
    end: int
    flags: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start + 1 if self.end else 0


class VgpuVf(NamedTuple):
    """The vGPU side of a VF of an SR-IOV vGPU card: ``<VF>/nvidia/`` (G4).

    Attributes:
        current_type: 0 if no type is set.
        creatable: Number and name of each type in the table ``creatable_vgpu_types``.
    """

    current_type: int
    creatable: tuple[tuple[int, str], ...]


class PciLink(NamedTuple):
    """The PCIe link between a function and the port above it.

    Attributes:
        speed: MT/s per lane, such as 16000; None if sysfs doesn't say.
        width: Lanes; None if sysfs doesn't say.
        max_speed: The function's own maximum.
        max_width: The function's own maximum.
    """

    speed: int | None
    width: int | None
    max_speed: int | None
    max_width: int | None


class PciDetail(NamedTuple):
    """The other facts about a PCI function that rules and bug reports use.

    Attributes:
        revision: One byte.
        header_type: Byte 0x0e of config space without its multifunction bit; 1 and 2 are bridges.
        config_readable: False if config space reads all ones: the device has fallen off the bus (V3).
        driver_override: As in sysfs; None if it is empty.
        driver_module: The module of its driver; None if the driver is built in, or there is none.
        parents: What is above it in the device path, from the root complex down: ``pci0000:e0``,
            ``0000:e0:01.1``.
        virtfns: Its VFs, in order.
        sriov_numvfs: The number of existing VFs; None if it can't have any.
        sriov_totalvfs: The number of possible VFs.
        resources: Its non-empty BARs and windows.
        has_rom: Whether sysfs has a ``rom``.
        reset_methods: Such as ``flr`` and ``bus``, best first; empty if the kernel doesn't list them.
        power_state: Such as ``D0``; None if sysfs doesn't say.
        vfio_dev: The name of its VFIO character device in ``/dev/vfio/devices``, such as ``vfio3`` (with
            iommufd).
        vgpu: None except for VFs of SR-IOV vGPU cards.
        link: None for VFs, which have none of their own, and for functions that aren't PCIe.
    """

    revision: int | None
    header_type: int | None
    config_readable: bool
    driver_override: str | None
    driver_module: str | None
    parents: tuple[str, ...]
    virtfns: tuple[PciAddress, ...]
    sriov_numvfs: int | None
    sriov_totalvfs: int | None
    resources: tuple[Bar, ...]
    has_rom: bool
    reset_methods: tuple[str, ...]
    power_state: str | None
    vfio_dev: str | None
    vgpu: VgpuVf | None
    link: PciLink | None = None


def is_vfio_name(name: str | None) -> bool:
    """Whether a driver is vfio-pci or a variant; the kernel names these ``<vendor>_vfio_pci`` or with dashes."""
    return name is not None and name.endswith(("vfio-pci", "vfio_pci"))


class MdevType(NamedTuple):
    """A type that an mdev parent offers.

    Attributes:
        id: Its directory under ``mdev_supported_types``, such as ``nvidia-222``.
        name: Such as ``GRID T4-1Q``; None if the driver has no name file.
        device_api: ``vfio-pci``, ``vfio-ap`` or ``vfio-ccw``.
        available_instances: How many more can be created.
        description: The driver's description.
    """

    id: str
    name: str | None
    device_api: str | None
    available_instances: int | None
    description: str | None


class MdevParent(NamedTuple):
    """A device on which mediated devices can be created; not always a PCI device.

    Attributes:
        name: Its directory in ``/sys/class/mdev_bus``.
        address: None if it isn't a PCI device.
        types: The types that it offers.
    """

    name: str
    address: PciAddress | None
    types: tuple[MdevType, ...]


class Mdev(NamedTuple):
    """A mediated device that exists.

    Attributes:
        uuid: In lower case.
        parent: The name of the device on which it was created.
        type_id: Such as ``nvidia-222``.
        type_name: Such as ``GRID T4-1Q``; None if the driver has no name file.
        device_api: ``vfio-pci``, ``vfio-ap`` or ``vfio-ccw``: the hostdev's ``model`` (X3).
        iommu_group: None if it is in none.
    """

    uuid: str
    parent: str
    type_id: str
    type_name: str | None
    device_api: str | None
    iommu_group: int | None


class NumaNode(NamedTuple):
    """A NUMA node of the host.

    Attributes:
        cpus: Empty for a node with only memory.
        distances: To each node including itself, which is 10.
    """

    cpus: frozenset[int]
    distances: Mapping[int, int]


class HostFacts(NamedTuple):
    """Frozen facts about a host, or about the part that was asked for.

    Attributes:
        known: False if nothing at all is known (C3); then every mapping is empty.
        functions: By address.
        details: The other facts about functions, by address; possibly only for some functions.
        groups: The members of each IOMMU group, by number.
        mdevs: By UUID.
        mdev_parents: By name.
        nodes: Paths of VFIO's device nodes; None if the source can't tell.
        container_dev: ``/dev`` is a container's, without the nodes that every host has and no container gets
            (S2). If facts were read by need, it has no VFIO nodes besides ``nodes`` either.
        recorded: Whether it is a snapshot or a recording, made earlier and maybe on another machine.
        unknown: Functions that exist and can't be read, and why (T2). They are not in ``functions``, but among
            the members of their groups if those can be listed.
        noiommu: Those of ``groups`` that are no IOMMU's: VFIO made them in its unsafe no-IOMMU mode, with the
            nodes ``/dev/vfio/noiommu-N`` (V1).
        numa: The host's NUMA nodes; empty if they were not asked for, or the host has none (P4).
        events: How many uevents the kernel had sent before reading began; None if they aren't counted.
    """

    known: bool
    functions: Mapping[PciAddress, PciFunction]
    details: Mapping[PciAddress, PciDetail]
    groups: Mapping[int, tuple[PciAddress, ...]]
    mdevs: Mapping[str, Mdev]
    mdev_parents: Mapping[str, MdevParent]
    nodes: frozenset[str] | None
    container_dev: bool = False
    recorded: bool = False
    unknown: Mapping[PciAddress, str] = {}
    noiommu: frozenset[int] = frozenset()
    numa: Mapping[int, NumaNode] = {}
    events: bytes | None = None

    def physical_function(self, address: PciAddress) -> PciAddress:
        """The physical function of a VF; any other function is its own."""
        function = self.functions.get(address)
        return address if function is None or function.physfn is None else function.physfn

    def slot_functions(self, address: PciAddress) -> list[PciFunction]:
        """The known functions of an address's slot, by function number."""
        (domain, bus, device, _), get = address, self.functions.get
        return [
            function for number in range(8) if (function := get(PciAddress(domain, bus, device, number))) is not None
        ]


NO_FACTS = HostFacts(False, {}, {}, {}, {}, {}, None)
"""The facts of `Host.none`."""
