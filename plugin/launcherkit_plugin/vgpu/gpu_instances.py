"""Makes the GPU instances (MIG) that a layout declares for cards, and gives them back (G6).

What is done is recorded before. A change that fails is undone, in the same process or the next one. The state of a card
is read before each change and after it, never assumed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from launcherkit.errors import LauncherkitError
from launcherkit.host.query import read_mdev
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciFunction
from launcherkit_plugin.host.work_queue import WorkQueue, tasks_of
from launcherkit_plugin.model.backoff import Backoff
from launcherkit_plugin.model.config import GpuInstances, LayoutEntry
from launcherkit_plugin.model.device import Usage
from launcherkit_plugin.model.errors import BAD_LAYOUT, GPU_INSTANCES_NOT_CHANGED, GPU_INSTANCES_REFUSED
from launcherkit_plugin.vgpu.cards import VgpuCard, cards, may_be_vgpu
from launcherkit_plugin.vgpu.layout import cards_of
from launcherkit_plugin.vgpu.maker import Maker
from launcherkit_plugin.vgpu.mig_plan import MigPlan, plan
from launcherkit_plugin.vgpu.mig_records import Made, MadeRecords
from launcherkit_plugin.vgpu.nvml import CALL_SECONDS, MigCard, Nvml, Placed
from launcherkit_plugin.vgpu.pool import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from launcherkit_plugin.vgpu.writer import VgpuWriter

LOOK_SECONDS = 60.0
"""How long what was found on a card is believed, where nothing is to be changed: each look starts a process."""


class MigMaker:
    """Brings one card in each call to its GPU instances. Calls block.

    Args:
        nvml: makes the changes.
        records: of what was made.
        maker: reads the vGPUs of a card.
    """

    def __init__(self, nvml: Nvml, records: MadeRecords, maker: Maker) -> None:
        self.nvml = nvml
        self.records = records
        self._maker = maker

    @classmethod
    def in_folder(cls, folder: str, boot: str, maker: Maker) -> MigMaker:
        """One whose records and lock are in a folder; ``boot`` is the ID of this boot."""
        return cls(Nvml(os.path.join(folder, "lock")), MadeRecords(folder, boot), maker)

    def plan(self, name: str, declared: Sequence[GpuInstances]) -> tuple[MigPlan, MigCard]:
        """What `bring` would do, and the state of the card; raises as `bring`."""
        state = self.nvml.read(name)
        if not state.enabled:
            raise GPU_INSTANCES_REFUSED(f"{name} is not in MIG mode", "Without --dry-run it is set.", device=name)
        return plan(name, state, declared, self.records.read().get(name, Made()).instances & state.instances), state

    def missing(self, name: str, declared: Sequence[GpuInstances]) -> list[str]:
        """A line if a card doesn't have its GPU instances."""
        try:
            todo, state = self.plan(name, declared)
        except LauncherkitError as error:
            return [error.message]
        steps = ", ".join(f"{verb} {state.text(each)}" for verb, each in todo.steps)
        return [f"{name}: GPU instances: {state.summary or 'none'} there; to {steps}"] if steps else []

    def bring(self, card: VgpuCard, declared: Sequence[GpuInstances], held: str | None) -> tuple[bool, MigCard]:
        """Make the missing GPU instances of a card, and destroy those of ours that are too many.

        Args:
            card: with its VFs or parents.
            declared: empty: what was made is given back.
            held: who has the card or a vGPU of it; None if nobody.

        Returns:
            Whether something was changed, and the state of the card.

        Raises:
            BAD_LAYOUT: the card has no such profile.
            GPU_INSTANCES_REFUSED: they don't fit, the card is in use, or its MIG mode is not active.
            NO_NVML, GPU_INSTANCES_NOT_CHANGED, UnwritableFile: a step failed; it is as it was before, if possible.
        """
        name, state = card.name, self.nvml.read(card.name)
        made = self.records.read().get(name, Made())
        before = state
        if declared and not state.enabled:
            state = self._enable(card, state, made, held)
            made = made._replace(mode=True)
        ours = made.instances & state.instances
        todo = plan(name, state, declared, ours)
        if todo.remove:
            self._refuse_used(card, held, f"to destroy its GPU instances: {', '.join(map(state.text, todo.remove))}")
        target = (ours - set(todo.remove)) | set(todo.create)
        if todo.remove or todo.create:
            made = made._replace(instances=ours | target)
            self.records.write(name, made)
            try:
                state = self._change(name, state, todo.remove, todo.create, target)
            except LauncherkitError:
                with suppress(LauncherkitError):  # else the next call, or the next process, does it
                    self._undo(card, held, made, frozenset(todo.create))
                raise
        if not declared and made.mode and (state.enabled or state.pending) and not state.instances:
            self._refuse_used(card, held, "to end its MIG mode")
            self.nvml.set_mode(name, enabled=False)
            state = self.nvml.read(name)
        after = Made(target, target, made.mode and bool(declared or state.instances))
        if after != self.records.read().get(name, Made()):
            self.records.write(name, after)
        return state != before, state

    def _enable(self, card: VgpuCard, state: MigCard, made: Made, held: str | None) -> MigCard:
        if state.enabled is None:
            raise GPU_INSTANCES_REFUSED(f"{card.name} has no MIG mode", "Leave out `gpuInstances`.", device=card.name)
        if not state.pending:
            self._refuse_used(card, held, "to set its MIG mode, for which the driver may reset it")
            self.records.write(card.name, made._replace(mode=True))
            try:
                self.nvml.set_mode(card.name, enabled=True)
            except LauncherkitError:
                with suppress(LauncherkitError):  # what isn't known isn't ended: the mode may be ours
                    state = self.nvml.read(card.name)
                    if not (state.enabled or state.pending):
                        self.records.write(card.name, made._replace(mode=False))
                raise
            state = self.nvml.read(card.name)
        if not state.enabled:
            raise GPU_INSTANCES_REFUSED(
                f"{card.name}: MIG mode is {'pending until the card is reset' if state.pending else 'still off'}",
                "launcherkit doesn't reset it: once nothing uses the card, `nvidia-smi --gpu-reset -i "
                f"{card.name}` on the node does, or a reboot.",
                device=card.name,
            )
        return state

    def _change(
        self, name: str, state: MigCard, remove: Sequence[Placed], create: Sequence[Placed], target: frozenset[Placed]
    ) -> MigCard:
        for instance in remove:
            self._destroy(name, state, instance)
        for instance in create:
            self.nvml.create(name, instance)
        after = self.nvml.read(name)
        wrong = (target - after.instances) | (after.instances & set(remove))
        if wrong:
            raise GPU_INSTANCES_NOT_CHANGED(
                f"{name}: NVML reported success, and these GPU instances are not as asked for: "
                f"{', '.join(map(after.text, sorted(wrong)))}",
                "`nvidia-smi mig -lgi` on the node shows what there is.",
                device=name,
            )
        return after

    def _undo(self, card: VgpuCard, held: str | None, made: Made, new: frozenset[Placed]) -> None:
        """Go back to the last layout that was reached. What others made stays, and what a killed process has left is in
        use perhaps, unlike what is new.
        """
        name, state = card.name, self.nvml.read(card.name)
        gone = (made.instances - made.whole) & state.instances
        if held or self._vgpus(card):
            gone &= new
        for instance in sorted(gone):
            self._destroy(name, state, instance)
        for instance in sorted(made.whole - state.instances):
            self.nvml.create(name, instance)
        self.records.write(name, made._replace(instances=(made.instances & state.instances - gone) | made.whole))

    def _destroy(self, name: str, state: MigCard, instance: Placed) -> None:
        most = next((each.most for each in state.profiles if each.id == instance.profile), 1)
        self.nvml.destroy(name, instance, most)

    def _refuse_used(self, card: VgpuCard, held: str | None, purpose: str) -> None:
        reason = held or self._vgpus(card)
        if reason is not None:
            raise GPU_INSTANCES_REFUSED(
                f"{card.name} is in use, {purpose}: {reason}",
                "They are changed once no vGPU is left on the card: stop its VMs, or take its vGPUs out of the layout.",
                device=card.name,
            )

    def _vgpus(self, card: VgpuCard) -> str | None:
        """The vGPUs that a card has now; None if it has none."""
        parents = {parent.name for parent in card.parents}
        with self._maker.files.tree() as tree:
            mdevs = [(uuid, read_mdev(tree, uuid)) for uuid in tree.names("sys/bus/mdev/devices")]
        vgpus = [f"mdev {uuid}" for uuid, mdev in mdevs if mdev is not None and mdev.parent in parents]
        for vf in card.vfs:
            state = self._maker.vf(vf)
            if state is not None and state.current_type:
                vgpus.append(f"{vf} with vGPU type {state.current_type}")
        return f"it has {', '.join(vgpus)}" if vgpus else None


def wanted_on(entries: Sequence[LayoutEntry], host: HostFacts) -> dict[str, tuple[VgpuCard, tuple[GpuInstances, ...]]]:
    """The cards for which a layout declares GPU instances, by name; the first entry that names a card applies."""
    all_cards = cards(host)
    declared: dict[str, tuple[VgpuCard, tuple[GpuInstances, ...]]] = {}
    for entry in entries:
        for card in cards_of(entry.parent, all_cards) if entry.gpu_instances else ():
            declared.setdefault(card.name, (card, entry.gpu_instances))
    return declared


def holder_on(card: VgpuCard, usage: Usage) -> str | None:
    """Which pod has a card or a VF of it; None if none has."""
    names = {card.name, *map(str, card.vfs), *(parent.name for parent in card.parents)}
    for devices in usage.kept.values():
        for device, holder in devices.items():
            if device in names:
                return f"{holder} has {device}"
    return None


class MigKeeper:
    """Keeps the GPU instances of the configuration: a `launcherkit_plugin.devices.provider.Reconciler`."""

    def __init__(self, entries: Sequence[LayoutEntry], maker: MigMaker, writer: VgpuWriter, queue: WorkQueue) -> None:
        self._entries = tuple(entries)
        self._maker = maker
        self._writer = writer
        self._queue = queue
        self._clock = writer.maker.clock
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._looked: dict[str, float] = {}
        self._found: dict[str, tuple[str, str | None]] = {}
        """By card: its GPU instances in words, and why it doesn't have those of the layout."""

    def wants(self, function: PciFunction) -> bool:
        """See `Reconciler.wants`."""
        return may_be_vgpu(function)

    def described(self, card: str) -> str:
        """See `MigState.described`: as they were found last."""
        summary = self._found.get(card, ("", None))[0]
        return f", GPU instances: {summary}" if summary else ""

    def problem(self, card: str) -> str | None:
        """See `MigState.problem`."""
        return self._found.get(card, ("", None))[1]

    def is_unready(self, entry: LayoutEntry, host: HostFacts) -> bool:
        """Whether GPU instances of an entry may be missing. The driver lists no types for which there is none."""
        meant = cards_of(entry.parent, cards(host)) if entry.gpu_instances else ()
        return any(self._found.get(card.name, ("", ""))[1] is not None for card in meant)

    def look_at(self, host: HostFacts) -> None:
        """Only read the cards; blocks. For commands."""
        for name in wanted_on(self._entries, host):
            try:
                self._found[name] = self._maker.nvml.read(name).summary, None
            except LauncherkitError as error:
                self._found[name] = "", error.message
                self._writer.report(error)

    def reconcile(self, host: HostFacts, usage: Usage, now: float) -> list[asyncio.Task[bool]]:
        """See `Reconciler.reconcile`. Does nothing while usage is unknown."""
        declared = wanted_on(self._entries, host)
        recorded = self._recorded()
        begun = []
        for name in sorted({*declared, *recorded}) if usage.known else ():
            card, instances = declared.get(name) or (_card(name, host), ())
            if self._backoff.too_early(name, now) or now < self._looked.get(name, now):
                continue
            work = partial(self._bring, card, instances, holder_on(card, usage))
            doing = f"bringing the GPU instances of {name} to the layout"
            begun.append(self._queue.begin(name, doing, work, 2 * CALL_SECONDS))
        return tasks_of(begun)

    def _recorded(self) -> Mapping[str, Made]:
        try:
            return self._maker.records.read()
        except LauncherkitError as error:
            self._writer.report(error)
            return {}

    def _bring(self, card: VgpuCard, declared: Sequence[GpuInstances], held: str | None) -> bool:
        """In a thread. A failed change is tried again after a pause; a refused one, once it may be possible."""
        before, name = self._found.get(card.name), card.name
        try:
            changed, state = self._maker.bring(card, declared, held)
        except LauncherkitError as error:
            self._writer.report(error)
            self._found[name] = "" if before is None else before[0], error.message
            if error.code in (GPU_INSTANCES_REFUSED.code, BAD_LAYOUT.code):
                self._looked[name] = self._clock() + LOOK_SECONDS
            else:
                self._backoff.failed(name, self._clock(), error.message)
            return False
        self._backoff.succeeded(name)
        self._looked[name] = self._clock() + LOOK_SECONDS
        self._found[name] = state.summary, None
        if changed:
            self._writer.happened("GpuInstancesChanged", f"{name} has GPU instances: {state.summary or 'none'}")
        return changed or before != self._found[name]


def _card(name: str, host: HostFacts) -> VgpuCard:
    """A card by its address; one that has no vGPUs any more is given back without."""
    return next((card for card in cards(host) if card.name == name), VgpuCard(name, PciAddress.parse(name), (), ()))
