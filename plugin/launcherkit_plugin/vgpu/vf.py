"""VFs of SR-IOV vGPU cards as devices of the kubelet: those with a type, and those that could have one (G4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from launcherkit.errors import Collector, LauncherkitError
from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciFunction, VgpuVf
from launcherkit.model.host import HostFacts
from launcherkit.resolve.viability import check_nodes, check_viability, needed_nodes, touched_groups
from launcherkit.sources.sysfs import read_needed
from launcherkit_plugin.model.config import VgpuVfRule
from launcherkit_plugin.model.device import Device, Grant, Problem, Resource
from launcherkit_plugin.model.errors import UnknownDevice, VgpuNotMade
from launcherkit_plugin.model.usage import Usage
from launcherkit_plugin.vgpu.cards import is_vgpu_class, parent_name, rank_of
from launcherkit_plugin.vgpu.failures import Failures
from launcherkit_plugin.vgpu.granted import Nodes
from launcherkit_plugin.vgpu.idle import UNKNOWN_USAGE, due, elsewhere, held_devices, idle_since
from launcherkit_plugin.vgpu.rules import NameOf, is_from, resource_name, rule_for, variable
from launcherkit_plugin.vgpu.stopped import Stopped
from launcherkit_plugin.vgpu.writer import Changes, with_room


class _Seat(NamedTuple):
    """A VF under a rule, and the types by which it is a resource's device, the one to be preferred first."""

    vf: PciAddress
    state: VgpuVf
    card: str
    rule: VgpuVfRule
    types: tuple[int, ...]


class VgpuVfProvider:
    """See `launcherkit_plugin.devices.provider.Provider`.

    In dynamic mode a VF is a device of every resource that it could have a type for, until it has one. A type that a
    dynamic rule permits and nobody uses is taken back, whoever set it (G4).

    Args:
        rules: the first that a type falls under counts.
        name_of: names the resources of rules that don't.
        changes: sets types and takes them back.
        grace_seconds: for how long nobody must have one before its type is taken back.
        kept: whether a card's types are those of a layout (G5), and stay.
        stopped: whose VM has ended.
        nodes: hands them out.
        iommufd: containers get VFIO's character devices, whatever else there is (V2).
    """

    def __init__(
        self,
        rules: Sequence[VgpuVfRule],
        name_of: NameOf,
        changes: Changes,
        *,
        grace_seconds: float = 60.0,
        kept: Callable[[str, HostFacts], bool] = lambda _card, _host: False,
        stopped: Stopped | None = None,
        nodes: Nodes | None = None,
        iommufd: bool = False,
    ) -> None:
        self._rules = tuple(rules)
        self._name_of = name_of
        self._changes = changes
        self._grace = grace_seconds
        self._kept = kept
        self._stopped = stopped or Stopped()
        self._iommufd = iommufd
        self._handed = nodes or Nodes()
        self._names: dict[str, dict[int, str]] = {}
        """Of types, by number, for each card: the driver lists only those that a VF could have at the moment."""
        self._seats: Mapping[tuple[str, str], _Seat] = {}
        self._idle: Mapping[str, float] = {}
        self._failures = Failures()
        self._knows_usage = False

    def wants(self, function: PciFunction) -> bool:
        """Whether details of a function have to be read."""
        return (
            function.physfn is not None
            and is_vgpu_class(function)
            and any(is_from(rule, (str(function.physfn),)) for rule in self._rules)
        )

    # What there is

    def resources(self, host: HostFacts, usage: Usage, now: float) -> tuple[Resource, ...]:
        """See `Provider.resources`."""
        self._knows_usage |= usage.known
        self._seats = seats = self._look(host, usage)
        found: dict[str, dict[str, Device]] = {}
        for (name, device), seat in seats.items():
            problem = self._problem(seat, host, now) or elsewhere(usage, name, device)
            found.setdefault(name, {})[device] = self._device(seat, problem, host)
        self._keep_held(found, usage)
        rules = {name: seat.rule for (name, _), seat in seats.items()}
        rules |= {rule.name: rule for rule in self._rules if rule.name is not None}
        return tuple(
            Resource(name, variable(rules[name], name), devices) for name, devices in sorted(found.items()) if devices
        )

    def _look(self, host: HostFacts, usage: Usage) -> dict[tuple[str, str], _Seat]:
        """Every VF of a rule, by resource and ID."""
        states = {vf: detail.vgpu for vf, detail in sorted(host.details.items()) if detail.vgpu is not None}
        for vf, state in states.items():
            self._names.setdefault(parent_name(vf, host), {}).update(state.creatable)
        found: dict[tuple[str, str], _Seat] = {}
        for vf, state in states.items():
            for name, seat in self._seats_of(vf, state, host):
                found[name, str(vf)] = seat
            for name, devices in usage.held.items():  # K4: what a pod has stays where it is
                if str(vf) in devices and (name, str(vf)) not in found:
                    card = parent_name(vf, host)
                    rule = self._rule_of_held(name, card)
                    if rule is not None:
                        found[name, str(vf)] = _Seat(vf, state, card, rule, (state.current_type,))
        return found

    def _seats_of(self, vf: PciAddress, state: VgpuVf, host: HostFacts) -> Iterator[tuple[str, _Seat]]:
        card = parent_name(vf, host)
        function = host.functions.get(vf)
        vendor = None if function is None else function.vendor
        kinds: dict[str, tuple[VgpuVfRule, list[tuple[int, int]]]] = {}
        for number, text in self._kinds(card, state).items():
            rule = rule_for(self._rules, (card,), str(number), text)
            if rule is None or (rule.mode == "static" and number != state.current_type):
                continue
            name = resource_name(rule, text or str(number), vendor, self._name_of)
            rank = rank_of(rule.types, str(number), text) or 0
            kinds.setdefault(name, (rule, []))[1].append((rank, number))
        for name, (rule, ranked) in kinds.items():
            yield name, _Seat(vf, state, card, rule, tuple(number for _, number in sorted(ranked)))

    def _kinds(self, card: str, state: VgpuVf) -> dict[int, str | None]:
        """The types that a VF of a card could have, and has, by number."""
        kinds: dict[int, str | None] = dict(sorted(self._names.get(card, {}).items()))
        if state.current_type:
            kinds.setdefault(state.current_type, None)  # the driver's tables are empty while a card is full
        return kinds

    def _rule_of_held(self, name: str, card: str) -> VgpuVfRule | None:
        """The rule by which a VF can have been given away under a name: one with that name, or one without any."""
        return next((rule for rule in self._rules if rule.name in (name, None) and is_from(rule, (card,))), None)

    def _device(self, seat: _Seat, problem: Problem | None, host: HostFacts) -> Device:
        function = host.functions[seat.vf]
        detail = host.details.get(seat.vf)
        groups = frozenset(() if function.iommu_group is None else (function.iommu_group,))
        names = " or ".join(self._what(seat.card, number) for number in seat.types)
        return Device(
            str(seat.vf),
            function.numa_node,
            problem,
            groups,
            (seat.vf,),
            detail.parents if detail else (),
            f"{names} on {seat.vf} of {seat.card}",
        )

    def _problem(self, seat: _Seat, host: HostFacts, now: float) -> Problem | None:
        current = seat.state.current_type
        if current in seat.types and current:
            return self._node_problem(seat, host)
        if current:
            return Problem("other-type", f"{seat.vf} has vGPU type {self._what(seat.card, current)}")
        if host.functions[seat.vf].iommu_group is None:
            return Problem("no-group", f"{seat.vf} has no IOMMU group")
        if not set(seat.types).intersection(dict(seat.state.creatable)):
            return Problem("no-room", f"{seat.card} can't place a vGPU of that type on {seat.vf} now")
        if not self._knows_usage:
            return UNKNOWN_USAGE
        failure = self._failures.why(seat.card, now)
        return None if failure is None else Problem("failed", failure)

    def _node_problem(self, seat: _Seat, host: HostFacts) -> Problem | None:
        """Whether QEMU could have one that has its type (V1, V2)."""
        errors = Collector()
        check_viability(touched_groups([seat.vf], host), (), host, errors, [])
        viable = _first(errors)
        if viable is not None:
            return Problem("not-viable", viable)
        check_nodes(needed_nodes([seat.vf], host, iommufd=self._iommufd).nodes, host, errors)
        missing = _first(errors)
        return None if missing is None else Problem("node", missing)

    def _what(self, card: str, number: int) -> str:
        return self._names.get(card, {}).get(number, str(number))

    def _keep_held(self, found: dict[str, dict[str, Device]], usage: Usage) -> None:
        """What a pod has stays listed, even if it has left the bus (K4)."""
        for name in {*found, *(rule.name for rule in self._rules if rule.name is not None)}:
            for device in usage.held.get(name, {}):
                if device not in found.setdefault(name, {}):
                    found[name][device] = Device(device, problem=Problem("gone", f"{device} is not there any more"))

    # What containers get

    async def allocate(self, resource: Resource, ids: Sequence[str]) -> Grant:
        """See `Provider.allocate`; sets types that aren't set (G4)."""
        return self._handed.grant(resource, await asyncio.to_thread(self._give, resource.name, ids))

    async def check(self, resource: Resource, ids: Sequence[str]) -> None:
        """See `Provider.check`."""
        await asyncio.to_thread(self._give, resource.name, ids)

    def _give(self, resource: str, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """See that all have a type, or set none; the nodes of each."""
        made: list[_Seat] = []
        try:
            for device in ids:
                seat = self._seats.get((resource, device))
                if seat is None:
                    raise UnknownDevice(
                        f"{resource}: there is no VF {device[:100]!r}",
                        "It has no such vGPU type any more; the kubelet's next pod gets another.",
                    )
                if self._ensure(seat):
                    made.append(seat)
            return {device: self._nodes(PciAddress.parse(device)) for device in ids}
        except LauncherkitError:
            for seat in made:
                with suppress(LauncherkitError):  # told; what stays is taken back after the grace time
                    self._changes.clear_type(seat.vf, "vGPU")
            raise

    def _ensure(self, seat: _Seat) -> bool:
        """See that a VF has one of the types. True where it had none."""
        state = self._changes.maker.vf(seat.vf)
        if state is not None and state.current_type and state.current_type in seat.types:
            return False
        if seat.rule.mode == "static":
            raise UnknownDevice(
                f"{seat.vf} has no vGPU type of {', '.join(self._what(seat.card, number) for number in seat.types)}",
                "Somebody has taken it back: in static mode types have to be set before pods can have the VFs.",
            )
        offered = dict(state.creatable) if state else {}
        number = next((number for number in seat.types if number in offered), seat.types[0])
        try:
            made = self._changes.set_type(seat.vf, number, self._what(seat.card, number))
        except VgpuNotMade as error:
            self._failures.add(seat.card, error.message, self._changes.maker.clock())
            raise
        self._failures.clear(seat.card)
        return made

    def _nodes(self, vf: PciAddress) -> tuple[str, ...]:
        with self._changes.maker.files.tree() as tree:
            facts = read_needed(tree, [vf], ())
        errors = Collector()
        check_viability(touched_groups([vf], facts), (), facts, errors, [])
        nodes = needed_nodes([vf], facts, iommufd=self._iommufd).nodes
        check_nodes(nodes, facts, errors)
        errors.raise_if_any()
        return nodes

    # What has to be done

    async def reconcile(self, host: HostFacts, usage: Usage, now: float) -> bool:
        """See `Provider.reconcile`: types are set where a pod needs them, and taken back where nobody does (G3, G4)."""
        return await asyncio.to_thread(self._reconcile, host, usage, now)

    def _reconcile(self, host: HostFacts, usage: Usage, now: float) -> bool:
        usage, at_once = self._stopped.without(usage)
        self._seats = seats = self._look(host, usage)
        held = held_devices(usage)
        ours = {str(seat.vf): seat for seat in (*seats.values(), *self._nameless(host)) if self._is_ours(seat, host)}
        changed = False
        if usage.known:
            self._idle = idle_since(self._idle, ours, held, now)
            for device in due(self._idle, self._grace, now, at_once):
                changed |= self._clear(ours[device])
        for name, devices in sorted(usage.held.items()):
            for device in sorted(devices):
                seat = seats.get((name, device))
                if seat is not None and seat.rule.mode == "dynamic" and seat.types != (0,):
                    changed |= self._restore(seat, [ours[idle] for idle in self._idle if idle in ours], usage)
        typed_ones = {device: seat.vf for (_, device), seat in seats.items() if seat.state.current_type}
        nodes = {device: needed_nodes([vf], host, iommufd=self._iommufd).nodes for device, vf in typed_ones.items()}
        self._changes.try_to(lambda: self._handed.refresh(nodes, held))
        return changed

    def _is_ours(self, seat: _Seat, host: HostFacts) -> bool:
        """Whether a VF has a type that is taken back when nobody uses it."""
        permitted = seat.state.current_type != 0 and seat.state.current_type in seat.types
        return permitted and seat.rule.mode == "dynamic" and not self._kept(seat.card, host)

    def _nameless(self, host: HostFacts) -> Iterator[_Seat]:
        """VFs with a type that no table names, on cards that only dynamic rules are about.

        A card that is full lists no types. What was set before a restart must not stay because of that.
        """
        for vf, detail in host.details.items():
            state, card = detail.vgpu, parent_name(vf, host)
            if state is not None and state.current_type and state.current_type not in self._names.get(card, {}):
                rules = [rule for rule in self._rules if is_from(rule, (card,))]
                if rules and all(rule.mode == "dynamic" for rule in rules):
                    yield _Seat(vf, state, card, rules[0], (state.current_type,))

    def _clear(self, seat: _Seat) -> bool:
        what = self._what(seat.card, seat.state.current_type)
        return bool(self._changes.try_to(lambda: self._changes.clear_type(seat.vf, what)))

    def _restore(self, seat: _Seat, idle: Sequence[_Seat], usage: Usage) -> bool:
        """Set the type that a pod's VF has lost; where there is no room, what nobody has makes way."""
        if seat.state.current_type in seat.types:
            return False
        with suppress(LauncherkitError):  # told; the next call tries again
            mates = [other for other in idle if usage.known and other.card == seat.card and other.vf != seat.vf]
            return with_room(lambda: self._ensure(seat), [partial(self._clear, mate) for mate in mates])
        return False


def _first(errors: Collector) -> str | None:
    try:
        errors.raise_if_any()
    except LauncherkitError as error:
        return next(error.leaves()).message
    return None
