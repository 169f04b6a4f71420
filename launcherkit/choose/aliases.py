"""Aliases: valid for libvirt, unique in the domain, and those by which KubeVirt finds its devices (X1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from launcherkit.model.address import HostAddress, PciAddress
from launcherkit.model.domain import DomainFacts
from launcherkit.model.plan import Attachment, GuestDevice, Match
from launcherkit.model.policy import AliasPrefixes
from launcherkit.model.request import Kind, Section, kind_of

_ALLOWED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")

CLAIM_PREFIXES: dict[Section, str] = {"gpus": "ua-dra-gpu-", "hostDevices": "ua-dra-hostdevice-"}
"""KubeVirt's prefixes for devices of DRA claims; it finds its devices by them, so no policy changes them."""

SRIOV_PREFIX = "ua-sriov-"
"""KubeVirt's prefix for hostdevs of networks. It detaches devices with it, for example before a migration."""
SIBLING_PREFIX = "ua-sibling-"
"""The prefix of siblings that KubeVirt would take for its own if they had their primary's prefix."""


def clean(text: str) -> str:
    """Replace every character that an alias can't contain by ``-``."""
    return text if _ALLOWED.issuperset(text) else "".join(c if c in _ALLOWED else "-" for c in text)


def alias_of(section: Section, name: str, kind: Kind, prefixes: AliasPrefixes, *, by_claim: bool = False) -> str:
    """The alias of a device by its request.

    Args:
        section, name: the request's.
        kind: the device's.
        prefixes: the policy's.
        by_claim: whether a DRA claim answers the request; KubeVirt has other prefixes for these.
    """
    if section == "interfaces":
        prefix = SRIOV_PREFIX
    elif by_claim:
        prefix = CLAIM_PREFIXES[section]
    elif section == "gpus":
        prefix = prefixes.gpu
    else:
        prefix = prefixes.usb if kind == "usb" else prefixes.hostdevice
    return clean(prefix + name)


def name_requests(proposed: Iterable[str], domain: DomainFacts) -> list[str]:
    """The alias of each request, in order, from `alias_of`; requests take precedence over aliases in the document."""
    # A hostdev without a source address, such as a USB device by its port, is left as it is, with its alias.
    odd = [hostdev.alias for hostdev in domain.hostdevs if hostdev.source is None and hostdev.alias]
    used = dict.fromkeys((*domain.aliases, *odd), 1)
    return [_unique(alias, used) for alias in proposed]


def name_matches(matches: Iterable[Match], domain: DomainFacts, prefixes: AliasPrefixes) -> dict[HostAddress, str]:
    """The aliases of the devices that a VMI or the environment asks for, by primary."""
    proposed = {
        match.primary: alias_of(match.section, match.name, kind_of(match.primary), prefixes, by_claim=match.by_claim)
        for match in matches
        if match.origin != "domain"
    }
    return dict(zip(proposed, name_requests(proposed.values(), domain), strict=True))


def sibling_stem(alias: str) -> str:
    """The part before ``-fn<k>`` of a sibling's alias: the primary's alias, unless KubeVirt would act on it (X1)."""
    return SIBLING_PREFIX + alias.removeprefix("ua-") if alias.startswith(SRIOV_PREFIX) else alias


def find_carried_siblings(
    matches: Iterable[Match], named: Mapping[HostAddress, str], domain: DomainFacts
) -> dict[HostAddress, HostAddress]:
    """Hostdevs of the document that an earlier run attached as siblings, by their aliases.

    A sibling's alias is the `sibling_stem` of its primary's alias with ``-fn<k>`` (X1). It must not become a primary in
    a later run, or siblings would be chosen for another primary than before (X2).

    Args:
        matches: all of them.
        named: from `name_matches`.
        domain: the document's hostdevs.

    Returns:
        The primary of each of these siblings.
    """
    if not any(hostdev.alias and "-fn" in hostdev.alias for hostdev in domain.hostdevs):
        return {}
    of_domain = {match.primary for match in matches if match.origin == "domain"}
    alias_at = {
        hostdev.source: hostdev.alias for hostdev in domain.hostdevs if hostdev.alias and hostdev.source in of_domain
    }
    primary_of = {sibling_stem(alias): source for source, alias in alias_at.items()}
    primary_of |= {sibling_stem(alias): at for at, alias in named.items()}
    primaries = {source: primary_of.get(alias.rpartition("-fn")[0]) for source, alias in alias_at.items()}
    return {source: primary for source, primary in primaries.items() if primary is not None}


def assign_aliases(
    devices: Sequence[GuestDevice], named: Mapping[HostAddress, str], domain: DomainFacts, prefixes: AliasPrefixes
) -> dict[HostAddress, str]:
    """The alias of every function.

    Aliases from a VMI or the environment take precedence, then valid ones of the document, then new ones. A kept
    hostdev keeps its alias, or stays without one.

    Args:
        devices: everything that is attached.
        named: from `name_matches`.
        domain: its aliases must stay unique.
        prefixes: the policy's.
    """
    kept = _kept_aliases(devices, domain)
    used = dict.fromkeys((*domain.aliases, *named.values(), *_other_aliases(devices, domain), *kept.values()), 1)
    assigned = {**named, **kept}
    unnamed: list[tuple[GuestDevice, Attachment]] = []
    for device in devices:
        for attachment in device.attachments:
            if attachment.source in assigned:
                continue
            present = None if attachment.hostdev is None else domain.hostdevs[attachment.hostdev].alias
            if present and _valid(present) and present not in used:
                used[present] = 1
                assigned[attachment.source] = present
            else:
                unnamed.append((device, attachment))
    for device, attachment in unnamed:
        alias = _new_alias(attachment, device, assigned, prefixes)
        assigned[attachment.source] = _unique(alias, used)
    return assigned


def _kept_aliases(devices: Iterable[GuestDevice], domain: DomainFacts) -> dict[HostAddress, str]:
    """The aliases of kept hostdevs, as the document has them; empty for none."""
    primaries = [device.primary for device in devices if device.kept] if domain.hostdevs else []
    return {
        primary.source: domain.hostdevs[primary.hostdev].alias or ""
        for primary in primaries
        if primary.hostdev is not None
    }


def _other_aliases(devices: Iterable[GuestDevice], domain: DomainFacts) -> list[str]:
    """The aliases of hostdevs of the document that are not attached by launcherkit."""
    if not domain.hostdevs:
        return []
    attached = {attachment.hostdev for device in devices for attachment in device.attachments}
    return [hostdev.alias for index, hostdev in enumerate(domain.hostdevs) if index not in attached and hostdev.alias]


def _new_alias(
    attachment: Attachment, device: GuestDevice, assigned: Mapping[HostAddress, str], prefixes: AliasPrefixes
) -> str:
    """The alias of a function that has none: by its request, or as a sibling by its primary's alias."""
    match, source = attachment.match, attachment.source
    if match is not None:
        return alias_of(match.section, match.name, device.kind, prefixes)
    number = source.function if isinstance(source, PciAddress) else 0
    return f"{sibling_stem(assigned[device.primary.source])}-fn{number}"


def _valid(alias: str) -> bool:
    """Whether libvirt keeps a user's alias: it must begin with ``ua-``."""
    return alias.startswith("ua-") and len(alias) > 3 and _ALLOWED.issuperset(alias)


def _unique(alias: str, used: dict[str, int]) -> str:
    """The alias, if necessary with the first free number from 2 on.

    ``used`` counts how often each alias was wanted, so that many equal names take no search.
    """
    if alias not in used:
        used[alias] = 1
        return alias
    candidate, count = alias, used[alias]
    while candidate in used:
        count += 1
        candidate = f"{alias}-{count}"
    used[alias] = count
    used[candidate] = 1
    return candidate
