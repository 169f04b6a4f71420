"""The pools of vGPUs that a configuration asks for, and what keeps its layout."""

from __future__ import annotations

from typing import NamedTuple

from launcherkit_plugin.devices.cdi import GrantedNodes
from launcherkit_plugin.devices.provider import Provider, Reconciler
from launcherkit_plugin.host.guarded import Guarded
from launcherkit_plugin.model.config import VgpuConfig
from launcherkit_plugin.vgpu.apply import LayoutKeeper
from launcherkit_plugin.vgpu.cards import NameOf
from launcherkit_plugin.vgpu.lifecycle import Stopped
from launcherkit_plugin.vgpu.mdev import MdevKind
from launcherkit_plugin.vgpu.pool import Pool, VgpuKind
from launcherkit_plugin.vgpu.vf import VfKind
from launcherkit_plugin.vgpu.writer import Changes


class Handed(NamedTuple):
    """How containers get the nodes of mdevs and of VFs."""

    mdevs: GrantedNodes
    vfs: GrantedNodes
    iommufd: bool = False


class VgpuParts(NamedTuple):
    """What vGPUs need of the daemon."""

    providers: tuple[Provider, ...]
    reconcilers: tuple[Reconciler, ...]


def vgpu_parts(
    config: VgpuConfig,
    name_of: NameOf,
    changes: Changes,
    guarded: Guarded,
    *,
    handed: Handed | None = None,
    stopped: Stopped | None = None,
) -> VgpuParts:
    """Those for what there are rules for; none costs anything. What pods need comes first, the layout last.

    Args:
        config: of vGPUs.
        name_of: names the resources of rules that don't.
        changes: makes and removes.
        guarded: does what may hang.
        handed: how containers get device nodes.
        stopped: whose VM has ended, where a node hook tells.
    """
    keeper = LayoutKeeper(config.layout, config.spread, changes, guarded)
    mdev_nodes, vf_nodes, iommufd = handed or Handed(GrantedNodes(), GrantedNodes())
    kinds: list[tuple[VgpuKind, GrantedNodes]] = []
    if config.mdevs:
        kinds.append((MdevKind(config.mdevs, name_of, changes), mdev_nodes))
    if config.vfs:
        kinds.append((VfKind(config.vfs, name_of, changes, kept=keeper.keeps, iommufd=iommufd), vf_nodes))
    pools = tuple(
        Pool(kind, changes, guarded, grace_seconds=config.grace_seconds, stopped=stopped, nodes=nodes)
        for kind, nodes in kinds
    )
    return VgpuParts(pools, (*pools, keeper) if config.layout or config.spread else pools)
