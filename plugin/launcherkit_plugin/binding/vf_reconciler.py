"""Virtual functions by configuration: made where a rule has ``virtualFunctions``, taken away where none has (K12)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from launcherkit.errors import LauncherkitError
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciFunction
from launcherkit_plugin.binding.group import work_key
from launcherkit_plugin.binding.in_use import holders_of
from launcherkit_plugin.binding.vf_maker import VfMaker, VfsChanged
from launcherkit_plugin.binding.vf_plan import VfPlan, VfTask, plan_vfs, vfs_of
from launcherkit_plugin.binding.vf_records import VfRecord
from launcherkit_plugin.host.drivers import STEP_SECONDS
from launcherkit_plugin.host.processes import OpenNodes
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.backoff import Backoff
from launcherkit_plugin.model.config import PciRule, VfSettings
from launcherkit_plugin.model.device import Problem, Usage
from launcherkit_plugin.model.errors import DEVICE_HELD, VFS_REFUSED, BadRecord
from launcherkit_plugin.telemetry.reporter import Reporter

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0
"""Pauses between attempts; they double. A pause ends early when the function has changed."""

Needed: TypeAlias = Callable[[PciAddress], int]
"""Returns how many virtual functions the vGPU layout needs of a function; 0: it says nothing of it."""


class VfReconciler:
    """A `launcherkit_plugin.devices.provider.Reconciler`.

    Args:
        match: returns the rule that applies to a function, if any.
        needed: how many virtual functions a card needs if its rule doesn't say it.
        maker: makes them and takes them away.
        queue: runs that work, one at a time for each function and IOMMU group.
        reporter: receives successes and failures.
    """

    def __init__(
        self,
        match: Callable[[PciFunction], PciRule | None],
        needed: Needed,
        maker: VfMaker,
        queue: WorkQueue,
        reporter: Reporter,
    ) -> None:
        self._match = match
        self._needed = needed
        self._maker = maker
        self._queue = queue
        self._reporter = reporter
        self._attempts = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._records: Mapping[PciAddress, VfRecord] = {}
        self._failed: set[PciAddress] = set()
        """Physical functions of which a problem was reported."""
        self._read()

    def wants(self, function: PciFunction) -> bool:
        """Whether the details of a function have to be read."""
        return not function.is_bridge_by_class and self._wish(function) is not None

    def _wish(self, function: PciFunction) -> VfSettings | None:
        rule = self._match(function)
        return None if rule is None else rule.virtual_functions

    def problem(self, function: PciFunction) -> Problem | None:
        """Why nobody may get a virtual function yet; None if it is ready, or isn't one of ours."""
        record = None if function.physfn is None else self._records.get(function.physfn)
        if record is None or record.state == "made":
            return None
        doing = "being prepared" if record.state == "making" else "being taken away"
        return Problem("driver", f"{function.address} is {doing}, with all virtual functions of {record.physfn}")

    def plan(self, host: HostFacts) -> VfPlan:
        """What would be done on a host."""
        wishes = {
            address: wish
            for address, function in host.functions.items()
            if not function.is_bridge_by_class and (wish := self._wish(function)) is not None
        }
        needed = {address: self._needed(address) for address in wishes}
        return plan_vfs(wishes, self._records, host, needed)

    def reconcile(self, host: HostFacts, usage: Usage, now: float) -> Sequence[asyncio.Task[bool]]:
        """See `launcherkit_plugin.devices.provider.Reconciler`."""
        self._maker.holders.usage = lambda: usage
        broken = self._read(host)
        plan = self.plan(host)
        tasks = {task.physfn: task for task in plan.tasks if task.physfn not in broken}
        problems: dict[PciAddress, LauncherkitError] = {**self._held(tasks, host, usage)}
        problems |= {at: VFS_REFUSED(text, _REMEDY, device=str(at)) for at, text in plan.problems.items()}
        problems |= broken
        for physfn, problem in problems.items():
            self._reporter.problem(("VFs", physfn), problem, _FAILED)
        for physfn in self._failed - problems.keys() - tasks.keys():
            self._reporter.solved(("VFs", physfn))
        self._failed = {*problems, *(self._failed & tasks.keys())}
        self._attempts.forget_others(tasks)
        begun = []
        for physfn, task in tasks.items():
            if physfn in problems or (task.action == "remove" and not usage.known):
                continue
            function = host.functions.get(physfn)
            state = (task.action, task.number, task.vfs, function.driver if function else None)
            if not self._attempts.too_early(physfn, now, state):
                begun += self._begin(task, host, now, state)
        return begun

    def _read(self, host: HostFacts | None = None) -> dict[PciAddress, BadRecord]:
        """Read the records; those that can't be read, and concern virtual functions that still exist, are returned.

        Where there are none any more, there is nothing to take away, and a broken record is removed (T5).
        """
        try:
            self._records, broken = self._maker.records.read()
            gone = [at for at in broken if host is not None and at in host.functions and not vfs_of(at, host)]
            for physfn in gone:
                self._maker.records.remove(physfn)
        except LauncherkitError as error:
            self._reporter.problem("VFs", error)
            return {}
        self._reporter.solved("VFs")
        return {at: error for at, error in broken.items() if at not in gone}

    def _held(
        self, tasks: Mapping[PciAddress, VfTask], host: HostFacts, usage: Usage
    ) -> dict[PciAddress, LauncherkitError]:
        """Why something must not be changed now: a pod has a function."""
        held = {
            task.physfn: next(holders_of([task.physfn, *task.vfs], host, usage, OpenNodes({})), None)
            for task in tasks.values()
        }
        return {
            physfn: DEVICE_HELD(f"the virtual functions of {physfn} stay as they are: {holder}", _WAITS, device=holder)
            for physfn, holder in held.items()
            if holder is not None
        }

    def _begin(self, task: VfTask, host: HostFacts, now: float, state: object) -> list[asyncio.Task[bool]]:
        physfn = task.physfn
        function = host.functions.get(physfn)
        wish = None if function is None else self._wish(function)
        work: Callable[[], VfsChanged | None]
        if task.action == "make" and wish is not None:
            work = partial(self._maker.make, physfn, task.number, wish)
            seconds = 0.0 if wish.program is None else wish.program.timeout
            doing = f"making {task.number} virtual functions of {physfn}"
        else:
            work, seconds = partial(self._maker.remove, physfn), 0.0
            doing = f"taking away the virtual functions of {physfn}"
        seconds += 2 * STEP_SECONDS + 2 * (task.number or len(task.vfs))
        keys = [work_key(each, host) for each in (physfn, *task.vfs)]  # vGPUs are made by the card's own key
        begun = self._queue.begin(str(physfn), doing, work, seconds, also=keys)
        if begun is None:
            return []
        self._attempts.failed(physfn, now, state=state)  # unless it succeeds
        return [asyncio.create_task(self._end(task, begun))]

    async def _end(self, task: VfTask, begun: asyncio.Future[VfsChanged | None]) -> bool:
        physfn = task.physfn
        try:
            changed = await begun
        except LauncherkitError as error:
            self._failed.add(physfn)
            self._reporter.problem(("VFs", physfn), error, _FAILED)
            return True
        finally:
            self._read()
        self._attempts.succeeded(physfn)
        self._reporter.solved(("VFs", physfn))
        if changed is None:
            return False
        if changed.vfs:
            ours = ", ".join(map(str, changed.vfs))
            self._reporter.happened("VirtualFunctionsMade", f"{physfn} has {len(changed.vfs)} VFs now: {ours}")
        else:
            self._reporter.happened("VirtualFunctionsTakenAway", f"{physfn} has no VFs of ours any more")
        return True


_FAILED = "VirtualFunctionsFailed"
_REMEDY = (
    "Change the rule with virtualFunctions, or what the message names. VFs that something else has made are taken away "
    "by hand: echo 0 > /sys/bus/pci/devices/ADDRESS/sriov_numvfs."
)
_WAITS = (
    "Nothing has to be done: it goes on once no pod has one of them, for all VFs of a function are made, and taken "
    "away, together."
)
