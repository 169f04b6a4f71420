"""Decides which mediated devices get a display, as KubeVirt does, and as libvirt accepts it (X3)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from launcherkit.errors import UNKNOWN_MDEV_MODEL, DeviceUnusable, shown
from launcherkit.model.address import HostAddress, MdevAddress
from launcherkit.model.domain import DomainFacts
from launcherkit.model.host import HostFacts
from launcherkit.model.plan import Attachment, GuestDevice, Match, Note, Shown
from launcherkit.model.request import DisplayOptions

_DISPLAYED_MODEL = "vfio-pci"
MODELS = (_DISPLAYED_MODEL, "vfio-ccw", "vfio-ap")
"""The device APIs of mediated devices for which libvirt has a model (X3)."""


class Displays(NamedTuple):
    """The model and display of each function."""

    shown: Mapping[HostAddress, Shown]
    notes: tuple[Note, ...] = ()
    """On displays and framebuffers that were asked for and are not given."""
    errors: tuple[DeviceUnusable, ...] = ()


def decide_displays(
    devices: Sequence[GuestDevice],
    options_of: Mapping[str, DisplayOptions | None],
    domain: DomainFacts,
    host: HostFacts,
) -> Displays:
    """Decide ``model``, ``display`` and ``ramfb``; a sibling has only what the document says.

    KubeVirt's rules: a mediated gpu with a ``display`` block has display and ramfb unless the block says no; if no gpu
    of the VMI has such a block, the first mediated one has both; a PCI gpu only if ``enabled`` is true, with ramfb by
    default; hostDevices never.
    In addition: no display without a graphics device, and one ramfb in the whole domain.

    Args:
        devices: in the order of the requests.
        options_of: the ``display`` block of each gpu of the VMI, by name.
        domain: whether it has graphics, and the attributes of its hostdevs.
        host: the types of mdevs.
    """
    errors: list[DeviceUnusable] = []
    notes: list[Note] = []
    by_default = _first_mediated_gpu(devices, options_of) if not any(options_of.values()) else None
    holder = _ramfb_holder(domain)
    decided: dict[HostAddress, Shown] = {}
    for device in devices:
        for attachment in device.attachments:
            shown = declared = _declared(attachment, domain)
            if declared is None and attachment is device.primary:
                shown = _asked(device, options_of, device is by_default)
            if device.kind == "mdev":
                model = _model(attachment, domain, host)
                if model not in MODELS:
                    errors.append(_unknown_model(attachment, model))
                shown = (shown or _NOT_SHOWN)._replace(model=model) if model == _DISPLAYED_MODEL else Shown(model)
            if shown is None:
                continue
            source = attachment.source
            shown, refusals = _permitted(shown, declared, source, holder, has_graphics=domain.has_graphics)
            notes += refusals
            if shown.ramfb == "on":
                holder = source
            decided[source] = shown
    return Displays(decided, tuple(notes), tuple(errors))


def _first_mediated_gpu(
    devices: Iterable[GuestDevice], options_of: Mapping[str, DisplayOptions | None]
) -> GuestDevice | None:
    gpus = (device for device in devices if device.kind == "mdev" and _is_gpu(device.primary.match, options_of))
    return next(gpus, None)


def _permitted(
    shown: Shown,
    declared: Shown | None,
    source: HostAddress,
    holder: HostAddress | str | None,
    *,
    has_graphics: bool,
) -> tuple[Shown, list[Note]]:
    """What libvirt accepts of the attributes of a function, with notes on the rest.

    Args:
        shown: what was asked for.
        declared: the hostdev's attributes in the document; what it has there is turned off, not left out.
        source: the function's.
        holder: what has the domain's only ramfb; None if nothing has.
        has_graphics: whether the domain has a graphics device.
    """
    notes: list[Note] = []
    if shown.display == "on" and not has_graphics:
        notes.append(Note("no-display", f"{source}: no display, because the domain has no graphics device"))
        shown = Shown(shown.model, declared and "off", declared and declared.ramfb and "off")
    if shown.ramfb == "on" and holder not in (None, source):
        notes.append(Note("no-ramfb", f"{source}: no ramfb, because {holder} has the domain's only one"))
        shown = shown._replace(ramfb=declared and "off")
    return shown, notes


_NOT_SHOWN = Shown()


def _ramfb_holder(domain: DomainFacts) -> HostAddress | str | None:
    """What already has the domain's only ramfb; the document takes precedence over requests."""
    if domain.video_ramfb:
        return "a <video> device"
    return next((hostdev.source for hostdev in domain.hostdevs if hostdev.ramfb == "on"), None)


def _declared(attachment: Attachment, domain: DomainFacts) -> Shown | None:
    """The attributes of an existing hostdev, which only an explicit request changes."""
    if attachment.hostdev is None:
        return None
    existing = domain.hostdevs[attachment.hostdev]
    if existing.display is None and existing.ramfb is None:
        return None
    return Shown(None, existing.display, existing.ramfb)


def _asked(device: GuestDevice, options_of: Mapping[str, DisplayOptions | None], by_default: bool) -> Shown | None:
    """The attributes requested for a device's primary."""
    match = device.primary.match
    if match is None or not _is_gpu(match, options_of):
        return None
    options = options_of.get(match.name)
    if device.kind == "mdev":
        return Shown(None, *_of_mdev(options, by_default))
    if device.kind == "pci" and options is not None and options.enabled:
        return Shown(None, "on", None if options.ramfb is False else "on")
    return None


def _is_gpu(match: Match | None, options_of: Mapping[str, DisplayOptions | None]) -> bool:
    """Whether it is requested as a gpu; a hostdev of the document is left as it is unless the VMI names it."""
    if match is None or match.section != "gpus":
        return False
    return match.origin != "domain" or match.name in options_of


def _of_mdev(options: DisplayOptions | None, by_default: bool) -> tuple[str | None, str | None]:
    if options is None:
        return ("on", "on") if by_default else (None, None)
    if options.enabled is False:
        return None, None
    return "on", None if options.ramfb is False else "on"


def _model(primary: Attachment, domain: DomainFacts, host: HostFacts) -> str:
    """The device's own; where that is unknown, the one that KubeVirt writes."""
    mdev = host.mdevs.get(primary.source.uuid) if isinstance(primary.source, MdevAddress) else None
    if mdev is not None and mdev.device_api:
        return mdev.device_api
    match = primary.match
    of_claim = match is not None and match.by_claim and match.section == "hostDevices"
    return "vfio-ap" if of_claim and domain.machine.startswith("s390x/") else _DISPLAYED_MODEL


def _unknown_model(primary: Attachment, api: str) -> DeviceUnusable:
    return UNKNOWN_MDEV_MODEL(
        f"the mediated device {primary.source} has the device API {shown(api)}, not one of {', '.join(MODELS)}",
        "libvirt can't attach it. See mdev_type/device_api of the device in /sys/bus/mdev/devices, or in the "
        "snapshot that was given, and allocate a device of another type.",
        device=str(primary.source),
    )
