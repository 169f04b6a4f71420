"""Which root complexes of the guest get a virtual SMMUv3 (P9). Pure."""

from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from launcherkit.model.address import HostAddress
from launcherkit.model.domain import PCIE_EXPANDER, GuestTree
from launcherkit.model.plan import GuestDevice, GuestPlace, Note


class Smmus(NamedTuple):
    """The indices of the expanders that get one, in order. With notes."""

    buses: tuple[int, ...] = ()
    notes: tuple[Note, ...] = ()


def smmus_of(
    devices: Iterable[GuestDevice],
    guests: Mapping[HostAddress, GuestPlace],
    tree: GuestTree,
    present: Set[int] | None,
    by_iommufd: Set[HostAddress],
) -> Smmus:
    """One for each expander with functions that go to VFIO through iommufd, unless the document has it.

    The stage of translation that the guest writes is the host's hardware's, and only iommufd can tell the host's SMMU
    of it: QEMU doesn't start with a function of a VFIO group behind such an SMMUv3.

    Args:
        devices: of the plan.
        guests: the guest's places of their functions.
        tree: the guest's PCI tree, with what is added to it.
        present: the expanders that have one; None where the document has an IOMMU for the whole machine.
        by_iommufd: what goes to VFIO through iommufd.
    """
    behind: dict[int, list[HostAddress]] = {}
    for source in [each.source for device in devices for each in device.attachments]:
        if source in guests and (expander := _expander_above(guests[source], tree)) is not None:
            behind.setdefault(expander, []).append(source)
    if not behind:
        return Smmus(notes=(_NOWHERE,) if guests else ())
    if present is None:
        return Smmus(notes=(_OF_THE_MACHINE,))
    able = {bus for bus, sources in behind.items() if by_iommufd >= set(sources)}
    others = [source for bus, sources in behind.items() if bus not in {*able, *present} for source in sources]
    return Smmus(tuple(sorted(able - present)), (_by_group(others),) if others else ())


def _expander_above(place: GuestPlace, tree: GuestTree) -> int | None:
    top = next(iter(tree.path(place.address)), None)
    return top.number if top is not None and top.model == PCIE_EXPANDER else None


def _by_group(sources: Iterable[HostAddress]) -> Note:
    text = "get no SMMUv3 in the guest: not all functions behind their expanders go to VFIO through iommufd"
    return Note("smmuv3", f"{', '.join(map(str, sources))} {text}")


TOO_OLD = Note("smmuv3", "no SMMUv3 is written: its attribute accel needs libvirt 12.7 or later")
_OF_THE_MACHINE = Note("smmuv3", "no SMMUv3 is written: the domain has an IOMMU of its own, for the whole machine")
_NOWHERE = Note(
    "smmuv3",
    "no SMMUv3 is written: no function is behind a pcie-expander-bus; `topology` or `genericInitiators` add them",
)
