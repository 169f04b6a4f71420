"""Decides which physical device answers which request (C1-C5)."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from launcherkit.choose.aliases import CLAIM_PREFIXES, SIBLING_PREFIX, SRIOV_PREFIX, alias_of
from launcherkit.errors import NOT_ON_HOST, TOO_FEW_DEVICES, UNREADABLE_FILE, LauncherkitError, TooFew, counted
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress, PciSlot
from launcherkit.model.domain import ExistingHostdev
from launcherkit.model.host import HostFacts, Mdev, PciFunction, describe, is_bridge, is_gpu, primary_rank
from launcherkit.model.plan import Match, Note
from launcherkit.model.policy import AliasPrefixes, Pairing
from launcherkit.model.request import Allocation, Request, Section, kind_of


class Matches(NamedTuple):
    """All answered requests, in order, and the other devices in the variables."""

    matches: tuple[Match, ...]
    not_attached: tuple[tuple[str, HostAddress], ...] = ()
    """The variable and primary of each device that no request takes."""
    notes: tuple[Note, ...] = ()
    """On guesses (C3), and on devices that are left out because the document already uses them (C5)."""
    errors: tuple[TooFew, ...] = ()
    """One for each variable with too few devices."""


def match_requests(
    requests: Sequence[Request],
    allocations: Mapping[str, Allocation],
    host: HostFacts,
    pairing: Pairing,
    of_claims: Mapping[Request, HostAddress],
    by_alias: Mapping[Request, HostAddress],
    taken: Iterable[PciAddress],
) -> Matches:
    """Answer the requests of a VMI from the variables of their resources.

    Args:
        requests: in order.
        allocations: the allocation for each `Request.key`.
        host: facts about at least every address in the allocations.
        pairing: ``class`` (C2) or ``positional`` (C4).
        of_claims: the device of each request by DRA claim or network status, which answers no other.
        by_alias: the device that the document already has under a request's alias; it answers another only if nothing
            else is left.
        taken: functions that the document uses otherwise; they answer nothing, and a note says so (C5).
    """
    pools = _Pools(host, pairing, taken)
    matches: list[Match] = []
    spoken_for, set_aside = frozenset(of_claims.values()), frozenset(by_alias.values())
    short: dict[str, int] = {}
    for request in requests:
        allocation = allocations[request.key]
        primary = pools.pop(allocation, of_claims.get(request) or by_alias.get(request), set_aside, spoken_for)
        if primary is None:
            short[allocation.variable] = short.get(allocation.variable, 0) + 1
            continue
        rom = allocation.roms.get(primary)
        matches.append(
            Match(
                "vmi",
                request.section,
                request.name,
                request.resource,
                allocation.variable,
                primary,
                rom=rom,
                sriov=request.sriov,
            )
        )
    errors = [
        _too_few(variable, missing, requests, allocations, frozenset(taken), host)
        for variable, missing in short.items()
    ]
    return Matches(tuple(matches), pools.not_attached(), tuple(pools.notes), tuple(errors))


def match_environment(
    allocations: Iterable[Allocation],
    host: HostFacts,
    pairing: Pairing,
    taken: Iterable[PciAddress],
    prefixes: AliasPrefixes = AliasPrefixes(),  # noqa: B008  # a value
    held: Mapping[HostAddress, str] = {},
) -> Matches:
    """Without a VMI, every physical device in every variable is a request, named after its resource (Q1).

    Args:
        allocations: every variable that is set.
        host, pairing, taken: as for `match_requests`.
        prefixes: the policy's.
        held: the aliases of the document's hostdevs; a device with the alias of a request answers that one.
    """
    pools = _Pools(host, pairing, taken)
    by_resource: dict[str, list[Match]] = {}
    for allocation in allocations:
        matches = by_resource.setdefault(allocation.suffix.lower(), [])
        # A variable with a primary of its own isn't one that lists the group for a companion.
        companions = pools.is_used_up(allocation)
        while (primary := pools.pop(allocation, companions=companions)) is not None:
            section = _section_of(primary, host)
            matches.append(Match("environment", section, "", None, allocation.variable, primary))
    named = [match for name, matches in by_resource.items() for match in _numbered(name, matches, prefixes, held)]
    return Matches(tuple(named), notes=tuple(pools.notes))


def _numbered(
    resource: str, matches: Sequence[Match], prefixes: AliasPrefixes, held: Mapping[HostAddress, str]
) -> list[Match]:
    """The matches of one resource by their numbers: those that the document's aliases give, then the free ones."""
    by_number: dict[int, Match] = {}
    for match in matches if held else ():
        stem = alias_of(match.section, f"{resource}-", kind_of(match.primary), prefixes)
        alias = held.get(match.primary, "")
        number = alias.removeprefix(stem)
        if alias != number and number.isdecimal() and str(int(number)) == number and int(number) < len(matches):
            by_number[int(number)] = match
    kept = {match.primary for match in by_number.values()}
    free = (number for number in range(len(matches)) if number not in by_number)
    by_number |= {next(free): match for match in matches if match.primary not in kept}
    return [by_number[number]._replace(name=f"{resource}-{number}") for number in sorted(by_number)]


def match_hostdevs(
    hostdevs: Iterable[ExistingHostdev], taken: set[HostAddress], prefixes: AliasPrefixes, host: HostFacts
) -> tuple[Match, ...]:
    """Hostdevs of the document that answer no other request are requests themselves (Q2).

    A hostdev's name is taken from its alias if that has a prefix of KubeVirt's or the policy's. Otherwise it is named
    after its address, and nobody asked about it (X1).
    """
    sections: list[tuple[Section, str]] = [("gpus", prefixes.gpu), ("hostDevices", prefixes.hostdevice)]
    sections += [("hostDevices", prefixes.usb), *_SECTION_OF_ALIAS]
    matches: list[Match] = []
    for hostdev in hostdevs:
        source = hostdev.source
        if source is None or source in taken:
            continue
        taken.add(source)
        named = _named_by_alias(hostdev, sections)
        section, name = named or (_section_of(source, host), f"{hostdev.kind}-{source}")
        matches.append(Match("domain", section, name, None, None, source, asked=named is not None))
    return tuple(matches)


def _named_by_alias(hostdev: ExistingHostdev, sections: Iterable[tuple[Section, str]]) -> tuple[Section, str] | None:
    """Section and name of the request for which a hostdev was made; None if its alias doesn't tell."""
    alias = hostdev.alias or ""
    for section, prefix in sections:
        if alias.startswith(prefix) and len(alias) > len(prefix):
            return section, alias[len(prefix) :]
    return None


_SECTION_OF_ALIAS: tuple[tuple[Section, str], ...] = (
    *CLAIM_PREFIXES.items(),
    ("gpus", "ua-gpu-"),
    ("hostDevices", "ua-hostdevice-"),
    ("hostDevices", "ua-usb-host-"),
    ("interfaces", SRIOV_PREFIX),
    ("hostDevices", SIBLING_PREFIX),
)


def _section_of(address: HostAddress, host: HostFacts) -> Section:
    """The section of a request without a VMI: ``gpus`` for GPUs and for mdevs whose parent is one."""
    if isinstance(address, MdevAddress):
        function = _parent_of(host.mdevs.get(address.uuid), host)
    else:
        function = host.functions.get(address) if isinstance(address, PciAddress) else None
    return "gpus" if function is not None and is_gpu(function) else "hostDevices"


def _parent_of(mdev: Mdev | None, host: HostFacts) -> PciFunction | None:
    """The function on which an mdev was created; None if that isn't a PCI device."""
    try:
        return None if mdev is None else host.functions.get(PciAddress.parse(mdev.parent))
    except ValueError:
        return None


_USED_OTHERWISE = "an <interface> or <disk> of the domain"


class _Pools:
    """The devices of each variable that can still answer requests."""

    def __init__(self, host: HostFacts, pairing: Pairing, taken: Iterable[PciAddress]) -> None:
        self._host = host
        self._pairing = pairing
        self.notes: list[Note] = []
        self._taken = frozenset(taken)
        self._used: set[HostAddress] = set(self._taken)
        self._primaries: dict[str, deque[HostAddress]] = {}  # those that may still be free, by variable
        self._companions: dict[str, list[HostAddress]] = {}
        """By variable: what was asked for by its own name if no primary is left, because the primary of its slot went
        to another variable's request (C1: an old plugin lists the whole group in both)."""

    def pop(
        self,
        allocation: Allocation,
        own: HostAddress | None = None,
        set_aside: frozenset[HostAddress] = frozenset(),
        of_claims: frozenset[HostAddress] = frozenset(),
        *,
        companions: bool = True,
    ) -> HostAddress | None:
        """Take the next free primary of a variable (C5), or ``own`` if it is one of them.

        Args:
            allocation: of the variable.
            own: the address that only this request gets.
            set_aside: those of other requests, which get no other if they can; taken if nothing else is left.
            of_claims: those of DRA claims, which answer only these.
            companions: whether a companion may be taken if there is no primary.
        """
        primaries = self._primaries_of(allocation)
        while primaries and primaries[0] in self._used:
            primaries.popleft()
        candidates = [primaries, self._companions.get(allocation.variable, ()) if companions else ()]
        if own is not None and own not in self._used and any(own in each for each in candidates):
            taken: HostAddress | None = own
        else:
            free = (each for each in chain(*candidates) if each not in self._used and each not in of_claims)
            taken = next(free, None)
            if taken in set_aside:
                taken = next((primary for primary in free if primary not in set_aside), taken)
        if taken is not None:
            self._used.add(taken)
        return taken

    def _primaries_of(self, allocation: Allocation) -> deque[HostAddress]:
        """The primaries of a variable; the first time also notes on entries that can't answer a request."""
        primaries = self._primaries.get(allocation.variable)
        if primaries is None:
            self.notes += [
                Note("taken", f"{allocation.variable}: {entry} is skipped: {_USED_OTHERWISE} uses it already")
                for entry in allocation.entries
                if entry in self._taken
            ]
            devices = [entry for entry in allocation.entries if entry in allocation.devices]
            primaries = deque(devices if allocation.devices else self._find_free(allocation))
            self._primaries[allocation.variable] = primaries
        return primaries

    def _find_free(self, allocation: Allocation) -> list[HostAddress]:
        """The primaries that are free; notes the companions of those that aren't."""
        if self._pairing == "positional":
            return [entry for entry in allocation.entries if entry not in self._used]
        endpoints = self._endpoints(allocation)
        primaries = [each for each in _primaries(endpoints, self._host) if each not in self._used]
        companions = self._companions[allocation.variable] = self._find_companions(endpoints, primaries)
        if not self._host.known and any(isinstance(entry, PciAddress) for entry in (*primaries, *companions)):
            chosen = ", ".join(str(entry) for entry in (*primaries, *companions))
            guess = "without host facts the lowest function of a slot is assumed to be the primary"
            self.notes.append(Note("guess", f"{allocation.variable}: {guess}: {chosen}"))
        return primaries

    def _find_companions(
        self, endpoints: Sequence[HostAddress], primaries: Collection[HostAddress]
    ) -> list[HostAddress]:
        """See `_companions`."""
        slots = {entry.slot for entry in self._used - self._taken if isinstance(entry, PciAddress)}
        unused = [entry for entry in endpoints if entry not in self._used]
        return [
            entry
            for entry in (_primaries(unused, self._host) if slots else ())
            if isinstance(entry, PciAddress) and entry.slot in slots and entry not in primaries
        ]

    def _endpoints(self, allocation: Allocation) -> list[HostAddress]:
        """The entries of a variable that can be given to a guest; a note on each of the others."""
        endpoints: list[HostAddress] = []
        for entry in allocation.entries:
            function = self._host.functions.get(entry) if isinstance(entry, PciAddress) else None
            if function is not None and is_bridge(function, self._host.details.get(function.address)):
                text = f"{allocation.variable}: {entry} is skipped: a bridge can't be given to a guest"
                self.notes.append(Note("bridge", text))
            else:
                endpoints.append(entry)
        return endpoints

    def is_used_up(self, allocation: Allocation) -> bool:
        """Whether no primary of a variable is free."""
        return all(primary in self._used for primary in self._primaries_of(allocation))

    def not_attached(self) -> tuple[tuple[str, HostAddress], ...]:
        """Primaries that no request takes, with their variables (C4)."""
        return tuple(
            (variable, primary)
            for variable, primaries in self._primaries.items()
            for primary in primaries
            if primary not in self._used
        )


def _primaries(entries: Sequence[HostAddress], host: HostFacts) -> list[HostAddress]:
    """The primaries among the entries of one variable, in their order there (C2)."""
    slots: dict[PciAddress | PciSlot, list[PciAddress]] = {}
    for entry in entries:
        if isinstance(entry, PciAddress):
            function = host.functions.get(entry)
            # A VF is always its own device; its slot holds other VFs, not its siblings.
            slots.setdefault(entry if function and function.physfn else entry.slot, []).append(entry)
    primaries: set[HostAddress] = set()
    for in_slot in slots.values():
        primaries.update(in_slot if len(in_slot) == 1 else _best(in_slot, host))
    return [entry for entry in entries if entry in primaries or not isinstance(entry, PciAddress)]


def _best(in_slot: list[PciAddress], host: HostFacts) -> list[PciAddress]:
    """The functions of the best class: the lowest, and all of its model (C2); a guess without facts (C3)."""
    functions = [function for function in map(host.functions.get, in_slot) if function is not None]
    if not functions:
        return [min(in_slot)]
    best = min(functions, key=lambda function: (primary_rank(function), function.address))
    return [function.address for function in functions if function.model == best.model]


_IN_A_RECORD = (
    "Is the snapshot one of the node where the variable was set, and made since? `launcherkit snapshot` there makes "
    "another. If the device isn't in that either, it was removed, or the device plugin's list is stale."
)


def check_on_host(allocations: Iterable[Allocation], host: HostFacts) -> Iterator[LauncherkitError]:
    """An error for each address in the used variables that isn't on the host, or can't be read."""
    if not host.known:
        return
    for allocation in allocations:
        for entry in allocation.entries:
            if isinstance(entry, PciAddress) and entry in host.unknown:
                yield UNREADABLE_FILE(
                    f"{allocation.variable}: {entry} can't be read: {host.unknown[entry]}",
                    "It is on this host, and nothing is known of it. The kernel's log (dmesg) may say more.",
                    variable=allocation.variable,
                    device=str(entry),
                )
                continue
            if isinstance(entry, PciAddress) and entry not in host.functions:
                kind, where = "PCI function", "/sys/bus/pci/devices"
            elif isinstance(entry, MdevAddress) and entry.uuid not in host.mdevs:
                kind, where = "mediated device", "/sys/bus/mdev/devices"
            else:
                continue
            yield NOT_ON_HOST(
                f"{allocation.variable}: {kind} {entry} is not on this host",
                _IN_A_RECORD
                if host.recorded
                else f"It was allocated but is not in {where}: removed, or the device plugin's list is stale. "
                "Restart the plugin and the pod.",
                variable=allocation.variable,
                device=str(entry),
            )


def _too_few(
    variable: str,
    missing: int,
    requests: Sequence[Request],
    allocations: Mapping[str, Allocation],
    taken: Collection[HostAddress],
    host: HostFacts,
) -> TooFew:
    askers = [request for request in requests if allocations[request.key].variable == variable]
    allocation = allocations[askers[0].key]
    entries = ", ".join(_shown(entry, taken, host) for entry in allocation.entries) or "nothing"
    names = ", ".join(f"{request.section} {request.name!r}" for request in askers)
    resource = " ".join((askers[0].resource or askers[0].key).split())  # in a remedy each line is a command
    return TOO_FEW_DEVICES(
        f"{variable} has {counted(len(askers) - missing, 'device')} for {counted(len(askers), 'request')} ({names}); "
        f"it holds: {entries}",
        f"Check the pod's limits: it must ask for {len(askers)} of {resource}. Audio and other "
        "companions of a GPU don't count as devices; `pairing: positional` counts every entry, as KubeVirt does.",
        variable=variable,
    )


def _shown(address: HostAddress, taken: Collection[HostAddress], host: HostFacts) -> str:
    function = host.functions.get(address) if isinstance(address, PciAddress) else None
    use = f" ({_USED_OTHERWISE} has it)" if address in taken else ""
    return (describe(function) if function else str(address)) + use


# Requests by DRA claim, and the device that each of them gets (E5).


def for_each_device(requests: Iterable[Request], allocations: Mapping[str, Allocation]) -> tuple[Request, ...]:
    """One request for each device: if a claim has several, its request becomes ``gpu1``, ``gpu1-2``..."""
    listed = list(requests)
    expanded: list[Request] = []
    for request in listed:
        devices = allocations[request.key].devices
        alone = sum(request.dra_claim == other.dra_claim for other in listed) == 1
        expanded.append(request)
        if request.dra_claim is not None and alone:
            expanded += [request._replace(name=f"{request.name}-{number}") for number in range(2, len(devices) + 1)]
    return tuple(expanded)


def claimed_devices(requests: Sequence[Request], allocations: Mapping[str, Allocation]) -> dict[Request, HostAddress]:
    """The device of each request by claim; it is only for that request, whatever a variable holds (C5)."""
    device_of: dict[Request, HostAddress] = {}
    last: dict[str, int] = {}
    for request in requests:
        if request.dra_claim is not None:
            position = last[request.key] = last.get(request.key, -1) + 1
            if position < len(devices := allocations[request.key].devices):
                device_of[request] = devices[position]
    return device_of
