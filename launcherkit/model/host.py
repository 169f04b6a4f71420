"""What is known about a host: functions, groups, mediated devices, VFIO nodes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from launcherkit.model.address import HostAddress, MdevAddress, PciAddress

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
        """Whether it is a virtual function."""
        return self.physfn is not None

    @property
    def is_bridge_by_class(self) -> bool:
        """Whether it is a PCI-PCI, CardBus or semi-transparent bridge: classes with a bridge's header in config space.

        Others of class 06 are endpoints: NVSwitches, host bridges, ISA bridges. The header itself decides if it is
        known: see `is_bridge`.
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
        placement: Where the driver has placed its vGPU on the card, ``placement_id``; None if it doesn't say.
        gpu_instance: The GPU instance of a MIG-backed vGPU, ``gpu_instance_id``; None if it doesn't say.
    """

    current_type: int
    creatable: tuple[tuple[int, str], ...]
    placement: int | None = None
    gpu_instance: int | None = None


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


# What a PCI function is, by its class code.

_RANKS = (
    (0x03, None),  # display
    (0x12, None),  # processing accelerator
    (0x0B, 0x40),  # co-processor
    (0x02, None),  # network
    (0x01, None),  # storage
)


def primary_rank(function: PciFunction) -> int:
    """The rank of a function as the primary of its slot; lower is better (C2)."""
    base, sub = function.class_code >> 16, function.class_code >> 8 & 0xFF
    for rank, (wanted_base, wanted_sub) in enumerate(_RANKS):
        if base == wanted_base and wanted_sub in (None, sub):
            return rank
    return len(_RANKS)


_NAMES = {
    0x01: "storage controller",
    0x02: "network controller",
    0x03: "display controller",
    0x0403: "audio device",
    0x0600: "host bridge",
    0x0601: "ISA bridge",
    0x0604: "PCI bridge",
    0x06: "bridge",
    0x0B40: "co-processor",
    0x0C03: "USB controller",
    0x0C80: "serial bus controller",
    0x12: "processing accelerator",
}


def class_name(function: PciFunction) -> str:
    """The class in words, or ``class 0xCCSS`` if it has no name here."""
    base, base_sub = function.class_code >> 16, function.class_code >> 8
    return _NAMES.get(base_sub) or _NAMES.get(base) or f"class 0x{base_sub:04x}"


def is_gpu(function: PciFunction) -> bool:
    """Whether a request for it without a section belongs under ``gpus`` (Q1)."""
    return primary_rank(function) <= 2


def is_chipset(function: PciFunction) -> bool:
    """Whether it is a host bridge or a bridge to ISA, EISA or Micro Channel: an endpoint, but useless to a guest."""
    return 0x0600 <= function.class_code >> 8 <= 0x0603


def describe(function: PciFunction) -> str:
    """An address with class and IDs: ``0000:e1:00.1 audio device 10de:1aef``."""
    vf = f", VF of {function.physfn}" if function.physfn else ""
    return f"{function.address} {class_name(function)} {function.ids}{vf}"


def switches_above(path: Sequence[str]) -> tuple[str, ...]:
    """The upstream ports of the PCIe switches above a function, from the root complex down.

    Args:
        path: what is above it (`PciDetail.parents`): a root complex, below it a root port, then an upstream and a
            downstream port for each switch. A bridge to conventional PCI may end it. Intel's VMD has a root complex of
            its own below that of the processor.
    """
    root = max((at for at, part in enumerate(path) if part.startswith("pci")), default=len(path))
    return tuple(path[root + 2 : -1 : 2])


# VFIO's view of a function: whether its driver is a VFIO driver, and its IOMMU group (V1).


def bound_to_vfio(function: PciFunction, detail: PciDetail | None) -> bool:
    """Whether its driver is vfio-pci or a variant; that of a vGPU VF with a type is its vendor's driver (V1)."""
    if is_vfio_name(function.driver):
        return True
    if detail is None or function.driver is None:
        return False
    return is_vfio_name(detail.driver_module) or is_vgpu_vf(detail)


def is_vgpu_vf(detail: PciDetail | None) -> bool:
    """Whether it is a VF of an SR-IOV vGPU card with a type set (G4); of what isn't known it isn't."""
    return detail is not None and detail.vgpu is not None and detail.vgpu.current_type != 0


def is_bridge(function: PciFunction, detail: PciDetail | None) -> bool:
    """Whether it is a bridge, by its header type as in the kernel (V1); by its class if that isn't known."""
    header_type = None if detail is None else detail.header_type
    return function.is_bridge_by_class if header_type is None else header_type in (1, 2)


def group_of(source: HostAddress, host: HostFacts) -> int | None:
    """The IOMMU group of a function or an mdev; None if it has none or isn't known."""
    if isinstance(source, PciAddress):
        function = host.functions.get(source)
        return None if function is None else function.iommu_group
    if isinstance(source, MdevAddress):
        mdev = host.mdevs.get(source.uuid)
        return None if mdev is None else mdev.iommu_group
    return None
