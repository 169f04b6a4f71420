"""Aliases: valid for libvirt, unique in the domain, the ones KubeVirt looks its devices up by (X1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from launcherkit.model.address import HostAddress, PciAddress
from launcherkit.model.domain import DomainFacts
from launcherkit.model.plan import Attachment, Claim, Unit
from launcherkit.model.policy import AliasPrefixes
from launcherkit.model.request import Kind, Section, kind_of

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


def name_requests(
    named: Iterable[tuple[Section, str, Kind]], domain: DomainFacts, prefixes: AliasPrefixes
) -> list[str]:
    """The alias of each request, in order: what names it comes before what the document calls its hostdevs."""
    # A hostdev whose source names no one device, such as a USB vendor and product, is left as it is, alias and all.
    odd = [hostdev.alias for hostdev in domain.hostdevs if hostdev.source is None and hostdev.alias]
    used = dict.fromkeys((*domain.aliases, *odd), 1)
    return [_unique(alias_of(section, name, kind, prefixes), used) for section, name, kind in named]


def name_claims(claims: Iterable[Claim], domain: DomainFacts, prefixes: AliasPrefixes) -> dict[HostAddress, str]:
    """The aliases of what a VMI or the environment asks for."""
    asked = [claim for claim in claims if claim.origin != "domain"]
    named = [(claim.section, claim.name, kind_of(claim.primary)) for claim in asked]
    return dict(zip([claim.primary for claim in asked], name_requests(named, domain, prefixes), strict=True))


def find_riders(
    claims: Iterable[Claim], named: Mapping[HostAddress, str], domain: DomainFacts
) -> dict[HostAddress, HostAddress]:
    """Hostdevs of the document that came along with another one in an earlier run, by what their aliases say.

    A sibling bears its primary's alias and ``-fn<k>`` (X1). It must not lead in a later run, or siblings would be
    judged from another primary than before (X2).

    Args:
        claims: all of them.
        named: from `name_claims`.
        domain: whose hostdevs they are.

    Returns:
        The primary that each of them came with.
    """
    if not any(hostdev.alias and "-fn" in hostdev.alias for hostdev in domain.hostdevs):
        return {}
    alias_at = {hostdev.source: hostdev.alias or "" for hostdev in domain.hostdevs}
    domains_own = [claim.primary for claim in claims if claim.origin == "domain"]
    primary_of = {alias_at[source]: source for source in domains_own} | {alias: at for at, alias in named.items()}
    bearers = {source: primary_of.get(alias_at[source].rpartition("-fn")[0]) for source in domains_own}
    return {source: bearer for source, bearer in bearers.items() if bearer is not None}


def assign_aliases(
    units: Sequence[Unit], named: Mapping[HostAddress, str], domain: DomainFacts, prefixes: AliasPrefixes
) -> dict[HostAddress, str]:
    """The alias of every function.

    Those that a VMI or the environment names come first, then valid ones that the document has, then the rest.

    Args:
        units: all that is attached.
        named: from `name_claims`.
        domain: whose aliases must stay unique.
        prefixes: the policy's.
    """
    planned = {attachment.hostdev for unit in units for attachment in unit.attachments}
    used = dict.fromkeys((*domain.aliases, *named.values()), 1)
    used |= {
        hostdev.alias: 1 for index, hostdev in enumerate(domain.hostdevs) if index not in planned and hostdev.alias
    }
    given = dict(named)
    unnamed: list[tuple[Unit, Attachment]] = []
    for unit in units:
        for attachment in unit.attachments:
            if attachment.source in given:
                continue
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
