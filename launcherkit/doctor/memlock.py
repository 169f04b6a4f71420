"""Is the limit of locked memory high enough for the guest's RAM, which VFIO pins?

libvirt's rule (`qemuDomainGetMemLockLimitBytes` in its src/qemu/qemu_domain.c): ``<memtune><hard_limit>`` if there is
one; no limit with ``<memoryBacking><locked/>``; else factor x RAM + 1 GiB. The factor counts each NVMe disk, each vDPA
device, and all VFIO devices as one; with a vIOMMU, libvirt 8.7 and later count each VFIO device.

libvirt sets QEMU's soft and hard limit to that before QEMU starts (`qemuProcessLaunch`). A process may set its limits
to anything up to its hard limit, so the daemon's hard limit decides, and its soft limit doesn't matter. Raising the
hard limit takes CAP_SYS_RESOURCE (`setrlimit(2)`). With CAP_IPC_LOCK, a QEMU that is started by hand pins as much as it
wants, but libvirt still fails to raise the limit: "cannot limit locked memory of process".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from launcherkit.doctor.facts import Facts, Process, not_here
from launcherkit.doctor.finding import Finding
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.guest import GuestFacts
from launcherkit.show.layout import size

RESERVE = 1 << 30
"""Bytes that libvirt adds for what devices map besides RAM."""

RAISE = (
    "In a pod: add the capability SYS_RESOURCE to the container, or raise the runtime's own limit on the node, which "
    "needs no capability then (prlimit --pid <containerd> --memlock=unlimited:unlimited, LimitMEMLOCK=infinity in its "
    "unit). IPC_LOCK is enough for QEMU started by hand, not for libvirt. On a host: LimitMEMLOCK=infinity in the unit "
    "of libvirt's daemon."
)


@dataclass(frozen=True, slots=True)
class MemlockNeed:
    """The limit that libvirt will ask for, and how it is computed."""

    limit: int | None
    """Bytes; None is no limit at all."""
    terms: str


def libvirt_need(guest: GuestFacts, *, devices: int) -> MemlockNeed | None:
    """The limit that libvirt will set; None if it sets none, or if the document doesn't say how much RAM there is.

    Args:
        guest: facts of the document that will be defined.
        devices: number of VFIO devices in it.
    """
    if guest.hard_limit is not None:
        return MemlockNeed(guest.hard_limit, "<hard_limit> of the domain")
    if guest.locked:
        return MemlockNeed(None, "<locked/> of the domain, so no limit")
    factor = guest.other_memory_lockers + (devices if guest.viommu else min(devices, 1))
    if not factor or guest.memory is None:
        return None
    times = f"{factor} x " if factor > 1 else ""
    return MemlockNeed(factor * guest.memory + RESERVE, f"{times}{size(guest.memory)} RAM + {size(RESERVE)}")


def check_memlock(facts: Facts) -> Iterator[Finding]:
    """One finding, and one more if libvirt can't see the guest's IOMMU."""
    name, guest = "memlock", facts.guest
    devices = _vfio_devices(facts) if guest is None else max(guest.vfio_devices, _vfio_devices(facts))
    need = None if guest is None else libvirt_need(guest, devices=devices)
    unseen = not_here(facts)
    process = None if facts.gathered is None else facts.gathered.process
    if unseen is not None or process is None:
        yield _unread(need, unseen or "the limits of no process can be read here")
    elif guest is None:
        yield _without_guest(facts, process)
    elif need is None:
        seen = "the domain has no <memory>" if guest.memory is None else "the VM has no VFIO device; nothing is locked"
        yield Finding(name, "", "skipped", f"{seen}; {_limits(process)}")
    elif guest.arch.startswith("ppc64"):
        yield Finding(name, "", "skipped", f"libvirt has another rule on {guest.arch}; {_limits(process)}")
    else:
        yield _against(need, process, _with_viommu(guest, devices))
        yield from _hidden_viommu(guest, devices)


def _unread(need: MemlockNeed | None, reason: str) -> Finding:
    """Without a process to compare with, only what libvirt will ask for."""
    if need is not None and need.limit is not None:
        reason = f"libvirt will ask for {size(need.limit)} ({need.terms}); {reason}"
    return Finding("memlock", "", "skipped", reason)


def _hidden_viommu(guest: GuestFacts, devices: int) -> Iterator[Finding]:
    if guest.hidden_viommu and not guest.viommu and guest.hard_limit is None and guest.memory and devices > 1:
        by_hand = size(devices * guest.memory + RESERVE)
        yield Finding(
            "memlock",
            "vIOMMU",
            "warn",
            "<qemu:commandline> gives the guest an IOMMU that libvirt doesn't know of: QEMU locks RAM "
            f"{devices} times, libvirt allows it once",
            f"Write the IOMMU as <iommu>, or give the domain a <memtune><hard_limit> of {by_hand}.",
        )


def _vfio_devices(facts: Facts) -> int:
    return sum(isinstance(source, PciAddress | MdevAddress) for source in facts.subject.attached)


def _with_viommu(guest: GuestFacts, devices: int) -> str:
    if guest.viommu or guest.hard_limit is not None or guest.locked or devices < 2:
        return ""
    with_viommu = replace(guest, viommu=True)
    need = libvirt_need(with_viommu, devices=devices)
    return f"; with a vIOMMU {size(need.limit)} ({need.terms})" if need and need.limit else ""


def _against(need: MemlockNeed, process: Process, more: str) -> Finding:
    limit = "no limit" if need.limit is None else size(need.limit)
    seen = f"libvirt asks for {limit} ({need.terms}{more}); {_limits(process)}"
    if not _holds(process.memlock_hard, need.limit):
        if process.may_raise:
            return Finding("memlock", "", "ok", seen)
        if process.may_lock:
            seen += "; IPC_LOCK alone doesn't help libvirt"
        return Finding("memlock", "", "fail", seen, RAISE)
    return Finding("memlock", "", "ok", seen)


def _without_guest(facts: Facts, process: Process) -> Finding:
    seen = f"{_limits(process)}; libvirt asks for a guest's RAM + {size(RESERVE)}, with a vIOMMU for RAM per device"
    enough = process.may_raise or process.memlock_hard is None
    if enough:
        return Finding("memlock", "", "ok", seen)
    if process.memlock_hard is not None and process.memlock_hard > RESERVE:
        return Finding("memlock", "", "warn", f"{seen}; the guest is not known", f"Give --domain to be sure. {RAISE}")
    for_sure = facts.subject.has_variables and facts.subject.attached
    return Finding("memlock", "", "fail" if for_sure else "warn", seen, RAISE)


def _holds(limit: int | None, need: int | None) -> bool:
    return limit is None or (need is not None and limit >= need)


def _limits(process: Process) -> str:
    soft, hard = (("none" if limit is None else size(limit)) for limit in (process.memlock_soft, process.memlock_hard))
    limit = f"limit {hard}" if soft == hard else f"limit {hard}, soft {soft}"
    capabilities = [name for name, has in (("SYS_RESOURCE", process.may_raise), ("IPC_LOCK", process.may_lock)) if has]
    return f"{process.name} has {limit}, {' and '.join(capabilities) or 'neither SYS_RESOURCE nor IPC_LOCK'}"
