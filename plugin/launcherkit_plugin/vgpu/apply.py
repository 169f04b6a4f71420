"""Brings a layout about (G5): all at once for people, a round at a time in the daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial

from launcherkit.errors import Collector, LauncherkitError
from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit_plugin.host.guarded import Guarded
from launcherkit_plugin.model.backoff import Backoff
from launcherkit_plugin.model.config import LayoutEntry
from launcherkit_plugin.model.device import Usage
from launcherkit_plugin.model.errors import NoVgpuRoom, VgpuInUse, VgpuNotMade, VgpuNotRemoved
from launcherkit_plugin.vgpu.cards import Instance, may_be_vgpu
from launcherkit_plugin.vgpu.layout import MayGo, Step, difference, next_round, wishes
from launcherkit_plugin.vgpu.lifecycle import kept_devices
from launcherkit_plugin.vgpu.mdev_slots import slot_of
from launcherkit_plugin.vgpu.pool import FIRST_PAUSE_SECONDS, LATE_SECONDS, LONGEST_PAUSE_SECONDS, result_of
from launcherkit_plugin.vgpu.writer import Changes


def take(step: Step, changes: Changes) -> bool:
    """Do one step. True where something was changed.

    Raises:
        LauncherkitError: see `Changes`.
    """
    return changes.create(step.instance) if step.action == "create" else changes.remove(step.instance)


def apply_layout(
    entries: Sequence[LayoutEntry],
    spread: Sequence[str],
    look: Callable[[], HostFacts],
    changes: Changes,
    may_go: MayGo,
    done: Callable[[Step], None],
) -> None:
    """Bring a host to a layout, or refuse before the first step.

    Args:
        entries: the layout.
        spread: types for the cards that it doesn't name.
        look: reads the host.
        changes: makes and removes.
        may_go: why a vGPU must stay.
        done: called with each step that was taken.

    Raises:
        BadLayout: a card or type isn't there.
        VgpuInUse: what is in use would have to go; nothing has been changed.
        NoVgpuRoom: it can't be brought about; the message says how far it came.
        LauncherkitError: a step failed.
    """
    host = look()
    check_layout(entries, spread, host, may_go)
    while True:
        wanted, _ = wishes(entries, spread, host)
        steps = next_round(wanted, host, may_go).steps
        changed = False
        for step in steps:
            with suppress(NoVgpuRoom):  # what there is room for shows when it is read again
                changed |= take(step, changes)
                done(step)
        host = look()
        if not changed:
            break
    left = difference(wishes(entries, spread, host)[0], host)
    if left:
        raise NoVgpuRoom(
            f"the layout can't be brought about: {'; '.join(left)}",
            "The cards have no room for it beside each other: see the driver's rules for mixing types.",
        )


def check_layout(
    entries: Sequence[LayoutEntry], spread: Sequence[str], host: HostFacts, may_go: MayGo
) -> tuple[Step, ...]:
    """The first steps to a layout.

    Raises:
        BadLayout: a card or type isn't there.
        VgpuInUse: what is in use would have to go.
    """
    wanted, unknown = wishes(entries, spread, host)
    errors = Collector()
    for error in unknown:
        errors.add(error)
    coming = next_round(wanted, host, may_go)
    for why in coming.blocked:
        errors.add(VgpuInUse(why, "Stop the VM that has it, or change the layout."))
    errors.raise_if_any()
    return coming.steps


class LayoutKeeper:
    """Keeps the layout of the configuration: a `launcherkit_plugin.devices.provider.Reconciler`.

    What pods have stays, and so does what isn't of our making; what was made for pods is their pools' business.
    """

    def __init__(
        self, entries: Sequence[LayoutEntry], spread: Sequence[str], changes: Changes, guarded: Guarded
    ) -> None:
        self._entries = tuple(entries)
        self._spread = tuple(spread)
        self._changes = changes
        self._guarded = guarded
        self._clock = changes.maker.clock
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)

    def wants(self, function: PciFunction) -> bool:
        """Whether details of a function have to be read."""
        return may_be_vgpu(function)

    def keeps(self, card: str, host: HostFacts) -> bool:
        """Whether a card is the layout's."""
        return any(wish.card.name == card for wish in wishes(self._entries, self._spread, host)[0])

    def reconcile(self, host: HostFacts, usage: Usage, now: float) -> list[asyncio.Task[bool]]:
        """See `Reconciler.reconcile`. Does nothing while usage isn't known: what a pod needs comes before a layout."""
        if not usage.known:
            return []
        wanted, unknown = wishes(self._entries, self._spread, host)
        for error in unknown:
            self._changes.tell(error)
        steps: dict[str, list[Step]] = {}
        for step in next_round(wanted, host, partial(_may_go, held=kept_devices(usage))).steps:
            if not self._backoff.rests((step.action, step.instance.device), now):
                steps.setdefault(step.card, []).append(step)
        begun = [
            self._guarded.begin(card, f"bringing {card} to its layout", partial(self._take, todo), LATE_SECONDS)
            for card, todo in steps.items()
        ]
        return [asyncio.create_task(result_of(future)) for future in begun if future is not None]

    def _take(self, steps: Sequence[Step]) -> bool:
        """In a thread. One that fails ends the round: the next ones would fail like it."""
        changed = False
        for step in steps:
            key = step.action, step.instance.device
            try:
                changed |= take(step, self._changes)
            except LauncherkitError as error:
                self._changes.tell(error)
                if isinstance(error, VgpuNotMade | VgpuNotRemoved):
                    self._backoff.failed(key, self._clock())
                    break
            else:
                self._backoff.succeeded(key)
        return changed


def _may_go(instance: Instance, held: Collection[str]) -> str | None:
    if instance.device in held:
        return f"{instance.what} on {instance.parent}, {instance.device}, is a pod's"
    if not instance.named or not (instance.vf or _is_for_layout(instance)):
        return f"{instance.what} on {instance.parent}, {instance.device}, is not the layout's"
    return None


def _is_for_layout(instance: Instance) -> bool:
    slot = slot_of(instance.device, instance.parent, instance.type_id)
    return slot is not None and slot.purpose == "layout"
