"""Aliases: valid for libvirt, unique in the domain, the ones KubeVirt looks its devices up by (X1)."""

from __future__ import annotations

from collections.abc import Sequence

from launcherkit.model.address import HostAddress, PciAddress
from launcherkit.model.domain import DomainFacts
from launcherkit.model.plan import Attachment, Unit
from launcherkit.model.policy import AliasPrefixes
from launcherkit.model.request import Kind, Section

_ALLOWED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def clean(text: str) -> str:
    """Replace every character that an alias can't have by ``-``."""
    return text if _ALLOWED.issuperset(text) else "".join(c if c in _ALLOWED else "-" for c in text)


def alias_of(section: Section, name: str, kind: Kind, prefixes: AliasPrefixes) -> str:
    """The alias of a device by its request's name."""
    if section == "gpus":
        prefix = prefixes.gpu
    else:
        prefix = prefixes.usb if kind == "usb" else prefixes.hostdevice
    return clean(prefix + name)


def assign_aliases(units: Sequence[Unit], domain: DomainFacts, prefixes: AliasPrefixes) -> dict[HostAddress, str]:
    """The alias of every function.

    Those that a VMI or the environment names come first, then valid ones that the document has, then the rest.
    """
    planned = {attachment.hostdev for unit in units for attachment in unit.attachments}
    used = dict.fromkeys(domain.aliases, 1)
    used |= {
        hostdev.alias: 1 for index, hostdev in enumerate(domain.hostdevs) if index not in planned and hostdev.alias
    }
    given: dict[HostAddress, str] = {}
    rest: list[tuple[Unit, Attachment]] = []
    for unit in units:
        for attachment in unit.attachments:
            claim = attachment.claim
            if claim is None or claim.origin == "domain":
                rest.append((unit, attachment))
            else:
                given[attachment.source] = _unique(alias_of(claim.section, claim.name, unit.kind, prefixes), used)
    unnamed: list[tuple[Unit, Attachment]] = []
    for unit, attachment in rest:
        present = None if attachment.hostdev is None else domain.hostdevs[attachment.hostdev].alias
        if present and _valid(present) and present not in used:
            used[present] = 1
            given[attachment.source] = present
        else:
            unnamed.append((unit, attachment))
    for unit, attachment in unnamed:
        claim, source = attachment.claim, attachment.source
        if claim is not None:
            alias = alias_of(claim.section, claim.name, unit.kind, prefixes)
        else:
            alias = f"{given[unit.primary.source]}-fn{source.function if isinstance(source, PciAddress) else 0}"
        given[source] = _unique(alias, used)
    return given


def _valid(alias: str) -> bool:
    """libvirt keeps an alias of the user's only if it begins with ``ua-``."""
    return alias.startswith("ua-") and len(alias) > 3 and _ALLOWED.issuperset(alias)


def _unique(alias: str, used: dict[str, int]) -> str:
    """The alias, or the alias with the first number from 2 on that is free.

    ``used`` has how often each alias was wanted, so that many equal names cost no search.
    """
    candidate, count = alias, used.get(alias, 0)
    while candidate in used:
        count += 1
        candidate = f"{alias}-{count}"
    used[alias] = max(count, 1)
    used.setdefault(candidate, 1)
    return candidate
