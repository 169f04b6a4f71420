"""Host facts made by hand, for tests that need no file tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.host import HostFacts, Mdev, MdevParent, PciDetail, PciFunction

DISPLAY = 0x030000
AUDIO = 0x040300
USB = 0x0C0330
UCSI = 0x0C8000
NIC = 0x020000
NVME = 0x010802
BRIDGE = 0x060400

NVIDIA = 0x10DE
_DEVICES = {DISPLAY: 0x2204, AUDIO: 0x1AEF, USB: 0x1AD8, UCSI: 0x1AD9, NIC: 0x1017, NVME: 0xA808, BRIDGE: 0x1901}

UUID = "11111111-2222-3333-4444-555555555555"
UUID2 = "22222222-2222-3333-4444-555555555555"


def at(text: str) -> PciAddress:
    return PciAddress.parse(text)


def function(
    address: str,
    class_code: int = DISPLAY,
    *,
    driver: str | None = "vfio-pci",
    group: int | None = 1,
    vendor: int = NVIDIA,
    device: int | None = None,
    physfn: str | None = None,
) -> PciFunction:
    """A function whose device ID goes with its class, so that two of one class are of one model."""
    return PciFunction(
        address=at(address),
        vendor=vendor,
        device=_DEVICES.get(class_code, 0x0001) if device is None else device,
        subsystem_vendor=0,
        subsystem_device=0,
        class_code=class_code,
        driver=driver,
        iommu_group=group,
        numa_node=None,
        physfn=None if physfn is None else at(physfn),
    )


def card(slot: str, group: int, *, driver: str | None = "vfio-pci") -> tuple[PciFunction, PciFunction]:
    """A GPU with its audio, in one group."""
    return (
        function(f"{slot}.0", driver=driver, group=group),
        function(f"{slot}.1", AUDIO, driver=driver, group=group),
    )


_DETAIL = PciDetail(
    revision=None,
    header_type=0,
    config_readable=True,
    driver_override=None,
    driver_module=None,
    parents=(),
    virtfns=(),
    sriov_numvfs=None,
    sriov_totalvfs=None,
    resources=(),
    has_rom=False,
    reset_methods=(),
    power_state="D0",
    vfio_dev=None,
    vgpu=None,
)


def detail(**changed: Any) -> PciDetail:
    """Details of a function in good health, but for what is given."""
    return _DETAIL._replace(**changed)


def mdev(
    uuid: str = UUID, *, group: int | None = 90, device_api: str | None = "vfio-pci", parent: str = "0000:3b:00.0"
) -> Mdev:
    return Mdev(uuid, parent, "nvidia-222", "GRID T4-1Q", device_api, group)


def facts(
    *functions: PciFunction,
    details: Mapping[str, PciDetail] | None = None,
    mdevs: Iterable[Mdev] = (),
    parents: Iterable[MdevParent] = (),
    nodes: Iterable[str] | None = None,
    container_dev: bool = False,
) -> HostFacts:
    """A host of these functions; the groups follow from them."""
    groups: dict[int, list[PciAddress]] = {}
    for each in functions:
        if each.iommu_group is not None:
            groups.setdefault(each.iommu_group, []).append(each.address)
    return HostFacts(
        known=True,
        functions={each.address: each for each in functions},
        details={at(address): each for address, each in (details or {}).items()},
        groups={number: tuple(sorted(members)) for number, members in groups.items()},
        mdevs={each.uuid: each for each in mdevs},
        mdev_parents={each.name: each for each in parents},
        nodes=None if nodes is None else frozenset(nodes),
        container_dev=container_dev,
    )


class FixedHost:
    """A host of which the facts are given."""

    def __init__(self, *functions: PciFunction, **known: Any) -> None:
        self._facts = facts(*functions, **known)

    def facts(self, addresses: Iterable[PciAddress], mdevs: Iterable[MdevAddress] = (), **_: bool) -> HostFacts:
        return self._facts
