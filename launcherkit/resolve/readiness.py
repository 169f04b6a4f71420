"""Decides which functions of a host guests could have, and what is in the way of the others (V1, V3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from launcherkit.errors import DeviceAsleep, DeviceGone, LauncherkitError, NoIommuGroup
from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit.model.readiness import Blocker, Readiness, ReadyState
from launcherkit.resolve.pci_class import is_gpu
from launcherkit.resolve.vfio import bound_to_vfio, is_bridge
from launcherkit.resolve.viability import check_isolation, check_viability, touched_groups


def readiness_of(host: HostFacts) -> Mapping[PciAddress, Readiness]:
    """The readiness of every known function, as if every device that guests could have were attached."""
    parents = {parent.address for parent in host.mdev_parents.values()}
    states = {address: _state(function, host, parents) for address, function in host.functions.items()}
    attached = [address for address, state in states.items() if state in ("ready", "blocked")]
    found: dict[PciAddress, list[Blocker]] = {address: [] for address in states}
    errors = (*check_viability(touched_groups(attached, host), (), host), *check_isolation(attached, host))
    for error in errors:
        blocker = _blocker(error)
        members: Iterable[PciAddress] = (blocker.device,)
        if blocker.whole and error.group is not None:
            members = (each for each in host.groups.get(error.group, ()) if _is_concerned(each, blocker, states))
        for address in members:
            if address in found:
                found[address].append(blocker)
    return {address: _readiness(state, found[address]) for address, state in states.items()}


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
    if isinstance(error, NoIommuGroup):
        why, whole = "in no IOMMU group" if error.group is None else "in VFIO's no-IOMMU mode", False
    elif isinstance(error, DeviceAsleep):
        why = "in power state D3cold"
    elif isinstance(error, DeviceGone):
        why = "fallen off the bus"
    elif error.driver is not None:
        why = f"bound to {error.driver}"
    else:
        why = "can't be read" if whole else "the physical function of a vGPU card"
    return Blocker(error.code, PciAddress.parse(error.device or ""), why, whole)


def _readiness(state: ReadyState, blockers: list[Blocker]) -> Readiness:
    return Readiness("blocked" if blockers and state == "ready" else state, tuple(blockers))
