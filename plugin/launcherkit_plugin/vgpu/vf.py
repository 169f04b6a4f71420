"""VFs of SR-IOV vGPU cards as vGPUs of a pool: those with a type, and those that could get one (G4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from launcherkit.choose.nodes import check_node_set, needed_nodes
from launcherkit.choose.viability import check_isolation, check_viability, touched_groups
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciFunction, VgpuVf
from launcherkit_plugin.model.config import VgpuRule
from launcherkit_plugin.model.device import Device, Problem, Usage
from launcherkit_plugin.model.errors import UNKNOWN_DEVICE
from launcherkit_plugin.vgpu.cards import Instance, NameOf, is_from, may_be_vgpu, parent_name, rank_of, rule_for
from launcherkit_plugin.vgpu.pool import Candidate, Present, Target
from launcherkit_plugin.vgpu.writer import VgpuWriter


class _Vf(NamedTuple):
    """A VF as a device of a resource: its rule, and the types that it may have there, the preferred one first."""

    address: PciAddress
    state: VgpuVf
    card: str
    rule: VgpuRule
    types: tuple[int, ...]


class VfKind:
    """See `launcherkit_plugin.vgpu.pool.VgpuKind`.

    In dynamic mode, a VF without a type is a device of every resource for which it could get a type. An unused type
    that a dynamic rule permits is reset, whoever set it (G4).

    Args:
        rules: the first that matches a type applies.
        name_of: returns the names of resources for rules without a name.
        writer: sets and resets types.
        kept: whether a card belongs to a layout (G5), so its types stay.
        iommufd: containers get VFIO's character devices even if there are nodes of groups (V2).
    """

    noun = ""

    def __init__(
        self,
        rules: Sequence[VgpuRule],
        name_of: NameOf,
        writer: VgpuWriter,
        *,
        kept: Callable[[str, HostFacts], bool] = lambda _card, _host: False,
        iommufd: bool = False,
    ) -> None:
        self.rules = tuple(rules)
        self._name_of = name_of
        self._writer = writer
        self._kept = kept
        self.iommufd = iommufd
        self._names: dict[str, dict[int, str]] = {}
        """The names of types by number, for each card. Remembered, since the driver lists only types that a VF could
        get now."""

    def wants(self, function: PciFunction) -> bool:
        """See `VgpuKind.wants`."""
        return may_be_vgpu(function) and any(is_from(rule, (str(function.physfn),)) for rule in self.rules)

    # What is advertised

    def candidates(self, host: HostFacts, usage: Usage) -> Iterator[Candidate]:
        """See `VgpuKind.candidates`."""
        for (name, _), vf in self._look(host, usage).items():
            device = self._device(vf, self._problem(vf, host), host)
            yield Candidate(name, vf.rule, device, self._target(vf), vf.state.current_type != 0)

    def _look(self, host: HostFacts, usage: Usage) -> dict[tuple[str, str], _Vf]:
        """The VFs to which a rule applies, by resource and ID."""
        states = {vf: detail.vgpu for vf, detail in sorted(host.details.items()) if detail.vgpu is not None}
        for vf, state in states.items():
            self._names.setdefault(parent_name(vf, host), {}).update(state.creatable)
        by_device: dict[tuple[str, str], _Vf] = {}
        for vf, state in states.items():
            for name, candidate in self._candidates_of(vf, state, host):
                by_device[name, str(vf)] = candidate
            for name, devices in usage.held.items():  # K4: a pod's device stays in its resource
                if str(vf) in devices and (name, str(vf)) not in by_device:
                    card = parent_name(vf, host)
                    rule = self._rule_of_held(name, card)
                    if rule is not None:
                        by_device[name, str(vf)] = _Vf(vf, state, card, rule, (state.current_type,))
        return by_device

    def _candidates_of(self, vf: PciAddress, state: VgpuVf, host: HostFacts) -> Iterator[tuple[str, _Vf]]:
        card = parent_name(vf, host)
        function = host.functions.get(vf)
        vendor = None if function is None else function.vendor
        kinds: dict[str, tuple[VgpuRule, list[tuple[int, int]]]] = {}
        for number, text in self._kinds(card, state).items():
            rule = rule_for(self.rules, (card,), str(number), text)
            if rule is None or (rule.mode == "static" and number != state.current_type):
                continue
            name = rule.name or self._name_of(text or str(number), vendor)
            rank = rank_of(rule.types, str(number), text) or 0
            kinds.setdefault(name, (rule, []))[1].append((rank, number))
        for name, (rule, ranked) in kinds.items():
            yield name, _Vf(vf, state, card, rule, tuple(number for _, number in sorted(ranked)))

    def _kinds(self, card: str, state: VgpuVf) -> dict[int, str | None]:
        """The names of the types that a VF of a card could get or has, by number; None: the name is unknown."""
        kinds: dict[int, str | None] = dict(sorted(self._names.get(card, {}).items()))
        if state.current_type:
            kinds.setdefault(state.current_type, None)  # the driver's tables are empty while a card is full
        return kinds

    def _rule_of_held(self, name: str, card: str) -> VgpuRule | None:
        """The rule by which a VF may have been allocated under a resource name: one with that name, or without any."""
        return next((rule for rule in self.rules if rule.name in (name, None) and is_from(rule, (card,))), None)

    def _device(self, vf: _Vf, problem: Problem | None, host: HostFacts) -> Device:
        function = host.functions[vf.address]
        detail = host.details.get(vf.address)
        groups = frozenset(() if function.iommu_group is None else (function.iommu_group,))
        names = tuple(self._what(vf.card, number) for number in vf.types)
        return Device(
            str(vf.address),
            function.numa_node,
            problem,
            groups,
            (vf.address,),
            detail.parents if detail else (),
            f"{' or '.join(names)} on {vf.address} of {vf.card}",
            vgpu_types=names,
            place=str(vf.address),
        )

    def _problem(self, vf: _Vf, host: HostFacts) -> Problem | None:
        current = vf.state.current_type
        for error in check_isolation([vf.address], host):
            return Problem("no-group", error.message)
        if current in vf.types and current:
            return self._node_problem(vf, host)
        if current:
            return Problem("other-type", f"{vf.address} has vGPU type {self._what(vf.card, current)}")
        creatable = dict(vf.state.creatable)
        if not set(vf.types).intersection(creatable):
            fixed = _types_beside(vf, host)
            if creatable and fixed.isdisjoint({0, *vf.types}):
                beside = " and ".join(self._what(vf.card, number) for number in sorted(fixed))
                only = ", ".join(creatable.values())
                return Problem("other-type", f"beside vGPUs of {beside} {vf.card} takes only {only}")
            return Problem("no-room", f"{vf.card} can't place a vGPU of that type on {vf.address} now")
        return None

    def _node_problem(self, vf: _Vf, host: HostFacts) -> Problem | None:
        """Why QEMU couldn't open a VF with a type (V1, V2); None if it could."""
        for error in check_viability(touched_groups([vf.address], host), (), host):
            return Problem("not-viable", error.message)
        for error in check_node_set(needed_nodes([vf.address], host, iommufd=self.iommufd), host):
            return Problem("node", error.message)
        return None

    def _what(self, card: str, number: int) -> str:
        return self._names.get(card, {}).get(number, str(number))

    # What is to be removed, and what is missing

    def present(
        self,
        host: HostFacts,
        usage: Usage,
        targets: Mapping[tuple[str, str], Target],  # noqa: ARG002  # mdevs need it
    ) -> Present:
        """See `VgpuKind.present`."""
        by_device = self._look(host, usage)
        ours = [vf for vf in (*by_device.values(), *self._nameless(host)) if self._is_ours(vf, host)]
        lost = [vf for (name, device), vf in sorted(by_device.items()) if usage.holder(name, device) and _lost(vf)]
        typed = {vf.address: str(vf.address) for vf in by_device.values() if vf.state.current_type}
        return Present(
            {str(vf.address): self._target(vf) for vf in ours},
            [self._target(vf) for vf in lost],
            {device: needed_nodes([address], host, iommufd=self.iommufd).nodes for address, device in typed.items()},
        )

    def _target(self, vf: _Vf) -> Target:
        vgpu = self._instance(str(vf.address), vf.card, vf.types[0])
        return Target(vgpu, vf.card, vf.card, vf.rule.mode == "dynamic", vf.types)

    def _instance(self, vf: str, card: str, number: int) -> Instance:
        return Instance(vf, card, str(number), self._what(card, number))

    def _is_ours(self, vf: _Vf, host: HostFacts) -> bool:
        """Whether a VF has a type that is reset when it is unused."""
        permitted = vf.state.current_type != 0 and vf.state.current_type in vf.types
        return permitted and vf.rule.mode == "dynamic" and not self._kept(vf.card, host)

    def _nameless(self, host: HostFacts) -> Iterator[_Vf]:
        """VFs with a type of unknown name, on cards to which only dynamic rules apply.

        A full card lists no types. Types that were set before a restart must not stay because of that.
        """
        for vf, detail in host.details.items():
            state, card = detail.vgpu, parent_name(vf, host)
            if state is not None and state.current_type and state.current_type not in self._names.get(card, {}):
                rules = [rule for rule in self.rules if is_from(rule, (card,))]
                if rules and all(rule.mode == "dynamic" for rule in rules):
                    yield _Vf(vf, state, card, rules[0], (state.current_type,))

    # In a thread

    def ensure(self, target: Target) -> bool:
        """See `VgpuKind.ensure`: sets one of the permitted types."""
        state = self._state(target)
        if state is not None and state.current_type and state.current_type in target.types:
            return False
        if not target.dynamic:
            types = ", ".join(self._what(target.card, number) for number in target.types)
            raise UNKNOWN_DEVICE(
                f"{target.vgpu.device} has no vGPU type of {types}",
                "Somebody has reset it: in static mode types must be set before pods can use the VFs.",
                device=target.vgpu.device,
            )
        offered = dict(state.creatable) if state else {}
        number = next((number for number in target.types if number in offered), target.types[0])
        return self._writer.create(self._instance(target.vgpu.device, target.card, number))

    def remove(self, target: Target) -> bool:
        """See `VgpuKind.remove`: resets the type."""
        state = self._state(target)
        number = int(target.vgpu.type_id) if state is None else state.current_type
        return self._writer.remove(self._instance(target.vgpu.device, target.card, number))

    def _state(self, target: Target) -> VgpuVf | None:
        return self._writer.maker.vf(PciAddress.parse(target.vgpu.device))


def _types_beside(vf: _Vf, host: HostFacts) -> set[int]:
    """The types of the vGPUs on the card of a VF; 0 if it has none. In homogeneous mode the first fixes the others."""
    card = host.physical_function(vf.address)
    states = [
        detail.vgpu
        for address, detail in host.details.items()
        if detail.vgpu is not None and host.physical_function(address) == card
    ]
    return {state.current_type for state in states if state.current_type} or {0}


def _lost(vf: _Vf) -> bool:
    """Whether a VF that a pod has lacks the type for which it was allocated."""
    dynamic = vf.rule.mode == "dynamic" and vf.types != (0,)
    return dynamic and vf.state.current_type not in vf.types
