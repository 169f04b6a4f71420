"""The providers of vGPUs that a configuration asks for."""

from __future__ import annotations

from typing import NamedTuple

from launcherkit_plugin.devices.provider import Provider
from launcherkit_plugin.model.config import VgpuConfig
from launcherkit_plugin.vgpu.apply import LayoutKeeper
from launcherkit_plugin.vgpu.granted import Nodes
from launcherkit_plugin.vgpu.mdev import MdevProvider
from launcherkit_plugin.vgpu.rules import NameOf
from launcherkit_plugin.vgpu.stopped import Stopped
from launcherkit_plugin.vgpu.vf import VgpuVfProvider
from launcherkit_plugin.vgpu.writer import Changes


class Handed(NamedTuple):
    """How containers get the nodes of mdevs and of VFs."""

    mdevs: Nodes
    vfs: Nodes
    iommufd: bool = False


def vgpu_providers(
    config: VgpuConfig,
    name_of: NameOf,
    changes: Changes,
    *,
    handed: Handed | None = None,
    stopped: Stopped | None = None,
) -> tuple[Provider, ...]:
    """Those for what there are rules for; none costs anything. What pods need comes first, the layout last.

    Args:
        config: of vGPUs.
        name_of: names the resources of rules that don't.
        changes: makes and removes.
        handed: how containers get device nodes.
        stopped: whose VM has ended, where a node hook tells.
    """
    keeper = LayoutKeeper(config.layout, config.spread, changes)
    nodes = handed or Handed(Nodes(), Nodes())
    found: list[Provider] = []
    if config.mdevs:
        found.append(
            MdevProvider(
                config.mdevs,
                name_of,
                changes,
                grace_seconds=config.grace_seconds,
                stopped=stopped,
                nodes=nodes.mdevs,
            )
        )
    if config.vfs:
        found.append(
            VgpuVfProvider(
                config.vfs,
                name_of,
                changes,
                grace_seconds=config.grace_seconds,
                kept=keeper.keeps,
                stopped=stopped,
                nodes=nodes.vfs,
                iommufd=nodes.iommufd,
            )
        )
    if config.layout or config.spread:
        found.append(keeper)
    return tuple(found)
