"""Binding by configuration: what rules with ``bind`` want is bound, what they want no longer is given back (K8)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from launcherkit.errors import LauncherkitError
from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit.sources.host import Host
from launcherkit_plugin.binding.binder import Binder, Changed
from launcherkit_plugin.binding.group import VFIO_PCI, Task, check_free, plan_groups, tasks, unwanted, wanted_functions
from launcherkit_plugin.binding.in_use import Holders, read_uses
from launcherkit_plugin.binding.ledger import Ledger, Record
from launcherkit_plugin.host.drivers import Sysfs, modprobe, no_modprobe, require_driver
from launcherkit_plugin.host.guarded import Guarded, group_key
from launcherkit_plugin.host.processes import OpenNodes
from launcherkit_plugin.model.backoff import Backoff
from launcherkit_plugin.model.config import PciRule
from launcherkit_plugin.model.device import NO_USAGE, Problem, Usage
from launcherkit_plugin.model.errors import BindRefused, DeviceHeld, HoldersUnknown, NoVfioDriver
from launcherkit_plugin.telemetry.metrics import Binding
from launcherkit_plugin.telemetry.reporter import Reporter

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0
"""What fails is tried again after a pause that doubles; sooner where a driver has changed meanwhile."""

LATE_SECONDS = 30.0
"""After which a group on its way is reported as late. A large GPU takes some ten seconds; a step that takes longer than
`launcherkit_plugin.host.drivers.STEP_SECONDS` is given up."""


class _Done(NamedTuple):
    """The result of one task or record."""

    action: Binding
    functions: tuple[PciAddress, ...]
    changed: Sequence[Changed] = ()
    error: LauncherkitError | None = None


class BindingReconciler:
    """A `launcherkit_plugin.devices.provider.Reconciler`, and a `launcherkit_plugin.devices.pci.BindingProblems`.

    Args:
        match: the rule that a function falls under, if any.
        host: facts are read from.
        ledger: the records of what was bound.
        guarded: does it, group by group.
        reporter: takes what was done and what failed.
        sysfs: makes what does the steps; each group has its own.
        open_nodes: reads which processes have which nodes open.
        proc: where the host's proc file system is mounted.
    """

    def __init__(
        self,
        match: Callable[[PciFunction], PciRule | None],
        host: Host,
        ledger: Ledger,
        guarded: Guarded,
        reporter: Reporter,
        *,
        sysfs: Callable[[], Sysfs],
        open_nodes: Callable[[], OpenNodes],
        proc: str,
    ) -> None:
        self._match = match
        self._host = host
        self._ledger = ledger
        self._guarded = guarded
        self._reporter = reporter
        self._sysfs = sysfs
        self._open_nodes = open_nodes
        self._proc = proc
        self._load = modprobe if os.path.realpath(sysfs().root) == "/" else no_modprobe
        self._usage = NO_USAGE
        self._attempts = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._problems: dict[PciAddress, Problem] = {}

    def wants(self, function: PciFunction) -> bool:
        """Whether details of a function have to be read."""
        rule = None if function.is_bridge_by_class else self._match(function)
        return rule is not None and rule.bind

    def problem(self, address: PciAddress) -> Problem | None:
        """What kept a function from being bound."""
        return self._problems.get(address)

    def reconcile(self, host: HostFacts, usage: Usage, now: float) -> list[asyncio.Task[bool]]:
        """See `launcherkit_plugin.devices.provider.Reconciler`."""
        self._usage = usage  # what is under way goes by the newest, too
        wanted = wanted_functions(host, self._match)
        try:
            records = self._ledger.records()
        except LauncherkitError as error:
            self._reporter.problem("ledger", error, "GivingBackFailed")
            return []
        self._reporter.well("ledger")
        begun = []
        half_done = [record for record in records if not record.is_settled]
        for record in (*half_done, *unwanted(records, wanted)):
            if self._is_due(record.leader, _state_of(record, host), now):
                functions = tuple(entry.address for entry in record.entries)
                begun += self._begin(record.leader, host, "giving back", functions, partial(self._restore, record))
        todo = tasks(wanted, host)
        self._forget(todo, records)
        for task in todo:
            if not self._is_busy(task.key, host) and self._is_due(task.key, task.state, now):
                begun += self._begin(task.key, host, "binding", task.asked, partial(self._bind, task))
        return begun

    def _is_busy(self, leader: PciAddress, host: HostFacts) -> bool:
        return self._guarded.is_busy(_key(leader, host))

    def _begin(
        self,
        leader: PciAddress,
        host: HostFacts,
        verb: str,
        functions: Sequence[PciAddress],
        work: Callable[[Binder], _Done],
    ) -> list[asyncio.Task[bool]]:
        what = f"{verb} {', '.join(map(str, functions))}"
        begun = self._guarded.begin(_key(leader, host), what, lambda: work(self._binder()), LATE_SECONDS)
        return [] if begun is None else [asyncio.create_task(self._end(begun))]

    def _binder(self) -> Binder:
        return Binder(self._sysfs(), self._ledger, Holders(self._host, lambda: self._usage, self._open_nodes))

    async def _end(self, begun: asyncio.Future[_Done]) -> bool:
        done = await begun
        self._conclude(done)
        return bool(done.changed)

    def _is_due(self, key: PciAddress, state: tuple[tuple[PciAddress, str | None], ...], now: float) -> bool:
        if self._attempts.rests(key, now, state):
            return False
        self._attempts.failed(key, now, state=state)  # until it has come off
        return True

    def _forget(self, todo: Sequence[Task], records: Sequence[Record]) -> None:
        """What needs no more attempts."""
        self._attempts.keep({task.key for task in todo} | {record.leader for record in records})
        open_still = {address for task in todo for address in task.asked}
        self._problems = {address: problem for address, problem in self._problems.items() if address in open_still}

    # In a thread

    def _bind(self, task: Task, binder: Binder) -> _Done:
        try:
            sysfs = self._sysfs()
            facts = self._host.facts(task.asked)
            changed: list[Changed] = []
            for plan in plan_groups(task.asked, facts):
                uses = read_uses(sysfs.root, self._proc, [member.address for member in plan.change])
                check_free(plan, facts, uses, force=False)
                require_driver(VFIO_PCI, sysfs, self._load)
                change = [member.address for member in plan.change]
                changed += binder.bind(plan.addresses, change, VFIO_PCI, asked=plan.asked, by="configuration")
        except LauncherkitError as error:
            return _Done("bind", task.asked, error=error)
        return _Done("bind", task.asked, changed)

    def _restore(self, record: Record, binder: Binder) -> _Done:
        functions = tuple(entry.address for entry in record.entries)
        try:
            self._ledger.remove_void()
            if record.is_settled:
                return _Done("unbind", functions, binder.restore(record))
            settled = binder.finish(record, wait=False)
        except LauncherkitError as error:
            return _Done("unbind", functions, error=error)
        return _Done("unbind", functions, error=None if settled is None else settled.error)

    # Back from it

    def _conclude(self, done: _Done) -> None:
        about = ", ".join(map(str, done.functions))
        if done.error is None:
            self._reporter.well(about)
            for address in done.functions:
                self._problems.pop(address, None)
            if done.changed:
                self._reporter.metrics.bound(done.action, "done")
                self._report_done(done)
            return
        self._reporter.metrics.bound(done.action, "refused" if _is_refusal(done.error) else "failed")
        if done.action == "bind":
            problem = Problem("failed", f"it can't be bound to {VFIO_PCI}: {done.error.message}")
            self._problems.update(dict.fromkeys(done.functions, problem))
        self._reporter.problem(about, done.error, "BindingFailed" if done.action == "bind" else "GivingBackFailed")

    def _report_done(self, done: _Done) -> None:
        words = ", ".join(
            f"{change.address} {change.before or 'no driver'} -> {change.after or 'no driver'}"
            for change in done.changed
        )
        if done.action == "bind":
            self._reporter.happened("DevicesBound", f"bound: {words}")
        else:
            self._reporter.happened("DevicesGivenBack", f"given back: {words}")


def _key(leader: PciAddress, host: HostFacts) -> str:
    function = host.functions.get(leader)
    return group_key(leader, None if function is None else function.iommu_group)


def _state_of(record: Record, host: HostFacts) -> tuple[tuple[PciAddress, str | None], ...]:
    known = ((entry.address, host.functions.get(entry.address)) for entry in record.entries)
    return tuple((address, function.driver if function else None) for address, function in known)


def _is_refusal(error: LauncherkitError) -> bool:
    refusals = (BindRefused, DeviceHeld, HoldersUnknown, NoVfioDriver)
    return all(isinstance(leaf, refusals) for leaf in error.leaves())
