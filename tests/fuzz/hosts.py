"""Hosts that a fuzzer makes up: slots, groups and drivers in every mixture."""

from __future__ import annotations

from collections.abc import Iterable

from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.host import NO_FACTS, HostFacts, Mdev, PciDetail, PciFunction, VgpuVf
from tests.fuzz.choices import Choices

CLASSES = (0x030000, 0x040300, 0x030200, 0x020000, 0x060400, 0x060100, 0x0C0330, 0x010802, 0x120000)
DRIVERS = (*["vfio-pci"] * 9, None, "mlx5_vfio_pci", "pci-stub", "igb", "snd_hda_intel", "nvidia", "pcieport")
"""Mostly such that the group is viable: a translation that is refused shows little."""
UUIDS = tuple(f"{number:08x}-0000-4000-8000-000000000000" for number in range(4))


class FactsHost:
    """A host of which the facts are given."""

    def __init__(self, facts: HostFacts) -> None:
        self._facts = facts

    def facts(self, addresses: Iterable[PciAddress], mdevs: Iterable[MdevAddress] = (), **_: bool) -> HostFacts:
        return self._facts


def make_host(choices: Choices) -> HostFacts:
    """A host of up to four slots, or one of which nothing is known."""
    if choices.number(8) == 7:
        return NO_FACTS
    functions: dict[PciAddress, PciFunction] = {}
    details: dict[PciAddress, PciDetail] = {}
    for bus in range(1, 2 + choices.number(4)):
        for number in range(1 + choices.number(4)):
            address = PciAddress(0, bus, choices.number(2), number)
            physfn = PciAddress(0, bus, 0, 0) if number and choices.number(8) == 7 else None
            group = choices.number(5) or None
            functions[address] = PciFunction(
                address,
                choices.one_of((0x10DE, 0x8086)),
                choices.one_of((0x2204, 0x1AEF)),
                0,
                0,
                choices.one_of(CLASSES),
                choices.one_of(DRIVERS),
                group,
                None,
                physfn,
            )
            if choices.flag():
                details[address] = _detail(choices, physfn is not None)
    groups: dict[int, tuple[PciAddress, ...]] = {}
    for function in functions.values():
        if function.iommu_group is not None:
            groups[function.iommu_group] = (*groups.get(function.iommu_group, ()), function.address)
    mdevs = {
        uuid: Mdev(uuid, "0000:01:00.0", "nvidia-1", None, choices.one_of(("vfio-pci", None, "vfio-ccw")), None)
        for uuid in choices.some_of(UUIDS, 2)
    }
    nodes = None
    if choices.flag():
        missing = choices.some_of(sorted(groups), 1)
        nodes = frozenset({"/dev/vfio/vfio", *(f"/dev/vfio/{group}" for group in groups if group not in missing)})
    return HostFacts(True, functions, details, groups, mdevs, {}, nodes)


def _detail(choices: Choices, is_vf: bool) -> PciDetail:
    return PciDetail(
        revision=None,
        header_type=choices.one_of((0, 1, 2, None)),
        config_readable=choices.number(32) != 31,
        driver_override=None,
        driver_module=choices.one_of((None, "vfio_pci", "igb")),
        parents=(),
        virtfns=(),
        sriov_numvfs=None,
        sriov_totalvfs=None,
        resources=(),
        has_rom=False,
        reset_methods=(),
        power_state=choices.one_of((None, *["D0"] * 14, "D3cold")),
        vfio_dev=choices.one_of((None, "vfio0", "vfio1")),
        vgpu=VgpuVf(choices.number(3), ()) if is_vf and choices.flag() else None,
    )
