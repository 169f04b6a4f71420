"""Which mediated devices are shown, as KubeVirt decides it, and as libvirt will take it (X3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcherkit.model.address import HostAddress, MdevAddress
from launcherkit.model.domain import DomainFacts
from launcherkit.model.host import HostFacts
from launcherkit.model.note import Note
from launcherkit.model.plan import Attachment, Claim, Shown, Unit
from launcherkit.model.request import DisplayOptions

_DISPLAYED_MODEL = "vfio-pci"


def decide_displays(
    units: Sequence[Unit],
    options_of: Mapping[str, DisplayOptions | None],
    domain: DomainFacts,
    host: HostFacts,
    notes: list[Note],
) -> dict[HostAddress, Shown]:
    """Decide ``model``, ``display`` and ``ramfb`` of each unit's primary.

    KubeVirt: a mediated gpu whose ``display`` block says on or is silent has display and ramfb; if no gpu of the VMI
    has such a block, the first mediated one has both; a PCI gpu only where ``enabled`` is true; hostDevices never.
    On top of that: no display without a graphics device, and one ramfb in the whole domain.

    Args:
        units: in order.
        options_of: the ``display`` block of each gpu of the VMI by name.
        domain: tells of graphics, and what the hostdevs that are there say.
        host: tells the type of an mdev.
        notes: takes what was not given although asked for.
    """
    nobody_said = all(options is None for options in options_of.values())
    first = next((unit for unit in units if unit.kind == "mdev" and _is_gpu(unit.primary.claim, options_of)), None)
    holder = _ramfb_holder(domain)
    decided: dict[HostAddress, Shown] = {}
    for unit in units:
        primary = unit.primary
        if unit.kind == "usb" or (
            unit.kind == "pci" and primary.hostdev is None and not _has_block(primary, options_of)
        ):
            continue
        shown, said = _wanted(unit, options_of, nobody_said and unit is first, domain)
        if unit.kind == "mdev":
            shown = shown._replace(model=_model(primary, host))
            if shown.model != _DISPLAYED_MODEL:
                shown = Shown(shown.model)
        if shown.display == "on" and not domain.has_graphics:
            notes.append(Note("no-display", f"{primary.source}: no display, for the domain has no graphics device"))
            shown = Shown(shown.model, said and "off", said and shown.ramfb and "off")
        if shown.ramfb == "on":
            if holder not in (None, primary.source):
                notes.append(Note("no-ramfb", f"{primary.source}: no ramfb, for {holder} has the one of this domain"))
                shown = shown._replace(ramfb=said and "off")
            else:
                holder = primary.source
        if shown != _NOT_SHOWN:
            decided[primary.source] = shown
    return decided


_NOT_SHOWN = Shown()


def _ramfb_holder(domain: DomainFacts) -> HostAddress | str | None:
    """Who has the domain's one ramfb already: what the document says comes before what is asked for."""
    if domain.video_ramfb:
        return "a <video> device"
    return next((hostdev.source for hostdev in domain.hostdevs if hostdev.ramfb == "on"), None)


def _wanted(
    unit: Unit, options_of: Mapping[str, DisplayOptions | None], by_default: bool, domain: DomainFacts
) -> tuple[Shown, str | None]:
    """What is asked for; the second is not None where the document says it, and must say otherwise to change it."""
    claim, hostdev = unit.primary.claim, unit.primary.hostdev
    if hostdev is not None:
        existing = domain.hostdevs[hostdev]
        if existing.display is not None or existing.ramfb is not None:
            return Shown(None, existing.display, existing.ramfb), "said"
    if claim is None or not _is_gpu(claim, options_of):
        return _NOT_SHOWN, None
    options = options_of.get(claim.name)
    if unit.kind == "mdev":
        return Shown(None, *_of_mdev(options, by_default)), None
    if options is not None and options.enabled:
        return Shown(None, "on", "on" if options.ramfb else None), None
    return _NOT_SHOWN, None


def _is_gpu(claim: Claim | None, options_of: Mapping[str, DisplayOptions | None]) -> bool:
    """Asked for as a gpu; a hostdev of the document is left as it is unless the VMI names it."""
    if claim is None or claim.section != "gpus":
        return False
    return claim.origin != "domain" or claim.name in options_of


def _has_block(primary: Attachment, options_of: Mapping[str, DisplayOptions | None]) -> bool:
    return primary.claim is not None and options_of.get(primary.claim.name) is not None


def _of_mdev(options: DisplayOptions | None, by_default: bool) -> tuple[str | None, str | None]:
    if options is None:
        return ("on", "on") if by_default else (None, None)
    if options.enabled is False:
        return None, None
    return "on", None if options.ramfb is False else "on"


def _model(primary: Attachment, host: HostFacts) -> str:
    mdev = host.mdevs.get(primary.source.uuid) if isinstance(primary.source, MdevAddress) else None
    return (mdev.device_api if mdev else None) or _DISPLAYED_MODEL
