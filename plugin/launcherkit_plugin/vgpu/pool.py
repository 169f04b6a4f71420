"""vGPUs as devices of the kubelet: those that exist, and those that could be created (G1-G4).

There are two kinds: mdevs (`launcherkit_plugin.vgpu.mdev`) and VFs with a type (`launcherkit_plugin.vgpu.vf`). Work on
one card is serialised, and only those who need that card wait (K9).
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

from launcherkit.errors import LauncherkitError
from launcherkit.model.host import HostFacts, PciFunction
from launcherkit_plugin.devices.cdi import GrantedNodes, claimed_nodes
from launcherkit_plugin.devices.names import variable_name
from launcherkit_plugin.host.work_queue import WorkQueue, tasks_of
from launcherkit_plugin.model.backoff import Backoff
from launcherkit_plugin.model.config import VgpuRule
from launcherkit_plugin.model.device import NO_PREFERENCES, Device, Grant, Preferences, Problem, Resource, Usage
from launcherkit_plugin.model.errors import UNKNOWN_DEVICE, VGPU_NOT_REMOVED, StepFailed, TooSlow
from launcherkit_plugin.model.grace import due, idle_since
from launcherkit_plugin.vgpu.cards import Instance
from launcherkit_plugin.vgpu.lifecycle import UNKNOWN_USAGE, Stopped, elsewhere
from launcherkit_plugin.vgpu.maker import PATIENCE_SECONDS
from launcherkit_plugin.vgpu.writer import VgpuWriter, with_room

ALLOCATE_SECONDS = PATIENCE_SECONDS + 5.0
"""How long an Allocate waits for the vGPUs of a card to be created; long enough to hear why one doesn't appear."""

LATE_SECONDS = 15.0
"""After this time, changes that nobody waits for are reported as late."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 10.0, 600.0
"""Pauses after failures; they double. Meanwhile such vGPUs aren't advertised as Healthy, since the next pod would fail
too."""


class Target(NamedTuple):
    """A vGPU, and where it is or will be created."""

    vgpu: Instance
    card: str
    """The name of the card; work on a card is serialised."""
    key: object
    """Attempts with the same key fail together: when one has failed, the others pause too."""
    dynamic: bool
    """Whether it is created on demand; if not, it must exist."""
    types: tuple[int, ...] = ()
    """Of a VF, the types that it may have, the preferred one first."""


class Candidate(NamedTuple):
    """A vGPU that can be advertised as a device of a resource."""

    resource: str
    rule: VgpuRule
    device: Device
    target: Target
    exists: bool
    """Whether it exists already, with its type."""


class Present(NamedTuple):
    """The existing and the missing vGPUs of a kind."""

    removable: Mapping[str, Target]
    """vGPUs that are removed once they are unused for the grace time, by ID."""
    lost: Sequence[Target]
    """vGPUs that pods have and that don't exist."""
    nodes: Mapping[str, Sequence[str]]
    """The device nodes of existing vGPUs, by ID."""


class MigState(Protocol):
    """What is known of the GPU instances of cards."""

    def problem(self, card: str) -> str | None:
        """Why a card doesn't have those of the layout."""
        ...

    def described(self, card: str) -> str:
        """Those of a card, for the end of a description."""
        ...


class VgpuKind(Protocol):
    """What differs between mdevs and VFs. Methods that block say so, and are called in a thread."""

    noun: str
    """The prefix of IDs in messages: ``mdev `` or nothing."""
    iommufd: bool
    """Whether containers get VFIO's character devices even if there are nodes of groups (V2)."""

    @property
    def rules(self) -> Sequence[VgpuRule]: ...

    def wants(self, function: PciFunction) -> bool:
        """Whether the details of a function have to be read."""
        ...

    def candidates(self, host: HostFacts, usage: Usage) -> Iterator[Candidate]:
        """All vGPUs that can be advertised, with problems of their own; `Pool` adds those of work on the card."""
        ...

    def present(self, host: HostFacts, usage: Usage, targets: Mapping[tuple[str, str], Target]) -> Present:
        """The existing and the missing vGPUs; ``targets`` are those of the last `candidates`, by resource and ID."""
        ...

    def ensure(self, target: Target) -> bool:
        """Create a vGPU unless it exists; blocks. Returns whether it was created.

        Raises:
            UNKNOWN_DEVICE: it doesn't exist, and isn't created on demand.
            LauncherkitError: see `launcherkit_plugin.vgpu.maker.Maker`.
        """
        ...

    def remove(self, target: Target) -> bool:
        """Remove a vGPU; blocks. Returns and raises the same as `launcherkit_plugin.vgpu.writer.VgpuWriter.remove`."""
        ...


class Pool:
    """A `launcherkit_plugin.devices.provider.Provider`, and a `launcherkit_plugin.devices.provider.Reconciler`.

    Args:
        kind: mdevs or VFs.
        writer: creates and removes vGPUs.
        queue: runs work that may hang.
        grace_seconds: how long a vGPU must be unused before it is removed.
        stopped: the devices of pods whose VM has ended.
        nodes: how containers get device nodes.
        mig: what is known of the GPU instances of cards.
    """

    def __init__(
        self,
        kind: VgpuKind,
        writer: VgpuWriter,
        queue: WorkQueue,
        *,
        grace_seconds: float = 60.0,
        stopped: Stopped | None = None,
        nodes: GrantedNodes | None = None,
        mig: MigState | None = None,
    ) -> None:
        self.changes_host = True
        self._mig = mig
        self._kind = kind
        self._writer = writer
        self._queue = queue
        self._grace = grace_seconds
        self._stopped = stopped or Stopped()
        self._granted = nodes or GrantedNodes()
        self._clock = writer.maker.clock
        self._targets: Mapping[tuple[str, str], Target] = {}
        self._existing: list[tuple[str, str]] = []
        """Resource and ID of existing healthy vGPUs."""
        self._idle: Mapping[str, float] = {}
        self._knows_usage = False
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)

    def wants(self, function: PciFunction) -> bool:
        """See `Provider.wants`."""
        return self._kind.wants(function)

    # What is advertised

    def resources(self, host: HostFacts, usage: Usage, now: float) -> tuple[Resource, ...]:
        """See `Provider.resources`."""
        self._knows_usage |= usage.known
        devices: dict[str, dict[str, Device]] = {}
        rules: dict[str, VgpuRule] = {}
        targets: dict[tuple[str, str], Target] = {}
        well: list[tuple[str, str]] = []
        for name, rule, device, target, exists in self._kind.candidates(host, usage):
            if exists and device.problem is None and not rule.dra:
                well.append((name, device.id))
            problem = device.problem or self._problem(target, usage.holder(name, device.id) is not None, exists, now)
            problem = problem or elsewhere(usage, name, device.id)
            if self._mig is not None and problem is not None and problem.reason == "no-room":
                lacking = self._mig.problem(target.card)
                problem = problem if lacking is None else problem._replace(text=f"{problem.text}; {lacking}")
            rules.setdefault(name, rule)
            about = device.description + ("" if self._mig is None else self._mig.described(target.card))
            devices.setdefault(name, {})[device.id] = device._replace(
                problem=problem, card=target.card, made=exists, description=about
            )
            targets[name, device.id] = target
        rules |= {rule.name: rule for rule in self._kind.rules if rule.name is not None}
        self._keep_held(devices, usage)
        self._targets, self._existing = targets, well
        return tuple(
            Resource(
                name, variable_name(name, rules[name].prefix), of_resource, made_at_start=True, dra=rules[name].dra
            )
            for name, of_resource in sorted(devices.items())
            if of_resource
        )

    def _problem(self, target: Target, held: bool, exists: bool, now: float) -> Problem | None:
        """Why a vGPU can't be allocated or created now, as far as that is a matter of its card or of usage."""
        hanging = self._queue.hanging(target.card)
        if hanging is not None and not held:
            return Problem("failed", f"{target.card}: {hanging}")
        if exists:
            return None
        if not self._knows_usage:
            return UNKNOWN_USAGE
        reason = self._backoff.why(target.key, now)
        return None if reason is None else Problem("failed", reason)

    def _keep_held(self, devices: dict[str, dict[str, Device]], usage: Usage) -> None:
        """A device that a pod has stays listed even if it doesn't exist any more (K4)."""
        for name in {*devices, *(rule.name for rule in self._kind.rules if rule.name is not None)}:
            for device in usage.held.get(name, {}):
                if device not in devices.setdefault(name, {}):
                    text = f"{self._kind.noun}{device} no longer exists"
                    devices[name][device] = Device(device, problem=Problem("gone", text))

    # What a container gets

    async def allocate(self, resource: Resource, ids: Sequence[str], wishes: Preferences = NO_PREFERENCES) -> Grant:  # noqa: ARG002
        """See `Provider.allocate`; creates missing vGPUs (G2, G4)."""
        nodes = await self._create_missing(resource.name, ids)
        if resource.dra:
            together = tuple(dict.fromkeys(node for of_one in nodes.values() for node in of_one))
            return claimed_nodes(resource.variable, nodes, ids, together)
        return self._granted.grant(resource, nodes)

    async def check(self, resource: Resource, ids: Sequence[str]) -> None:
        """See `Provider.check`; creates missing vGPUs, for after a reboot containers are started without Allocate."""
        await self._create_missing(resource.name, ids)

    async def _create_missing(self, resource: str, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Create those of the vGPUs that are missing, all or none; returns the device nodes of each.

        Raises:
            UNKNOWN_DEVICE: one isn't advertised any more.
            WORK_HANGS: work on a card hangs.
            LauncherkitError: one can't be created.
        """
        nodes: dict[str, tuple[str, ...]] = {}
        made: list[tuple[str, list[Target]]] = []
        try:
            for card, targets in _by_card(self._target(resource, device) for device in ids).items():
                new, of_card = await self._queue.run(
                    card, f"making vGPUs on {card}", partial(self._ensure_all, targets), ALLOCATE_SECONDS
                )
                made.append((card, new))
                nodes |= of_card
        except LauncherkitError:
            for card, new in made:
                with suppress(TooSlow):  # what is left is removed after the grace time
                    undo = partial(self._remove_all, new)
                    await self._queue.run(card, f"removing vGPUs on {card}", undo, ALLOCATE_SECONDS)
            raise
        return {device: nodes[device] for device in ids}

    def _target(self, resource: str, device: str) -> Target:
        target = self._targets.get((resource, device))
        if target is None:
            raise UNKNOWN_DEVICE(
                f"{resource}: there is no vGPU {device[:100]!r}",
                "It has been removed, or its type is not permitted any more; the next pod gets another device.",
                device=device[:100],
                resource=resource,
            )
        return target

    # What has to be changed

    def reconcile(self, host: HostFacts, usage: Usage, now: float) -> list[asyncio.Task[bool]]:
        """See `Reconciler.reconcile`: creates vGPUs that pods lack, removes unused ones after the grace time (G3)."""
        usage, at_once = self._stopped.without(usage)
        kept = usage.kept_ids
        ours, lost, nodes = self._kind.present(host, usage, self._targets)
        going: list[Target] = []
        spare: list[Target] = []
        if usage.known:
            self._idle = idle_since(self._idle, ours, kept, now)
            over = due(self._idle, self._grace, now, at_once)
            going = [ours[device] for device in over if not self._backoff.too_early(("remove", device), now)]
            spare = [ours[device] for device in self._idle if device in ours]
        changing, missing, room = _by_card(going), _by_card(lost), _by_card(spare)
        begun = [
            self._queue.begin(
                card,
                f"changing the vGPUs of {card}",
                partial(self._change, changing.get(card, ()), missing.get(card, ()), room.get(card, ())),
                LATE_SECONDS,
            )
            for card in dict.fromkeys([*changing, *missing])
        ]
        if self._granted.cdi is not None:
            existing: dict[str, dict[str, Sequence[str]]] = {}
            for name, device in self._existing:
                if device in nodes:
                    existing.setdefault(name, {})[device] = nodes[device]
            self._writer.try_to(lambda: self._granted.replace(existing, kept))
        return tasks_of(begun)

    # In a thread, one for each card

    def _ensure_all(self, targets: Sequence[Target]) -> tuple[list[Target], dict[str, tuple[str, ...]]]:
        """Create missing vGPUs; returns the created ones, and the device nodes of all."""
        made: list[Target] = []
        try:
            for target in targets:
                if self._ensure(target):
                    made.append(target)
            return made, {target.vgpu.device: self._nodes(target) for target in targets}
        except LauncherkitError:
            self._remove_all(made)
            raise

    def _nodes(self, target: Target) -> tuple[str, ...]:
        return self._writer.maker.nodes(target.vgpu.address, iommufd=self._kind.iommufd)

    def _remove_all(self, targets: Sequence[Target]) -> None:
        for target in targets:
            with suppress(LauncherkitError):  # reported; what is left is removed after the grace time
                self._kind.remove(target)

    def _ensure(self, target: Target) -> bool:
        try:
            made = self._kind.ensure(target)
        except StepFailed as error:
            self._backoff.failed(target.key, self._clock(), error.message)
            raise
        self._backoff.succeeded(target.key)
        return made

    def _remove(self, target: Target) -> bool:
        """Remove a vGPU unless it is pausing after a failure; returns whether it was removed."""
        key = "remove", target.vgpu.device
        if self._backoff.too_early(key, self._clock()):
            return False
        try:
            removed = self._kind.remove(target)
        except LauncherkitError as error:
            self._writer.report(error)
            if error.code == VGPU_NOT_REMOVED.code:
                self._backoff.failed(key, self._clock())
            return False
        self._backoff.succeeded(key)
        return removed

    def _change(self, going: Iterable[Target], missing: Iterable[Target], spare: Sequence[Target]) -> bool:
        """Remove some vGPUs and create others. If there is no room, unused ones are removed before their grace time."""
        changed = False
        for target in going:
            changed |= self._remove(target)
            if self._backoff.too_early(("remove", target.vgpu.device), self._clock()):
                break  # a driver that can't remove one can't remove the next either
        for target in missing:
            removals = [partial(self._remove, other) for other in spare if other.vgpu.device != target.vgpu.device]
            with suppress(LauncherkitError):  # reported; a later call tries again
                changed |= with_room(partial(self._ensure, target), removals)
        return changed


def _by_card(targets: Iterable[Target]) -> dict[str, list[Target]]:
    by_card: dict[str, list[Target]] = {}
    for target in targets:
        by_card.setdefault(target.card, []).append(target)
    return by_card
