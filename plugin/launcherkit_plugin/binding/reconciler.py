"""Binding by configuration: what rules with ``bind`` want is bound, what they want no longer is given back (K8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from launcherkit.errors import LauncherkitError
from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit.sources.host import Host
from launcherkit_plugin.binding.binder import Binder, Changed
from launcherkit_plugin.binding.held import Holders
from launcherkit_plugin.binding.host_use import read_uses
from launcherkit_plugin.binding.ledger import Ledger, Record
from launcherkit_plugin.binding.plan import VFIO_PCI, check_free, plan_groups
from launcherkit_plugin.binding.wanted import Task, tasks, unwanted, wanted_functions
from launcherkit_plugin.cluster import Recorder
from launcherkit_plugin.host.drivers import Sysfs
from launcherkit_plugin.host.guarded import Guarded
from launcherkit_plugin.host.modules import require_driver
from launcherkit_plugin.host.open_nodes import OpenNodes
from launcherkit_plugin.model.config import PciRule
from launcherkit_plugin.model.device import Problem
from launcherkit_plugin.model.errors import BindRefused, DeviceHeld, HoldersUnknown, NoVfioDriver
from launcherkit_plugin.model.usage import NO_USAGE, Usage
from launcherkit_plugin.telemetry.log import Log, log_error
from launcherkit_plugin.telemetry.metrics import Binding, Metrics

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0
"""What fails is tried again after a pause that doubles; sooner where a driver has changed meanwhile."""

BIND_PATIENCE_SECONDS = 0.5
"""For how long the daemon waits for functions to be bound before it goes on with what there is."""

RESTORE_PATIENCE_SECONDS = 60.0
"""For how long the daemon hands out nothing while functions are given back: it might be one of them."""


class Machine(NamedTuple):
    """What is bound, and what tells who has it."""

    host: Host
    root: str
    proc: str
    sysfs: Sysfs
    ledger: Ledger
    open_nodes: Callable[[], OpenNodes]
    load: Callable[[str], None]
    """Loads the module of a driver."""


class _Attempt(NamedTuple):
    """One that failed."""

    state: tuple[tuple[PciAddress, str | None], ...]
    due: float
    pause: float


class _Done(NamedTuple):
    """What has come of one task or record."""

    action: Binding
    functions: tuple[PciAddress, ...]
    changed: Sequence[Changed] = ()
    error: LauncherkitError | None = None


class BindingReconciler:
    """A `launcherkit_plugin.devices.pci.Binder`.

    Args:
        match: the rule that a function falls under, if any.
        machine: where it is done.
        log: takes what was done and what failed.
        metrics: counts it.
        events: takes it for the node.
    """

    def __init__(
        self,
        match: Callable[[PciFunction], PciRule | None],
        machine: Machine,
        log: Log,
        metrics: Metrics,
        events: Recorder,
    ) -> None:
        self._match = match
        self._machine = machine
        self._log = log
        self._metrics = metrics
        self._events = events
        self._usage = NO_USAGE
        self._binder = Binder(
            machine.sysfs, machine.ledger, Holders(machine.host, lambda: self._usage, machine.open_nodes)
        )
        self._attempts: dict[PciAddress, _Attempt] = {}
        self._problems: dict[PciAddress, Problem] = {}
        self._told: dict[tuple[PciAddress, ...], str] = {}
        self._to_bind: Sequence[Task] = ()
        self._to_restore: Sequence[Record] = ()
        self._binding = Guarded(lambda: [self._bind(task) for task in self._to_bind], BIND_PATIENCE_SECONDS)
        self._restoring = Guarded(self._restore_all, RESTORE_PATIENCE_SECONDS)
        self._at_work: Guarded[list[_Done]] | None = None

    def problem(self, address: PciAddress) -> Problem | None:
        """What kept a function from being bound."""
        return self._problems.get(address)

    async def reconcile(self, host: HostFacts, usage: Usage, now: float) -> bool:
        """See `launcherkit_plugin.devices.provider.Provider`. Work that takes long goes on behind later calls."""
        self._usage = usage  # what is at work goes by the newest, too
        if self._at_work is None:
            self._at_work = self._work(host, now)
        if self._at_work is None:
            return False
        try:
            done = await self._at_work.result()
        except TimeoutError:
            return False
        except LauncherkitError as error:  # the ledger can't be read
            self._at_work = None
            self._tell_error(_Done("unbind", (), error=error))
            return False
        except Exception:
            self._at_work = None  # the next call begins anew, by what it is told then
            raise
        self._at_work = None
        self._conclude(done)
        return any(each.changed for each in done)

    def _work(self, host: HostFacts, now: float) -> Guarded[list[_Done]] | None:
        """What there is to do now: first what has to be given back, then what has to be bound."""
        wanted = wanted_functions(host, self._match)
        try:
            records = self._machine.ledger.records()
        except LauncherkitError as error:
            self._tell_error(_Done("unbind", (), error=error))
            return None
        half_done = [record for record in records if not record.is_settled]
        self._to_restore = [
            record
            for record in (*half_done, *unwanted(records, wanted))
            if self._is_due(record.leader, _state_of(record, host), now)
        ]
        if self._to_restore:
            return self._restoring
        todo = tasks(wanted, host)
        self._forget(todo, records)
        self._to_bind = [task for task in todo if self._is_due(task.key, task.state, now)]
        return self._binding if self._to_bind else None

    def _is_due(self, key: PciAddress, state: tuple[tuple[PciAddress, str | None], ...], now: float) -> bool:
        attempt = self._attempts.get(key)
        if attempt is not None and attempt.state == state and now < attempt.due:
            return False
        pause = FIRST_PAUSE_SECONDS
        if attempt is not None and attempt.state == state:
            pause = min(2 * attempt.pause, LONGEST_PAUSE_SECONDS)
        self._attempts[key] = _Attempt(state, now + pause, pause)
        return True

    def _forget(self, todo: Sequence[Task], records: Sequence[Record]) -> None:
        """What needs no more attempts."""
        keys = {task.key for task in todo} | {record.leader for record in records}
        self._attempts = {key: attempt for key, attempt in self._attempts.items() if key in keys}
        open_still = {address for task in todo for address in task.asked}
        self._problems = {address: problem for address, problem in self._problems.items() if address in open_still}

    # In a thread

    def _bind(self, task: Task) -> _Done:
        machine = self._machine
        try:
            facts = machine.host.facts(task.asked)
            changed: list[Changed] = []
            for plan in plan_groups(task.asked, facts):
                uses = read_uses(machine.root, machine.proc, [member.address for member in plan.change])
                check_free(plan, facts, uses, force=False)
                require_driver(VFIO_PCI, machine.sysfs, machine.load)
                change = [member.address for member in plan.change]
                changed += self._binder.bind(plan.addresses, change, VFIO_PCI, asked=plan.asked, by="configuration")
        except LauncherkitError as error:
            return _Done("bind", task.asked, error=error)
        return _Done("bind", task.asked, changed)

    def _restore_all(self) -> list[_Done]:
        done = []
        for settled in self._binder.recover(wait=False):
            functions = tuple(entry.address for entry in settled.record.entries)
            done.append(_Done("unbind", functions, error=settled.error))
        for record in self._to_restore:
            if record.is_settled:
                functions = tuple(entry.address for entry in record.entries)
                try:
                    done.append(_Done("unbind", functions, self._binder.restore(record)))
                except LauncherkitError as error:
                    done.append(_Done("unbind", functions, error=error))
        return done

    # Back from it

    def _conclude(self, done: Sequence[_Done]) -> None:
        for each in done:
            if each.error is None:
                self._told.pop(each.functions, None)
                for address in each.functions:
                    self._problems.pop(address, None)
                if each.changed:
                    self._metrics.bound(each.action, "done")
                    self._tell_done(each)
                continue
            self._metrics.bound(each.action, "refused" if _is_refusal(each.error) else "failed")
            if each.action == "bind":
                problem = Problem("failed", f"it can't be bound to {VFIO_PCI}: {each.error.message}")
                self._problems.update(dict.fromkeys(each.functions, problem))
            self._tell_error(each)

    def _tell_done(self, done: _Done) -> None:
        words = ", ".join(
            f"{change.address} {change.before or 'no driver'} -> {change.after or 'no driver'}"
            for change in done.changed
        )
        text = f"bound: {words}" if done.action == "bind" else f"given back: {words}"
        self._log("info", text)
        self._events.event("Normal", "DevicesBound" if done.action == "bind" else "DevicesGivenBack", text)

    def _tell_error(self, done: _Done) -> None:
        """Once, for as long as it is the same."""
        assert done.error is not None
        if self._told.get(done.functions) == done.error.message:
            return
        self._told[done.functions] = done.error.message
        log_error(self._log, done.error)
        reason = "BindingFailed" if done.action == "bind" else "GivingBackFailed"
        self._events.event("Warning", reason, done.error.message)


def _state_of(record: Record, host: HostFacts) -> tuple[tuple[PciAddress, str | None], ...]:
    known = ((entry.address, host.functions.get(entry.address)) for entry in record.entries)
    return tuple((address, function.driver if function else None) for address, function in known)


def _is_refusal(error: LauncherkitError) -> bool:
    refusals = (BindRefused, DeviceHeld, HoldersUnknown, NoVfioDriver)
    return all(isinstance(leaf, refusals) for leaf in error.leaves())
