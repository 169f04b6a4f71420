"""What sysfs says of one PCI function, in two parts.

`PciFunction` is what every rule needs and a scan of thousands of functions can afford;
`PciDetail` is the rest, read for the functions that a rule touches and for snapshots.
"""

from launcherkit.model.address import PciAddress
from launcherkit.model.value import NamedTuple, documented


@documented(
    address="Its BDF.",
    vendor="Vendor ID.",
    device="Device ID.",
    subsystem_vendor="0 where sysfs doesn't say.",
    subsystem_device="0 where sysfs doesn't say.",
    class_code="24 bits, 0xCCSSPP, as in the file ``class``.",
    driver="The kernel driver that it is bound to; None for none.",
    iommu_group="None where it is in none.",
    numa_node="None where the kernel says -1.",
    physfn="The physical function this one is a VF of.",
)
class PciFunction(NamedTuple):
    """Identity of a PCI function: four reads of sysfs."""

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
        """PCI-PCI, CardBus and semi-transparent bridges: classes whose config space has a bridge's header.

        Others of class 06 are endpoints: NVSwitches, host bridges, ISA bridges. The header itself, where it is known,
        is the truth: see `launcherkit.resolve.vfio.is_bridge`.
        """
        return self.class_code >> 8 in (0x0604, 0x0607, 0x0609)

    @property
    def is_hd_audio(self) -> bool:
        """As most graphics cards have one: its BAR has kilobytes, for which a window has room anyway (P5)."""
        return self.class_code >> 8 == 0x0403

    @property
    def model(self) -> tuple[int, int]:
        """vendor:device, by which a card's further primaries are told from its siblings (C2, S1)."""
        return self.vendor, self.device


@documented(
    line="Counted from 0; 6 is the ROM, 7 and up are the VFs' windows.",
    start="The first address.",
    end="The last address.",
    flags="The kernel's ``IORESOURCE_*``.",
)
class Bar(NamedTuple):
    """One line of the file ``resource``; ``line`` counts them, 6 is the ROM, 7 and up the VFs' windows."""

    line: int
    start: int
    end: int
    flags: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start + 1 if self.end else 0


@documented(
    current_type="0 where no type is set.",
    creatable="Type number and name, as the table ``creatable_vgpu_types`` has them.",
)
class VgpuVf(NamedTuple):
    """The vGPU side of a VF of an SR-IOV vGPU card: ``<VF>/nvidia/`` (G4)."""

    current_type: int
    creatable: tuple[tuple[int, str], ...]


@documented(
    speed="MT/s a lane: 16000; None where sysfs doesn't say.",
    width="Lanes; None where sysfs doesn't say.",
    max_speed="What the function itself could do.",
    max_width="What the function itself could do.",
)
class PciLink(NamedTuple):
    """The PCIe link to what is above a function."""

    speed: int | None
    width: int | None
    max_speed: int | None
    max_width: int | None


@documented(
    revision="One byte.",
    header_type="Byte 0x0e of config space without its multifunction bit; 1 and 2 are bridges.",
    config_readable="False where config space reads all ones: the device has fallen off the bus (V3).",
    driver_override="As sysfs has it; None where it is empty.",
    driver_module="The module of its driver; None where that is built in or there is none.",
    parents=("From the root complex down, as the device path names them: ``pci0000:e0``, ``0000:e0:01.1``."),
    virtfns="Its VFs, in order.",
    sriov_numvfs="VFs that there are; None where it can have none.",
    sriov_totalvfs="VFs that there can be.",
    resources="BARs and windows that are not empty.",
    has_rom="Whether sysfs has a ``rom``.",
    reset_methods="``flr``, ``bus`` and the like, best first; empty where the kernel doesn't tell.",
    power_state="``D0`` and the like; None where sysfs doesn't say.",
    vfio_dev=("Name of the VFIO character device, ``vfio3`` (with iommufd), found at ``/dev/vfio/devices``."),
    vgpu="None for all but the VFs of SR-IOV vGPU cards.",
    link="None for VFs, which have none of their own, and where it is no PCIe.",
)
class PciDetail(NamedTuple):
    """The rest of what the rules and a bug report use of a PCI function."""

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
    """``vfio-pci`` and its variants, which the kernel names ``<vendor>_vfio_pci`` or ``<vendor>-vfio-pci``."""
    return name is not None and name.replace("-", "_").endswith("vfio_pci")
