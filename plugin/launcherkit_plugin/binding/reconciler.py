"""Binding by configuration: functions of rules with ``bind`` are bound, and given back when no rule applies (K8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from launcherkit.errors import LauncherkitError
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciFunction
from launcherkit_plugin.binding.binder import Binder, Changed, Done
from launcherkit_plugin.binding.group import (
    GroupToBind,
    groups_to_bind,
    is_with_host,
    unwanted,
    wanted_functions,
    wants_variants,
    work_key,
)
from launcherkit_plugin.binding.in_use import holders_of
from launcherkit_plugin.binding.ledger import Record
from launcherkit_plugin.binding.on_demand import OnDemandBinding
from launcherkit_plugin.host.kernel_modules import VFIO_PCI
from launcherkit_plugin.host.processes import OpenNodes
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.backoff import Backoff
from launcherkit_plugin.model.config import PciRule
from launcherkit_plugin.model.device import Problem, Usage
from launcherkit_plugin.model.grace import idle_since
from launcherkit_plugin.telemetry.metrics import Binding
from launcherkit_plugin.telemetry.reporter import Reporter

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0
"""Pauses between attempts; they double. A pause ends early when a driver has changed."""

LATE_SECONDS = 30.0
"""After this time, work on a group is reported as late. A large GPU takes about ten seconds; a step that takes longer
than `launcherkit_plugin.host.drivers.STEP_SECONDS` is abandoned."""


class BindingReconciler:
    """A `launcherkit_plugin.devices.provider.Reconciler`, and a `launcherkit_plugin.devices.pci.BindingProblems`.

    Args:
        match: returns the rule that applies to a function, if any.
        binder: binds groups and gives them back.
        queue: runs that work, one at a time for each group.
        reporter: receives successes and failures.
        on_demand: binding on demand; None if no rule asks for it.
    """

    def __init__(
        self,
        match: Callable[[PciFunction], PciRule | None],
        binder: Binder,
        queue: WorkQueue,
        reporter: Reporter,
        on_demand: OnDemandBinding | None = None,
    ) -> None:
        self._match = match
        self._binder = binder
        self._queue = queue
        self._reporter = reporter
        self._on_demand = on_demand
        self._attempts = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._problems: dict[PciAddress, Problem] = {}
        self._idle: dict[str, float] = {}
        self._unreadable: set[PciAddress] = set()

    def wants(self, function: PciFunction) -> bool:
        """Whether the details of a function have to be read."""
        rule = None if function.is_bridge_by_class else self._match(function)
        return rule is not None and rule.bind is not False

    def problem(self, address: PciAddress) -> Problem | None:
        """Why a function could not be bound; None if nothing failed."""
        return self._problems.get(address)

    def reconcile(self, host: HostFacts, usage: Usage, now: float) -> list[asyncio.Task[bool]]:
        """See `launcherkit_plugin.devices.provider.Reconciler`."""
        self._binder.holders.usage = lambda: usage
        rules = wanted_functions(host, self._match)
        try:
            records, unreadable = self._binder.ledger.records(), self._binder.ledger.unreadable()
        except LauncherkitError as error:
            self._reporter.problem("ledger", error, "GivingBackFailed")
            return []
        self._reporter.solved("ledger")
        unreadable = {address: error for address, error in unreadable.items() if not self._healed(address, host)}
        self._report(unreadable)
        if self._on_demand is not None:
            self._on_demand.note_records(records, unreadable)
        begun = []
        half_done = [record for record in records if not record.is_settled]
        for record in (*half_done, *self._needless(unwanted(records, rules), host, usage, now)):
            if not self._is_busy(record.leader, host) and self._is_due(record.leader, _state_of(record, host), now):
                functions = tuple(entry.address for entry in record.entries)
                begun += self._begin(record.leader, host, "unbind", functions, partial(self._binder.give_back, record))
        todo = groups_to_bind(rules, host)
        self._forget(todo, records)
        for group in todo:
            if not self._is_busy(group.key, host) and self._is_due(group.key, group.state, now):
                work = partial(self._binder.bind_groups, group.asked, variants=wants_variants(group.asked, rules))
                begun += self._begin(group.key, host, "bind", group.asked, work)
        return begun

    def _healed(self, address: PciAddress, host: HostFacts) -> bool:
        """Remove a record that can't be read if nothing of its group is bound: there is nothing to give back (T5)."""
        if not is_with_host(address, host) or self._is_busy(address, host):
            return False
        try:
            if not self._binder.ledger.remove_broken(address):
                return False
        except LauncherkitError as error:
            self._reporter.problem(("removing", address), error)
            return False
        text = f"the record of {address}, which could not be read, was removed: its group has its host drivers"
        self._reporter.log("warning", text)
        return True

    def _report(self, unreadable: Mapping[PciAddress, LauncherkitError]) -> None:
        """Report records that can't be read: only their own groups are neither bound nor given back (T5)."""
        for address in self._unreadable - unreadable.keys():
            self._reporter.solved(("record", address))
        self._unreadable = set(unreadable)
        for address, error in unreadable.items():
            self._reporter.problem(("record", address), error, "GivingBackFailed")
        for path in self._binder.ledger.ignored():
            self._reporter.once(path, "warning", f"{path} is ignored: its name is not the address of a function")

    def _needless(self, records: Sequence[Record], host: HostFacts, usage: Usage, now: float) -> list[Record]:
        """Those records whose functions have been unused for the grace time of their rule; it is 0 without a rule."""
        if self._on_demand is None:
            return list(records)
        if not usage.known:
            return []
        self._on_demand.select(host)
        held = {record for record in records if _is_held(record, host, usage)}
        for record in held:
            self._on_demand.note_held(record)
        leaders = {str(record.leader): record for record in records if record not in held}
        self._idle = idle_since(self._idle, leaders, (), now)
        graces = {name: self._on_demand.grace(record) for name, record in leaders.items()}
        return [
            leaders[name] for name, grace in graces.items() if grace is not None and now - self._idle[name] >= grace
        ]

    def _is_busy(self, leader: PciAddress, host: HostFacts) -> bool:
        return self._queue.is_busy(work_key(leader, host))

    def _begin(
        self,
        leader: PciAddress,
        host: HostFacts,
        action: Binding,
        functions: tuple[PciAddress, ...],
        work: Callable[[], Sequence[Changed]],
    ) -> list[asyncio.Task[bool]]:
        doing = f"{'binding' if action == 'bind' else 'giving back'} {', '.join(map(str, functions))}"
        begun = self._queue.begin(work_key(leader, host), doing, work, LATE_SECONDS)
        return [] if begun is None else [asyncio.create_task(self._end(leader, Done.of(action, functions, begun)))]

    async def _end(self, leader: PciAddress, ending: Awaitable[Done]) -> bool:
        done = await ending
        if done.action == "unbind" and done.error is None:
            self._attempts.succeeded(leader)  # it may be bound on demand, and not be needed again, before the next turn
        self._conclude(done)
        return bool(done.changed)

    def _is_due(self, key: PciAddress, state: tuple[tuple[PciAddress, str | None], ...], now: float) -> bool:
        if self._attempts.too_early(key, now, state):
            return False
        self._attempts.failed(key, now, state=state)  # unless it succeeds
        return True

    def _forget(self, todo: Sequence[GroupToBind], records: Sequence[Record]) -> None:
        """Forget the attempts and problems of functions that need no work any more."""
        self._attempts.forget_others({group.key for group in todo} | {record.leader for record in records})
        open_still = {address for group in todo for address in group.asked}
        self._problems = {address: problem for address, problem in self._problems.items() if address in open_still}

    def _conclude(self, done: Done) -> None:
        done.report(self._reporter)
        if done.action == "unbind":
            if self._on_demand is not None:
                self._on_demand.given_back(done)
        elif done.error is not None:
            problem = Problem("failed", f"it can't be bound to {VFIO_PCI}: {done.error.message}")
            self._problems.update(dict.fromkeys(done.functions, problem))
        if done.error is None:
            for address in done.functions:
                self._problems.pop(address, None)


def _state_of(record: Record, host: HostFacts) -> tuple[tuple[PciAddress, str | None], ...]:
    functions = ((entry.address, host.functions.get(entry.address)) for entry in record.entries)
    return tuple((address, function.driver if function else None) for address, function in functions)


def _is_held(record: Record, host: HostFacts, usage: Usage) -> bool:
    """Whether a pod has one of its functions."""
    addresses = [entry.address for entry in record.entries]
    return next(holders_of(addresses, host, usage, OpenNodes({})), None) is not None
