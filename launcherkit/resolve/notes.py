"""Notes on what is not attached, and on what may surprise the request's author (C1, C4, S2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from launcherkit.model.address import HostAddress, PciAddress
from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit.model.note import Note
from launcherkit.model.plan import Attachment, Claim, Unit
from launcherkit.resolve.pci_class import describe, is_gpu


def notes_about(
    units: Sequence[Unit], left_alone: Iterable[tuple[str, HostAddress]], gpus: Collection[str], host: HostFacts
) -> Iterator[Note]:
    """Notes on what is attached and on what is not.

    Args:
        units: everything that is attached.
        left_alone: primaries beyond the requests, with their variables.
        gpus: names of the VMI's gpus.
        host: facts about both.
    """
    attached = {attachment.source for unit in units for attachment in unit.attachments}
    rest: dict[str, list[str]] = {}
    for variable, primary in left_alone:
        if primary not in attached:
            rest.setdefault(variable, []).append(str(primary))
    for variable, primaries in rest.items():
        yield Note("left-alone", f"{variable} holds more than was requested; left alone: {', '.join(primaries)}")
    for unit in units:
        for stayed in unit.stayed:
            yield Note("stayed", f"{stayed.address} is not attached with {unit.primary.source}: it is {stayed.why}")
        for attachment in unit.attachments:
            yield from _about(attachment, unit, gpus, host)


def _about(attachment: Attachment, unit: Unit, gpus: Collection[str], host: HostFacts) -> Iterator[Note]:
    source, claim = attachment.source, attachment.claim
    if not host.known or not isinstance(source, PciAddress):
        return
    function = host.functions.get(source)
    if function is None:
        yield Note("not-on-host", f"{source} is in the domain, but is not on this host")
    elif attachment.role == "sibling" and claim is not None and _misnamed(claim, function, gpus):
        yield Note(
            "companion",
            f"gpu {claim.name!r} of the domain is {describe(function)}, a companion of {unit.primary.source}: the "
            "guest gets one GPU there, not two. Use a device plugin that lists only primaries, or translate where the "
            "variables are",
        )


def _misnamed(claim: Claim, function: PciFunction, gpus: Collection[str]) -> bool:
    """Whether KubeVirt, which pairs by position, took a companion for a GPU because the plugin lists both (C1)."""
    return claim.origin == "domain" and claim.section == "gpus" and claim.name in gpus and not is_gpu(function)
