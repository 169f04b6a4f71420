"""The daemon's parts that bind on demand, on a host that is a tree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from launcherkit.host.source import Host
from launcherkit.model.host import PciFunction
from launcherkit_plugin.binding.binder import Binder
from launcherkit_plugin.binding.in_use import Holders
from launcherkit_plugin.binding.ledger import Ledger
from launcherkit_plugin.binding.on_demand import OnDemandBinding
from launcherkit_plugin.binding.reconciler import BindingReconciler
from launcherkit_plugin.host.drivers import Sysfs
from launcherkit_plugin.host.processes import OpenNodes
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import PciRule
from launcherkit_plugin.model.device import NO_USAGE, Usage
from launcherkit_plugin.telemetry.metrics import Metrics
from launcherkit_plugin.telemetry.reporter import Log, Reporter
from tests.support.kernel import FakeKernel
from tests.support.waiting import PATIENCE


class DemandParts(NamedTuple):
    """Those of one daemon; the next one has others on the same ledger."""

    queue: WorkQueue
    ledger: Ledger
    on_demand: OnDemandBinding
    reconciler: BindingReconciler


def demand_parts(
    host: Host,
    kernel: FakeKernel,
    root: Path,
    match: Callable[[PciFunction], PciRule | None],
    open_nodes: Callable[[], OpenNodes],
    log: Log,
    clock: Callable[[], float],
    held_now: Callable[[], Usage | None] = lambda: None,
) -> DemandParts:
    """The parts of a daemon that starts now.

    Args:
        host: the tree's.
        kernel: of the tree.
        root: of the tree.
        match: the rule of a function.
        open_nodes: which processes have which device nodes open.
        log: what it says.
        clock: seconds.
        held_now: who has what at an Allocate; None: as at the last turn.
    """
    kernel.new_process()
    queue, ledger, reporter = WorkQueue(stall=PATIENCE), Ledger(f"{root}/ledger", "boot"), Reporter(log, Metrics())
    holders = Holders(host, lambda: NO_USAGE, lambda *_: open_nodes(), root=str(root), proc=f"{root}/proc")
    binder = Binder(host, Sysfs(str(root), make_worker=kernel.hand), ledger, holders, f"{root}/proc")

    def usage() -> Usage:
        return held_now() or holders.usage()

    on_demand = OnDemandBinding(match, binder, queue, reporter, usage, clock)
    return DemandParts(queue, ledger, on_demand, BindingReconciler(match, binder, queue, reporter, on_demand))
