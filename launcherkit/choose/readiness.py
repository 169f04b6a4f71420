"""Whether a guest could have a function in the host's present state, and what blocks it (V1, V3)."""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from launcherkit.choose.viability import check_isolation, check_viability, touched_groups
from launcherkit.errors import DEVICE_ASLEEP, DEVICE_GONE, NO_IOMMU_GROUP, LauncherkitError
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciFunction, bound_to_vfio, is_bridge, is_gpu

ReadyState: TypeAlias = Literal["ready", "blocked", "idle", "parent", "host", "unused", "bridge"]
"""For GPUs, accelerators and functions with a VFIO driver: ``ready``, ``blocked``, ``idle`` (no driver, or a VF without
a vGPU type) or ``parent`` (its VFs or mediated devices go to guests). For all others: ``host`` if the host uses it,
``unused`` if it has no driver, or ``bridge``."""

FOR_GUESTS: tuple[ReadyState, ...] = ("ready", "blocked", "idle", "parent")
"""The states of devices that are meant for guests."""


class Blocker(NamedTuple):
    """Why QEMU couldn't have a function."""

    code: str
    """The code of the error with which a translation would fail."""
    device: PciAddress
    """The function that is the cause."""
    why: str
    """Such as ``bound to snd_hda_intel``."""
    whole: bool
    """Whether it keeps the whole IOMMU group from guests (V1), not just the device (V3)."""


class Readiness(NamedTuple):
    """The state of a function, and what is in its way."""

    state: ReadyState
    blockers: tuple[Blocker, ...] = ()
    """The blockers of its whole group; for a function that the host uses, those that it causes itself."""

    @property
    def for_guests(self) -> bool:
        """Whether it is a device that is meant for guests."""
        return self.state in FOR_GUESTS


def readiness_of(host: HostFacts) -> Mapping[PciAddress, Readiness]:
    """The readiness of every known function, as if every device that guests could have were attached."""
    parents = {parent.address for parent in host.mdev_parents.values()}
    states = {address: _state(function, host, parents) for address, function in host.functions.items()}
    attached = [address for address, state in states.items() if state in ("ready", "blocked")]
    blockers_of: dict[PciAddress, list[Blocker]] = {address: [] for address in states}
    errors = (*check_viability(touched_groups(attached, host), (), host), *check_isolation(attached, host))
    for error in errors:
        blocker = _blocker(error)
        members: Iterable[PciAddress] = (blocker.device,)
        if blocker.whole and error.group is not None:
            members = (each for each in host.groups.get(error.group, ()) if _is_concerned(each, blocker, states))
        for address in members:
            if address in blockers_of:
                blockers_of[address].append(blocker)
    return {address: _readiness(state, blockers_of[address]) for address, state in states.items()}


def _state(function: PciFunction, host: HostFacts, parents: set[PciAddress | None]) -> ReadyState:
    """The state of a function before its group is considered."""
    detail = host.details.get(function.address)
    if is_bridge(function, detail):
        return "bridge"
    if bound_to_vfio(function, detail):
        return "ready"
    if detail is not None and detail.vgpu is not None:
        return "idle"
    if not is_gpu(function):
        return "unused" if function.driver is None else "host"
    if function.address in parents or (detail is not None and detail.virtfns):
        return "parent"
    return "idle" if function.driver is None else "blocked"


def _is_concerned(address: PciAddress, blocker: Blocker, states: Mapping[PciAddress, ReadyState]) -> bool:
    return address == blocker.device or states.get(address) in ("ready", "blocked", "idle")


def _blocker(error: LauncherkitError) -> Blocker:
    whole = error.group is not None
    if error.code == NO_IOMMU_GROUP.code:
        reason, whole = "in no IOMMU group" if error.group is None else "in VFIO's no-IOMMU mode", False
    elif error.code == DEVICE_ASLEEP.code:
        reason = "in power state D3cold"
    elif error.code == DEVICE_GONE.code:
        reason = "fallen off the bus"
    elif error.driver is not None:
        reason = f"bound to {error.driver}"
    else:
        reason = "can't be read" if whole else "the physical function of a vGPU card"
    return Blocker(error.code, PciAddress.parse(error.device or ""), reason, whole)


def _readiness(state: ReadyState, blockers: list[Blocker]) -> Readiness:
    return Readiness("blocked" if blockers and state == "ready" else state, tuple(blockers))
