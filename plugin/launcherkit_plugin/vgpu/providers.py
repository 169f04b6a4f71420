"""The providers and reconcilers for vGPUs: the pools of a configuration, and the keeper of its layout (G5)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from launcherkit.errors import LauncherkitError
from launcherkit.model.host import HostFacts, PciFunction
from launcherkit_plugin.devices.cdi import GrantedNodes
from launcherkit_plugin.devices.provider import Provider, Reconciler
from launcherkit_plugin.host.work_queue import WorkQueue, tasks_of
from launcherkit_plugin.model.backoff import Backoff
from launcherkit_plugin.model.config import LayoutEntry, VgpuConfig
from launcherkit_plugin.model.device import Usage
from launcherkit_plugin.model.errors import VGPU_NOT_MADE, VGPU_NOT_REMOVED
from launcherkit_plugin.vgpu.cards import Instance, NameOf, may_be_vgpu
from launcherkit_plugin.vgpu.layout import Step, do_step, next_round, type_counts
from launcherkit_plugin.vgpu.lifecycle import Stopped
from launcherkit_plugin.vgpu.mdev import MdevKind
from launcherkit_plugin.vgpu.mdev_slots import made_for
from launcherkit_plugin.vgpu.pool import (
    FIRST_PAUSE_SECONDS,
    LATE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Pool,
    VgpuKind,
)
from launcherkit_plugin.vgpu.vf import VfKind
from launcherkit_plugin.vgpu.writer import VgpuWriter

if TYPE_CHECKING:
    from launcherkit_plugin.vgpu.gpu_instances import MigKeeper


class LayoutKeeper:
    """Maintains the layout of the configuration: a `launcherkit_plugin.devices.provider.Reconciler`.

    It never removes vGPUs that pods have, that others created, or that were created for pods; the pools remove these.
    """

    def __init__(
        self,
        entries: Sequence[LayoutEntry],
        spread: Sequence[str],
        writer: VgpuWriter,
        queue: WorkQueue,
        mig: MigKeeper | None = None,
    ) -> None:
        self._entries = tuple(entries)
        self._mig = mig
        self._spread = tuple(spread)
        self._writer = writer
        self._queue = queue
        self._clock = writer.maker.clock
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)

    def wants(self, function: PciFunction) -> bool:
        """See `Reconciler.wants`."""
        return may_be_vgpu(function)

    def keeps(self, card: str, host: HostFacts) -> bool:
        """Whether a card belongs to the layout."""
        return any(asked.card.name == card for asked in type_counts(self._entries, self._spread, host)[0])

    def reconcile(self, host: HostFacts, usage: Usage, now: float) -> list[asyncio.Task[bool]]:
        """See `Reconciler.reconcile`. Does nothing while usage is unknown: pods come before the layout."""
        if not usage.known:
            return []
        entries = [each for each in self._entries if self._mig is None or not self._mig.is_unready(each, host)]
        counts, unknown = type_counts(entries, self._spread, host)
        for error in unknown:
            self._writer.report(error)
        steps: dict[str, list[Step]] = {}
        for step in next_round(counts, host, partial(_why_it_stays, held=usage.kept_ids)).steps:
            if not self._backoff.too_early((step.action, step.instance.device), now):
                steps.setdefault(step.card, []).append(step)
        begun = [
            self._queue.begin(card, f"bringing {card} to its layout", partial(self._do_steps, todo), LATE_SECONDS)
            for card, todo in steps.items()
        ]
        return tasks_of(begun)

    def _do_steps(self, steps: Sequence[Step]) -> bool:
        """Do steps, in a thread. The first that the driver refuses ends the round: the others would fail too."""
        changed = False
        for step in steps:
            key = step.action, step.instance.device
            try:
                changed |= do_step(step, self._writer)
            except LauncherkitError as error:
                self._writer.report(error)
                if error.code in (VGPU_NOT_MADE.code, VGPU_NOT_REMOVED.code):
                    self._backoff.failed(key, self._clock())
                    break
            else:
                self._backoff.succeeded(key)
        return changed


def _why_it_stays(instance: Instance, held: Collection[str]) -> str | None:
    if instance.device in held:
        return f"{instance.type_name} on {instance.parent}, {instance.device}, is a pod's"
    if not instance.named or not (instance.vf or made_for(instance) == "layout"):
        return f"{instance.type_name} on {instance.parent}, {instance.device}, is not the layout's"
    return None


def vgpus_of(  # noqa: PLR0913  # the parts of a node, each by name
    config: VgpuConfig,
    name_of: NameOf,
    writer: VgpuWriter,
    queue: WorkQueue,
    *,
    stopped: Stopped | None = None,
    mdev_nodes: GrantedNodes | None = None,
    vf_nodes: GrantedNodes | None = None,
    iommufd: bool = False,
    mig: MigKeeper | None = None,
) -> tuple[tuple[Provider, ...], tuple[Reconciler, ...]]:
    """The providers and reconcilers for the rules of a configuration. GPU instances come first, the layout last.

    Args:
        config: the settings for vGPUs.
        name_of: returns the names of resources for rules without a name.
        writer: creates and removes vGPUs.
        queue: runs work that may hang.
        stopped: the devices of pods whose VM has ended, as reported by the node hook.
        mdev_nodes, vf_nodes: how containers get the device nodes of mdevs and of VFs; None: from the kubelet.
        iommufd: containers get VFIO's character devices of VFs even if there are nodes of groups (V2).
        mig: keeps GPU instances; None: none are declared.
    """
    keeper = LayoutKeeper(config.layout, config.spread, writer, queue, mig)
    kinds: list[tuple[VgpuKind, GrantedNodes | None]] = []
    if config.mdevs:
        kinds.append((MdevKind(config.mdevs, name_of, writer), mdev_nodes))
    if config.vfs:
        kinds.append((VfKind(config.vfs, name_of, writer, kept=keeper.keeps, iommufd=iommufd), vf_nodes))
    pools = tuple(
        Pool(kind, writer, queue, grace_seconds=config.grace_seconds, stopped=stopped, nodes=nodes, mig=mig)
        for kind, nodes in kinds
    )
    first: tuple[Reconciler, ...] = () if mig is None else (mig,)
    return pools, (*first, *pools, *((keeper,) if config.layout or config.spread else ()))
