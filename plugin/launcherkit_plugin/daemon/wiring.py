"""Builds the providers and reconcilers that a configuration needs on a node."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from launcherkit.errors import LauncherkitError
from launcherkit.host.source import Host
from launcherkit.model.host import HostFacts, PciFunction
from launcherkit_plugin.devices.cdi import CdiFiles, GrantedNodes, check_kinds
from launcherkit_plugin.devices.names import Namer
from launcherkit_plugin.devices.pci import PassedNodes, PciProvider
from launcherkit_plugin.devices.provider import Provider, Reconciler
from launcherkit_plugin.devices.selectors import Selection, compile_rules, primaries, unmet_rules, whatever_driver
from launcherkit_plugin.host.processes import OpenNodes, boot_id, read_open_nodes
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import CdiConfig, Config, DraConfig, FabricConfig, NodeChoice, PciRule
from launcherkit_plugin.model.device import NO_USAGE, Problem, Resource, Usage
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped

if TYPE_CHECKING:
    from launcherkit_plugin.binding.binder import Binder
    from launcherkit_plugin.binding.ledger import Ledger
    from launcherkit_plugin.binding.lent import LentDevices
    from launcherkit_plugin.binding.on_demand import OnDemandBinding
    from launcherkit_plugin.binding.reconciler import BindingReconciler
    from launcherkit_plugin.binding.vf_reconciler import VfReconciler
    from launcherkit_plugin.devices.container import ContainerProvider
    from launcherkit_plugin.devices.usb import UsbProvider
    from launcherkit_plugin.devices.xid_watch import XidWatch
    from launcherkit_plugin.fabric.fabric import Fabric
    from launcherkit_plugin.fabric.manager import FabricManager
    from launcherkit_plugin.host.drivers import Worker
    from launcherkit_plugin.host.open_files import OpenFilesHelper
    from launcherkit_plugin.vgpu.gpu_instances import MigKeeper

GPU_INSTANCES = "gpu-instances"
"""The folder of the records of GPU instances, below that of what outlives reboots."""
REMOVAL_SECONDS = 2.0
"""How long to wait for a removed vGPU to disappear: not long, for the next scan sees it and a pod may need the card."""


class Setup(NamedTuple):
    """A configuration, as the daemon uses it on this node."""

    providers: tuple[Provider, ...]
    reconcilers: tuple[Reconciler, ...]
    """In the order in which they are called in each turn."""
    vgpu: bool
    """Whether to read mediated devices: vGPUs are advertised, or keep containers from getting their cards (K10)."""
    rescan_seconds: float
    update: Callable[[HostFacts], None]
    """Called once, with the first scan. Raises a `LauncherkitError` if rules clash (D1)."""
    check: Callable[[Sequence[Resource]], None]
    """Raises a `LauncherkitError` if two resources clash (K6, D1), or if CDI doesn't allow a name."""
    dra: DraConfig | None = None
    """The settings of the DRA driver; None: there is none."""
    containers: ContainerProvider | None = None
    """The provider of cards for containers; None if no rule gives cards to containers."""
    nodes: NodeChoice = "auto"
    """Which device nodes containers get."""
    changes_host: bool = False
    """Whether reconcilers bind functions, or create and remove vGPUs."""
    fabric: Fabric | None = None
    """The partitions of an NVSwitch board; None if none are configured."""
    mig: MigKeeper | None = None
    """What keeps GPU instances; None if none are declared or on record."""
    usb: UsbProvider | None = None
    """The provider of USB devices; None if no rule selects any."""

    def wants(self, function: PciFunction) -> bool:
        """Whether a provider or reconciler needs the details of a function."""
        wanting: dict[Provider | Reconciler, None] = dict.fromkeys((*self.providers, *self.reconcilers))  # may be both
        return any(each.wants(function) for each in wanting)


class Wiring(NamedTuple):
    """What the daemon and the commands need under any configuration; each package is passed a part of it."""

    host: Host
    root: str
    """The directory that contains the host's ``sys`` and ``dev``."""
    reporter: Reporter
    queue: WorkQueue
    """Runs work that may hang. It stays the same across reloads, so that hanging work stays known."""
    stopped: Stopped
    dev_root: str = ""
    """Prefix of the paths of device nodes as the kubelet sees them."""
    proc: str = "/proc"
    """The host's proc file system."""
    ledger: str = os.devnull
    """The folder of the ledger; by default there are no records."""
    state: str = os.devnull
    """The folder of records that outlive a reboot; by default there are none."""
    usage: Callable[[], Usage] = lambda: NO_USAGE
    """Returns who has which device now. Only a daemon knows."""
    make_worker: Callable[[Sequence[int]], Worker] | None = None
    """Returns a worker for the steps of binding; None: a process is started each time."""
    clock: Callable[[], float] = time.monotonic
    """Seconds, monotonic: the loop's."""
    fabric: Callable[[FabricConfig], FabricManager] | None = None
    """Returns what asks Fabric Manager; None: it is asked by a process, and only read."""

    xids: Callable[[bool], XidWatch | None] = lambda _: None
    """Returns what waits for critical errors of cards, if it is asked for, or was before; only a daemon has it."""
    keeper: Callable[[bool], Reconciler | None] = lambda _: None
    """Returns what keeps devices for VMs; only a daemon has it."""
    helper: OpenFilesHelper | None = None
    """Reads the files that processes have open; None: this process does."""

    @property
    def vf_records(self) -> str:
        """The folder of the records of virtual functions that were made."""
        return os.path.join(self.ledger, "vfs")

    @property
    def fabric_records(self) -> str:
        """The folder of the records of fabric partitions that were activated."""
        return os.path.join(self.ledger, "fabric")

    @property
    def gpu_instances(self) -> str:
        """The folder of the records of GPU instances."""
        return os.path.join(self.state, GPU_INSTANCES)

    def open_nodes(self, devices: Mapping[str, tuple[int, int]] = {}) -> OpenNodes:
        """Which processes of the host have VFIO's nodes, or these others, open."""
        return read_open_nodes(self.proc, devices) if self.helper is None else self.helper(devices)

    def open_ledger(self) -> Ledger:
        """The records of what functions were bound to before."""
        from launcherkit_plugin.binding.ledger import Ledger

        return Ledger(self.ledger, boot_id(self.proc))

    def open_lent(self) -> LentDevices:
        """The records of devices that aren't clean since a pod had them."""
        from launcherkit_plugin.binding.lent import LentDevices

        return LentDevices(os.path.join(self.state, "lent"))


def assemble(config: Config, wiring: Wiring) -> Setup:
    """Build the providers and reconcilers of a configuration."""
    namer = Namer(config)
    match = compile_rules(config.pci)
    selection = Selection(match, namer.function, compile_rules(whatever_driver(config.pci)), namer.text)
    binder, on_demand = _binder(config, match, wiring)
    making, unready = virtual_functions(config, match, wiring)
    pci = PciProvider(
        selection,
        wiring.host,
        wiring.root,
        nodes=PassedNodes(config.nodes, _granted(config, "pci", wiring), _granted_to_kata(config, wiring)),
        queue=wiring.queue,
        on_demand=on_demand,
        failure=None if binder is None else binder.problem,
        unready=unready,
    )

    def update(facts: HostFacts) -> None:
        namer.update([function for at in facts.details if pci.wants(function := facts.functions[at])])
        for text in unmet_rules(config.pci, facts, primaries(match, facts)):
            wiring.reporter.log("warning", text)
        if config.dra is not None:
            from launcherkit_plugin.dra.inventory import check_rules

            check_rules(config, facts)

    def check(resources: Sequence[Resource]) -> None:
        namer.check(resources)
        check_kinds(((each.name, each.use) for each in resources if not each.dra), config.cdi)
        if config.dra is not None:
            from launcherkit_plugin.dra.inventory import check_resources

            check_resources(resources)

    containers = _containers(config, selection, wiring, on_demand)
    pcis: tuple[PciProvider | ContainerProvider, ...] = (pci,) if containers is None else (pci, containers)
    binding = () if binder is None else (binder,)
    vgpus, reconcilers, mig = _vgpus(config, namer, wiring)
    cleaned, cleaning = _cleaned((*pcis, *vgpus), config, match, wiring)
    fabric = _fabric(config, wiring)
    boards = () if fabric is None else (fabric,)
    usb = _usb(config, wiring)
    usbs = () if usb is None else (usb,)
    return Setup(
        providers=(*_partitioned(cleaned, fabric), *usbs),
        reconcilers=(*making, *binding, *cleaning, *boards, *pcis, *usbs, *reconcilers, *_keepers(config, wiring)),
        vgpu=bool(reconcilers) or containers is not None,
        rescan_seconds=config.rescan_seconds,
        update=update,
        check=check,
        dra=_dra(config),
        containers=containers,
        nodes=config.nodes,
        changes_host=bool((*making, *binding, *cleaning, *boards, *reconcilers)),
        fabric=fabric,
        mig=mig,
        usb=usb,
    )


def _dra(config: Config) -> DraConfig | None:
    """The settings of the DRA driver, with the folder of CDI files."""
    if config.dra is None or config.cdi is None:
        return config.dra
    return config.dra._replace(cdi_folder=config.cdi.folder)


def _usb(config: Config, wiring: Wiring) -> UsbProvider | None:
    """The provider of USB devices, if a rule selects some."""
    if not config.usb:
        return None
    from launcherkit_plugin.devices.usb import UsbProvider
    from launcherkit_plugin.host.driver_nodes import usb_nodes
    from launcherkit_plugin.host.usb_bus import read_usb

    models = {(selector.vendor, selector.product) for rule in config.usb for selector in rule.selectors}
    return UsbProvider(
        config.usb,
        partial(read_usb, wiring.root, wiring.proc, models),
        lambda devices: wiring.open_nodes(usb_nodes(wiring.root, [each.name for each in devices])),
        wiring.queue,
        _granted(config, "usb", wiring),
    )


def _fabric(config: Config, wiring: Wiring) -> Fabric | None:
    """The partitions of an NVSwitch board, if there is one."""
    if config.fabric is None:
        return None
    from launcherkit_plugin.fabric.activations import ActivatedPartitions
    from launcherkit_plugin.fabric.fabric import Fabric
    from launcherkit_plugin.fabric.manager import ProcessManager

    manager = (wiring.fabric or ProcessManager)(config.fabric)
    records = ActivatedPartitions(wiring.fabric_records, boot_id(wiring.proc))
    return Fabric(manager, records, wiring.queue, wiring.reporter.anew(), wiring.usage, wiring.clock)


def _partitioned(providers: Sequence[Provider], fabric: Fabric | None) -> tuple[Provider, ...]:
    """The providers; on an NVSwitch board containers get their cards by whole partitions."""
    if fabric is None:
        return tuple(providers)
    from launcherkit_plugin.allocation.partitioned import PartitionedProvider

    return tuple(PartitionedProvider(provider, fabric) for provider in providers)


def _keepers(config: Config, wiring: Wiring) -> list[Reconciler]:
    """What keeps devices for VMs, if a rule asks for it and there is a daemon."""
    keeper = wiring.keeper(any(rule.same_device for rule in config.pci))
    return [] if keeper is None else [keeper]


def _containers(
    config: Config,
    selection: Selection,
    wiring: Wiring,
    on_demand: OnDemandBinding | None,
) -> ContainerProvider | None:
    xids = wiring.xids(any(rule.watches_xids for rule in config.pci))
    if xids is None and not any("container" in rule.uses for rule in config.pci):
        return None
    from launcherkit_plugin.devices.container import ContainerProvider
    from launcherkit_plugin.devices.container_card import CardUuids, read_card

    folder = None if on_demand is None or wiring.ledger == os.devnull else wiring.ledger
    uuids = CardUuids(folder, boot_id(wiring.proc))
    if uuids.problem is not None:
        wiring.reporter.log(
            "warning",
            f"{uuids.problem}. The UUID of a card bound to VFIO is unknown until the card has its driver again",
        )
    return ContainerProvider(
        selection,
        wiring.host,
        read=partial(read_card, wiring.root, wiring.proc),
        uuids=uuids,
        queue=wiring.queue,
        gives_back=on_demand,
        xids=xids,
        annotate=config.cdi is not None and config.cdi.annotations,
    )


def _vgpus(
    config: Config, namer: Namer, wiring: Wiring
) -> tuple[tuple[Provider, ...], tuple[Reconciler, ...], MigKeeper | None]:
    vgpu = config.vgpu
    has_mig = any(entry.gpu_instances for entry in vgpu.layout) or has_records(wiring.gpu_instances)
    if not (vgpu.mdevs or vgpu.vfs or vgpu.layout or vgpu.spread or has_mig):
        return (), (), None
    from launcherkit_plugin.host.files import DiskFiles
    from launcherkit_plugin.vgpu.maker import Maker
    from launcherkit_plugin.vgpu.providers import vgpus_of
    from launcherkit_plugin.vgpu.writer import VgpuWriter

    writer = VgpuWriter(
        Maker(DiskFiles(wiring.root), time.monotonic, time.sleep, removal_patience=REMOVAL_SECONDS),
        lambda nodes: wiring.open_nodes().is_open(nodes),
        wiring.reporter.anew(),
    )
    mig = None
    if has_mig:
        from launcherkit_plugin.vgpu.gpu_instances import MigKeeper, MigMaker

        mig_maker = MigMaker.in_folder(wiring.gpu_instances, boot_id(wiring.proc), writer.maker)
        mig = MigKeeper(vgpu.layout, mig_maker, writer, wiring.queue)
    providers, reconcilers = vgpus_of(
        vgpu,
        namer.vgpu,
        writer,
        wiring.queue,
        stopped=wiring.stopped,
        mdev_nodes=_granted(config, "mdev", wiring),
        vf_nodes=_granted(config, "vf", wiring),
        iommufd=config.nodes == "cdev",
        mig=mig,
    )
    return providers, reconcilers, mig


def _granted(config: Config, part: str, wiring: Wiring) -> GrantedNodes:
    if config.cdi is None:
        return GrantedNodes()
    cdi = config.cdi
    used = {
        "pci": True,
        "kata": _has_kata(config),
        "mdev": bool(config.vgpu.mdevs),
        "vf": bool(config.vgpu.vfs),
        "usb": bool(config.usb),
    }
    unused = [each for each, is_used in used.items() if not is_used and part == "pci"]
    files = CdiFiles(cdi.folder, part, wiring.dev_root, by_resource=cdi.kind == "resource", unused=unused)
    return GrantedNodes(files, cdi_only=cdi.only, annotate=cdi.annotations, environment=cdi.environment)


def _has_kata(config: Config) -> bool:
    return any("kata" in rule.uses for rule in config.pci)


def _granted_to_kata(config: Config, wiring: Wiring) -> GrantedNodes | None:
    """Rules for Kata always use CDI files, in the form that Kata needs."""
    if not _has_kata(config):
        return None
    folder = (config.cdi or CdiConfig()).folder
    return GrantedNodes(CdiFiles(folder, "kata", wiring.dev_root, by_resource=True), environment=False)


def _binder(
    config: Config, match: Callable[[PciFunction], PciRule | None], wiring: Wiring
) -> tuple[BindingReconciler | None, OnDemandBinding | None]:
    """The reconciler that binds, if functions are to be bound, now or on demand, or if functions that an earlier
    configuration bound are to be given back."""
    demands = any(rule.on_demand for rule in config.pci)
    binds = demands or any(rule.bind is True for rule in config.pci)
    if not binds and not has_records(wiring.ledger):
        return None, None
    from launcherkit_plugin.binding.on_demand import OnDemandBinding
    from launcherkit_plugin.binding.reconciler import BindingReconciler

    binder = _binder_of(wiring)
    ledger = binder.ledger
    reporter = wiring.reporter.anew()
    on_demand = OnDemandBinding(match, binder, wiring.queue, reporter, wiring.usage) if demands else None
    if on_demand is not None:
        with suppress(LauncherkitError):  # the reconciler, which reads them again, reports it
            on_demand.note_records(ledger.records(), ledger.unreadable())
    bound = match if binds else _no_rule
    return BindingReconciler(bound, binder, wiring.queue, reporter, on_demand), on_demand


def _binder_of(wiring: Wiring) -> Binder:
    from launcherkit_plugin.binding.binder import Binder
    from launcherkit_plugin.binding.in_use import Holders
    from launcherkit_plugin.host.drivers import Sysfs

    holders = Holders(wiring.host, lambda: NO_USAGE, wiring.open_nodes, root=wiring.root, proc=wiring.proc)
    sysfs = Sysfs(wiring.root, make_worker=wiring.make_worker)
    return Binder(wiring.host, sysfs, wiring.open_ledger(), holders, wiring.proc)


def virtual_functions(
    config: Config, match: Callable[[PciFunction], PciRule | None], wiring: Wiring
) -> tuple[tuple[VfReconciler, ...], Callable[[PciFunction], Problem | None] | None]:
    """The reconciler that makes virtual functions, if a rule asks for some, or if those of an earlier configuration are
    to be taken away; and what says which of them nobody may get yet."""
    folder = wiring.vf_records
    asked = any(rule.virtual_functions is not None for rule in config.pci)
    if not asked and not has_records(folder):
        return (), None
    from launcherkit_plugin.binding.vf_maker import VfMaker
    from launcherkit_plugin.binding.vf_reconciler import VfReconciler
    from launcherkit_plugin.binding.vf_records import VfRecords
    from launcherkit_plugin.vgpu.layout import vfs_needed

    binder = _binder_of(wiring)
    records = VfRecords(folder, boot_id(wiring.proc))
    maker = VfMaker(wiring.host, binder.sysfs, binder.ledger, records, binder.holders, wiring.proc)
    needed = partial(vfs_needed, config.vgpu.layout)
    making = VfReconciler(match if asked else _no_rule, needed, maker, wiring.queue, wiring.reporter.anew())
    return (making,), making.problem


def _cleaned(
    providers: Sequence[Provider], config: Config, match: Callable[[PciFunction], PciRule | None], wiring: Wiring
) -> tuple[Sequence[Provider], tuple[Reconciler, ...]]:
    """The providers, whose devices are cleaned between two pods if a rule asks for it, and what cleans them."""
    if all(rule.release is None for rule in config.pci):
        return providers, ()
    from launcherkit_plugin.allocation.cleaned import CleanedProvider
    from launcherkit_plugin.binding.cleaning import Cleaner

    cleaner = Cleaner(
        match,
        _binder_of(wiring),
        wiring.open_lent(),
        wiring.queue,
        wiring.reporter.anew(),
        wiring.usage,
        boot_id(wiring.proc),
        time.time,
    )
    return [CleanedProvider(provider, cleaner) for provider in providers], (cleaner,)


def has_records(folder: str) -> bool:
    """Whether a folder contains records, of bound functions or of prepared claims."""
    try:
        return any(name.endswith(".json") for name in os.listdir(folder))
    except OSError:
        return False


def _no_rule(_: PciFunction) -> None:
    """Matches nothing: if nothing is to be bound, thousands of functions need not be matched to find that out."""
