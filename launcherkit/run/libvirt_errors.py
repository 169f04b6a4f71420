"""Error messages of libvirt and QEMU, with the device that they are about and, if known, a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from launcherkit.compatibility import Version, compatibility, dotted
from launcherkit.errors import (
    DEVICE_BUSY,
    DOMAIN_IN_THE_WAY,
    DOMAIN_REFUSED,
    GUEST_NOT_STARTED,
    LIBVIRT_NOT_THERE,
    NO_INITIATORS,
    Code,
    ErrorFields,
    LauncherkitError,
    NoPlace,
    Refused,
)
from launcherkit.model.address import PciAddress
from launcherkit.model.plan import Plan, PlannedFunction
from launcherkit.run.connection import LibvirtFailure


@dataclass(frozen=True, slots=True)
class Known:
    """A known message."""

    pattern: re.Pattern[str]
    remedy: str
    error: Code[LauncherkitError] | None = None
    """Which error it is, if it isn't one of the usual two."""


def _known(pattern: str, remedy: str, error: Code[LauncherkitError] | None = None) -> Known:
    return Known(re.compile(pattern, re.IGNORECASE | re.DOTALL), remedy, error)


KNOWN = (
    _known(
        r"is not viable",
        "Every function of the IOMMU group must be bound to vfio-pci or to no driver; `launcherkit explain` with the "
        "same inputs names those that are not, `launcherkit explain LK204` says more.",
    ),
    _known(
        r"limit locked memory|VFIO_MAP_DMA.*cannot allocate memory|vfio_dma_map.*cannot allocate memory|memlock",
        "VFIO pins the guest's memory: give the container the capability SYS_RESOURCE, or its runtime an unlimited "
        "memlock (ulimit -l unlimited).",
    ),
    _known(
        r"(/dev/vfio|/dev/iommu|vfio).*(permission denied|operation not permitted)",
        "The device plugin must hand the node to this container, and QEMU's user must be allowed to open it: see "
        "`ls -l /dev/vfio`, and user and group in qemu.conf.",
    ),
    _known(
        r"/dev/vfio.*no such file|/dev/iommu.*no such file",
        "The device plugin must hand the node to this container; outside a pod: modprobe vfio-pci. "
        "`launcherkit explain LK205` says more.",
    ),
    _known(
        r"in use by (driver|domain)|already in use|resource busy|is in use",
        "Another guest or process has it: `virsh list --all` and `fuser -v /dev/vfio/*` show who; stop that first.",
        DEVICE_BUSY,
    ),
    _known(
        r"support passthrough of host PCI devices|PCI device assignment is not supported",  # libvirt 9.0; 12.8
        "This host has no VFIO: turn the IOMMU on in the firmware and on the kernel's command line, and modprobe "
        "vfio-pci; in a container /dev/vfio/vfio and /sys must be there.",
    ),
    _known(
        r"ramfb",
        "This QEMU or libvirt does not support ramfb for mdevs, or only for one of them: set "
        "virtualGPUOptions.display.ramFB.enabled to false in the VMI, or use a newer version.",
    ),
    _known(
        r"kvm",
        "KVM is not there: hand /dev/kvm to this container (a device plugin, or --device), let QEMU's user open it, "
        "or use <domain type='qemu'>, which is slow.",
    ),
    _known(
        r"device [0-9a-f:.]+ not found|no such device",
        "The device is not on this host any more; compare `lspci -D` with what was allocated.",
    ),
    _known(
        r"virtlogd-sock",
        'Start virtlogd in addition to libvirt, or set stdio_handler = "file" in qemu.conf.',
    ),
    _known(
        r"failed to parse (user|group)",
        "Create the user and the group that qemu.conf names, or set user and group to root there.",
    ),
    _known(
        r"cannot find character device|no console",
        "The domain has no console: give it <serial type='pty'/>, or leave out --console.",
    ),
    _known(
        r"already (exists|defined) with uuid|already (exists|defined) as",
        "Give it another name, leave out its <uuid>, or undefine the other one.",
        DOMAIN_IN_THE_WAY,
    ),
    _known(
        r"validat|extra element|invalid.*relax|XML document failed",
        "See which element the message names; `virt-xml-validate FILE domain` reports it too.",
    ),
)
"""The first that matches applies."""

_BDF = re.compile(r"(?<![0-9a-f:])[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7](?![0-9a-f])", re.IGNORECASE)
_GROUP = re.compile(r"group (\d+)|/dev/vfio/(\d+)")
_ALIAS = re.compile(r"ua-[A-Za-z0-9_-]+")


def too_old(plan: Plan, version: Version) -> NoPlace | None:
    """The error if this version of libvirt can't take the plan (P7), else None."""
    needed = compatibility().since("acpi-nodeset")
    if not plan.initiators or version >= needed:
        return None
    gpus = ", ".join(map(str, plan.initiators))
    return NO_INITIATORS(
        f"{gpus} can't be generic initiators: libvirt {dotted(version)} doesn't know <acpi nodeset> of a hostdev",
        f"Use libvirt {dotted(needed)} or later, or set genericInitiators: no.",
        device=str(plan.initiators[0]),
    )


def nameless() -> Refused:
    """The error for a domain document without a name."""
    return DOMAIN_REFUSED(
        "the domain document has no <name>", "Give it one; libvirt knows domains by their names.", key="name"
    )


def not_defined(refusal: LibvirtFailure, name: str, plan: Plan) -> LauncherkitError:
    """The error for a domain that libvirt would not define."""
    remedy = "The message is libvirt's; `launcherkit translate` with the same inputs prints the document."
    return _refused("define", name, refusal, plan, DOMAIN_REFUSED, remedy)


def not_started(refusal: LibvirtFailure, name: str, plan: Plan) -> LauncherkitError:
    """The error for a guest that did not start."""
    remedy = f"The message is libvirt's; QEMU's own log is /var/log/libvirt/qemu/{name}.log."
    return _refused("start", name, refusal, plan, GUEST_NOT_STARTED, remedy)


def went_away(refusal: LibvirtFailure) -> LauncherkitError:
    """The error for a libvirt that doesn't answer any more, or fails unexpectedly."""
    return LIBVIRT_NOT_THERE(
        f"libvirt failed: {refusal.message}",
        "See libvirt's log; start it again and run the command once more.",
        key="--connect",
    )


def _refused(
    verb: str, name: str, refusal: LibvirtFailure, plan: Plan, usual: Code[LauncherkitError], remedy: str
) -> LauncherkitError:
    if refusal.lost:
        return went_away(refusal)
    known_error = next((known_error for known_error in KNOWN if known_error.pattern.search(refusal.message)), None)
    groups = [int(first or second) for first, second in _GROUP.findall(refusal.message.lower())]
    devices = dict(_devices_in(refusal.message, plan, groups))
    about = f" (about {', '.join(devices.values())})" if devices else ""
    facts: ErrorFields = {"domain": name}
    if devices:
        facts["device"] = next(iter(devices))
    if groups:
        facts["group"] = groups[0]
    error = usual if known_error is None or known_error.error is None else known_error.error
    text = f"libvirt could not {verb} {name}: {refusal.message}{about}"
    return error(text, remedy if known_error is None else known_error.remedy, **facts)


def _devices_in(message: str, plan: Plan, groups: Sequence[int]) -> Iterator[tuple[str, str]]:
    """The devices that a message names by BDF, group, node or alias: each one's address, and words for it.

    A message of QEMU often contains a whole ``-device`` with both BDF and alias; its device is named once.
    """
    bdfs = set(_BDF.findall(message.lower()))
    aliases = set(_ALIAS.findall(message))
    members = {member.address for group in plan.groups if group.number in groups for member in group.members}
    for device in plan.devices:
        for function in device.functions:
            source = function.source
            if str(source) in bdfs or function.alias in aliases or source in members:
                yield str(source), _named(function, device.primary)


def _named(function: PlannedFunction, primary: PlannedFunction) -> str:
    match = function.attachment.match or primary.attachment.match
    name = "a hostdev" if match is None else match.name
    kind = "" if isinstance(function.source, PciAddress) else "mediated device or USB device "
    role = "" if function is primary else f", sibling of {primary.source}"
    return f"{name}: {kind}{function.source}{role}"
