"""Builds what a configuration needs on a node: its providers and reconcilers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit.model.value import NamedTuple
from launcherkit.sources.host import Host
from launcherkit_plugin.devices.cdi import CdiFiles, GrantedNodes, check_kinds
from launcherkit_plugin.devices.names import Namer
from launcherkit_plugin.devices.pci import PciProvider
from launcherkit_plugin.devices.provider import Provider, Reconciler
from launcherkit_plugin.devices.selectors import compile_rules, primaries, unmet_rules, whatever_driver
from launcherkit_plugin.host.guarded import Guarded
from launcherkit_plugin.host.processes import OpenNodes, boot_id, read_open_nodes
from launcherkit_plugin.model.config import CdiConfig, Config, DraConfig, PciRule
from launcherkit_plugin.model.device import Resource
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped

if TYPE_CHECKING:
    from launcherkit_plugin.binding.ledger import Ledger
    from launcherkit_plugin.binding.on_demand import OnDemandBinding
    from launcherkit_plugin.binding.reconciler import BindingReconciler
    from launcherkit_plugin.devices.container import ContainerProvider
    from launcherkit_plugin.host.worker import Worker

REMOVAL_SECONDS = 2.0
"""For how long a vGPU that is being removed is watched. The next look sees it too, and a pod may need that card."""


class Setup(NamedTuple):
    """What a configuration amounts to on this node."""

    providers: tuple[Provider, ...]
    reconcilers: tuple[Reconciler, ...]
    """In the order in which they have their turn at a card."""
    vgpu: bool
    """Whether mediated devices are looked at: vGPUs are devices, or keep containers from their cards (K10)."""
    rescan_seconds: float
    learn: Callable[[HostFacts], None]
    """Called once, with the first look. Raises a `LauncherkitError` where rules are in each other's way (D1)."""
    check: Callable[[Sequence[Resource]], None]
    """Raises a `LauncherkitError` where two resources are in each other's way (K6, D1), or CDI can't have a name."""
    dra: DraConfig | None = None
    """Of the DRA driver; None where there is to be none."""
    containers: ContainerProvider | None = None
    """The provider of cards for containers, where there are any."""

    def wants(self, function: PciFunction) -> bool:
        """Whether somebody needs the details of a function."""
        wanting: dict[Provider | Reconciler, None] = dict.fromkeys((*self.providers, *self.reconcilers))  # may be both
        return any(each.wants(function) for each in wanting)


class Wiring(NamedTuple):
    """What the daemon and the commands work with, whatever a configuration says; each package is passed part of it."""

    host: Host
    root: str
    """Where ``sys/`` and ``dev/`` of that host are."""
    reporter: Reporter
    guarded: Guarded
    """Does what may hang; the same after a reload, so that what hangs is known."""
    stopped: Stopped
    dev_root: str = ""
    """Prefix of the paths of device nodes where the kubelet sees them."""
    proc: str = "/proc"
    """The host's proc file system."""
    ledger: str = os.devnull
    """Folder of what was bound to what before; by default nothing is kept."""
    make_worker: Callable[[Sequence[int]], Worker] | None = None
    """Makes what does the steps of binding; None: a process is started each time."""

    def open_nodes(self, devices: Mapping[str, tuple[int, int]] = {}) -> OpenNodes:
        """Which processes of the host have VFIO's nodes, and these, open."""
        return read_open_nodes(self.proc, devices)

    def open_ledger(self) -> Ledger:
        """The records of what was bound, and of what it was bound to before."""
        from launcherkit_plugin.binding.ledger import Ledger

        return Ledger(self.ledger, boot_id(self.proc))


def assemble(config: Config, wiring: Wiring) -> Setup:
    """The providers that a configuration asks for."""
    namer = Namer(config)
    match, may_match = compile_rules(config.pci), compile_rules(whatever_driver(config.pci))
    binder, on_demand = _binder(config, match, wiring)
    pci = PciProvider(
        match,
        namer.function,
        wiring.host,
        root=wiring.root,
        nodes=config.nodes,
        granted=_granted(config, "pci", wiring),
        kata=_granted_to_kata(config, wiring),
        binder=binder,
        on_demand=on_demand,
        guarded=wiring.guarded,
        may_match=may_match,
        model_of=namer.text,
    )

    def learn(facts: HostFacts) -> None:
        namer.learn([function for at in facts.details if pci.wants(function := facts.functions[at])])
        for text in unmet_rules(config.pci, facts, primaries(match, facts)):
            wiring.reporter.log("warning", text)
        if config.dra is not None:
            from launcherkit_plugin.dra.disjoint import check_rules

            check_rules(config, facts)

    def check(resources: Sequence[Resource]) -> None:
        namer.check(resources)
        all_by_name = config.cdi is not None and config.cdi.kind == "resource"
        check_kinds(each for each in resources if each.use == "kata" or (all_by_name and each.use == "vm"))
        if config.dra is not None:
            from launcherkit_plugin.dra.disjoint import check_resources

            check_resources(resources)

    containers = _containers(config, match, may_match, namer, wiring, on_demand)
    pcis: tuple[PciProvider | ContainerProvider, ...] = (pci,) if containers is None else (pci, containers)
    dra = config.dra
    if dra is not None and config.cdi is not None:
        dra = dra._replace(cdi_folder=config.cdi.folder)
    binding = () if binder is None else (binder,)
    providers, reconcilers = _vgpus(config, namer, wiring)
    return Setup(
        (*pcis, *providers),
        (*binding, *pcis, *reconcilers),
        bool(reconcilers) or containers is not None,
        config.rescan_seconds,
        learn,
        check,
        dra,
        containers,
    )


def _containers(
    config: Config,
    match: Callable[[PciFunction], PciRule | None],
    may_match: Callable[[PciFunction], PciRule | None],
    namer: Namer,
    wiring: Wiring,
    on_demand: OnDemandBinding | None,
) -> ContainerProvider | None:
    if not any("container" in rule.uses for rule in config.pci):
        return None
    from launcherkit_plugin.devices.container import ContainerProvider
    from launcherkit_plugin.devices.container_card import read_card
    from launcherkit_plugin.devices.uuids import CardUuids

    return ContainerProvider(
        match,
        may_match,
        namer.function,
        wiring.host,
        read=partial(read_card, wiring.root, wiring.proc),
        uuids=CardUuids(
            None if on_demand is None or wiring.ledger == os.devnull else wiring.ledger, boot_id(wiring.proc)
        ),
        guarded=wiring.guarded,
        gives_back=on_demand,
        annotate=config.cdi is not None and config.cdi.annotations,
    )


def _vgpus(config: Config, namer: Namer, wiring: Wiring) -> tuple[tuple[Provider, ...], tuple[Reconciler, ...]]:
    vgpu = config.vgpu
    if not (vgpu.mdevs or vgpu.vfs or vgpu.layout or vgpu.spread):
        return (), ()
    from launcherkit_plugin.host.files import DiskFiles
    from launcherkit_plugin.vgpu.maker import Maker
    from launcherkit_plugin.vgpu.providers import vgpus_of
    from launcherkit_plugin.vgpu.writer import Changes

    changes = Changes(
        Maker(DiskFiles(wiring.root), time.monotonic, time.sleep, removal_patience=REMOVAL_SECONDS),
        lambda nodes: wiring.open_nodes().is_open(nodes),
        wiring.reporter.anew(),
    )
    return vgpus_of(
        vgpu,
        namer.vgpu,
        changes,
        wiring.guarded,
        stopped=wiring.stopped,
        mdev_nodes=_granted(config, "mdev", wiring),
        vf_nodes=_granted(config, "vf", wiring),
        iommufd=config.nodes == "cdev",
    )


def _granted(config: Config, part: str, wiring: Wiring) -> GrantedNodes:
    if config.cdi is None:
        return GrantedNodes()
    cdi = config.cdi
    used = {
        "pci": True,
        "kata": _has_kata(config),
        "mdev": bool(config.vgpu.mdevs),
        "vf": bool(config.vgpu.vfs),
    }
    unused = [each for each, is_used in used.items() if not is_used and part == "pci"]
    files = CdiFiles(cdi.folder, part, wiring.dev_root, by_resource=cdi.kind == "resource", unused=unused)
    return GrantedNodes(files, cdi_only=cdi.only, annotate=cdi.annotations, environment=cdi.environment)


def _has_kata(config: Config) -> bool:
    return any("kata" in rule.uses for rule in config.pci)


def _granted_to_kata(config: Config, wiring: Wiring) -> GrantedNodes | None:
    """Rules for Kata have CDI files as Kata wants them whatever the others have."""
    if not _has_kata(config):
        return None
    folder = (config.cdi or CdiConfig()).folder
    return GrantedNodes(CdiFiles(folder, "kata", wiring.dev_root, by_resource=True), environment=False)


def _binder(
    config: Config, match: Callable[[PciFunction], PciRule | None], wiring: Wiring
) -> tuple[BindingReconciler | None, OnDemandBinding | None]:
    """Where something is to be bound, now or on demand, or what an earlier configuration has bound is to be given
    back."""
    demands = any(rule.on_demand is not None for rule in config.pci)
    binds = demands or any(rule.bind for rule in config.pci)
    if not binds and not has_records(wiring.ledger):
        return None, None
    from launcherkit_plugin.binding.group_work import GroupWork
    from launcherkit_plugin.binding.on_demand import OnDemandBinding
    from launcherkit_plugin.binding.reconciler import BindingReconciler
    from launcherkit_plugin.host.drivers import Sysfs

    sysfs = partial(Sysfs, wiring.root)
    if wiring.make_worker is not None:
        sysfs = partial(sysfs, make_worker=wiring.make_worker)
    work = GroupWork(
        wiring.host,
        wiring.open_ledger(),
        sysfs=sysfs,
        open_nodes=wiring.open_nodes,
        proc=wiring.proc,
    )
    reporter = wiring.reporter.anew()
    on_demand = OnDemandBinding(match, work, wiring.guarded, reporter) if demands else None
    return BindingReconciler(match if binds else _no_rule, work, wiring.guarded, reporter, on_demand), on_demand


def has_records(folder: str) -> bool:
    """Whether there are any, of what was bound or of what claims have."""
    try:
        return any(name.endswith(".json") for name in os.listdir(folder))
    except OSError:
        return False


def _no_rule(_: PciFunction) -> None:
    """Nothing is to be bound: thousands of functions need not be matched to find that out."""
