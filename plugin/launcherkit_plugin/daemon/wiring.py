"""What a configuration amounts to on a node: its providers, put together."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit.sources.host import Host
from launcherkit_plugin.daemon.loop import Setup
from launcherkit_plugin.devices.cdi import CdiFile, GrantedNodes
from launcherkit_plugin.devices.names import Namer
from launcherkit_plugin.devices.pci import PciProvider
from launcherkit_plugin.devices.selectors import compile_rules, unmet_rules, whatever_driver
from launcherkit_plugin.host.guarded import Guarded
from launcherkit_plugin.host.processes import read_open_nodes
from launcherkit_plugin.model.config import Config, PciRule, VgpuConfig
from launcherkit_plugin.telemetry.metrics import Metrics
from launcherkit_plugin.telemetry.reporter import Log, Recorder, Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped

if TYPE_CHECKING:
    from launcherkit_plugin.binding.reconciler import BindingReconciler
    from launcherkit_plugin.vgpu.providers import VgpuParts

REMOVAL_SECONDS = 2.0
"""For how long a vGPU that was told to go is watched. The next look sees it, too, and a pod may want that card."""


class ProviderParts(NamedTuple):
    """What providers are made of, beside the configuration."""

    host: Host
    root: str
    """Where ``sys/`` and ``dev/`` of that host are."""
    dev_root: str
    """What stands before the paths of device nodes on the kubelet's side."""
    clock: Callable[[], float]
    """Seconds, monotonic."""
    sleep: Callable[[float], None]
    """Blocks; for threads."""
    log: Log
    metrics: Metrics
    events: Recorder
    stopped: Stopped
    guarded: Guarded
    """Does what may hang; the same after a reload, so that what hangs is known."""
    ledger: str
    """Folder of what was bound to what before."""
    proc: str
    """The host's proc file system."""


def assemble(config: Config, parts: ProviderParts) -> Setup:
    """The providers that a configuration asks for."""
    namer = Namer(config)
    match = compile_rules(config.pci)
    binder = _binder(config, match, parts)
    pci = PciProvider(
        match,
        namer.function,
        parts.host,
        root=parts.root,
        nodes=config.nodes,
        granted=_granted(config, "pci", parts),
        binder=binder,
        guarded=parts.guarded,
        may_match=compile_rules(whatever_driver(config.pci)),
    )

    def learn(facts: HostFacts) -> None:
        namer.learn([function for function in facts.functions.values() if pci.wants(function)])
        for text in unmet_rules(config.pci, facts, pci.primaries(facts)):
            parts.log("warning", text)

    binding = () if binder is None else (binder,)
    if _no_vgpus(config.vgpu):
        return Setup((pci,), (*binding, pci), False, config.rescan_seconds, learn, namer.check)
    vgpus = _vgpu_parts(config, namer, parts)
    reconcilers = (*binding, pci, *vgpus.reconcilers)
    return Setup((pci, *vgpus.providers), reconcilers, True, config.rescan_seconds, learn, namer.check)


def _no_vgpus(vgpu: VgpuConfig) -> bool:
    return not (vgpu.mdevs or vgpu.vfs or vgpu.layout or vgpu.spread)


def _vgpu_parts(config: Config, namer: Namer, parts: ProviderParts) -> VgpuParts:
    from launcherkit_plugin.host.files import DiskFiles
    from launcherkit_plugin.vgpu.maker import Maker
    from launcherkit_plugin.vgpu.providers import Handed, vgpu_parts
    from launcherkit_plugin.vgpu.writer import Changes

    changes = Changes(
        Maker(DiskFiles(parts.root), parts.clock, parts.sleep, removal_patience=REMOVAL_SECONDS),
        lambda nodes: read_open_nodes(parts.proc).is_open(nodes),
        log=parts.log,
        metrics=parts.metrics,
        recorder=parts.events,
    )
    handed = Handed(_granted(config, "mdev", parts), _granted(config, "vf", parts), iommufd=config.nodes == "cdev")
    return vgpu_parts(config.vgpu, namer.vgpu, changes, parts.guarded, handed=handed, stopped=parts.stopped)


def _granted(config: Config, part: str, parts: ProviderParts) -> GrantedNodes:
    if config.cdi is None:
        return GrantedNodes()
    return GrantedNodes(CdiFile(config.cdi.folder, part, parts.dev_root), cdi_only=config.cdi.only)


def _binder(
    config: Config, match: Callable[[PciFunction], PciRule | None], parts: ProviderParts
) -> BindingReconciler | None:
    """Where something is to be bound, or what an earlier configuration has bound is to be given back."""
    binds = any(rule.bind for rule in config.pci)
    if not binds and not _has_records(parts.ledger):
        return None
    from launcherkit_plugin.binding.reconciler import binder_of

    return binder_of(
        match if binds else _no_rule,
        parts.host,
        root=parts.root,
        proc=parts.proc,
        ledger=parts.ledger,
        guarded=parts.guarded,
        reporter=Reporter(parts.log, parts.events),
        metrics=parts.metrics,
    )


def _has_records(ledger: str) -> bool:
    try:
        return any(name.endswith(".json") for name in os.listdir(ledger))
    except OSError:
        return False


def _no_rule(_: PciFunction) -> None:
    """Nothing is to be bound; thousands of functions need not be matched to find that out."""
