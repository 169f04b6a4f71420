"""Binding on demand: functions keep their drivers until one is allocated to a VM, and are bound then (K8).

When one is allocated to a container, they are given back at once (K10).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic

from launcherkit.errors import LauncherkitError
from launcherkit.model.address import PciAddress, PciSlot
from launcherkit.model.host import NO_FACTS, HostFacts, PciFunction
from launcherkit_plugin.binding.binder import Binder, Changed, Done
from launcherkit_plugin.binding.group import (
    GroupToBind,
    as_bound,
    groups_to_bind,
    plan_groups,
    refuse_needed_by_host,
    wanted_functions,
    wants_variants,
    work_key,
)
from launcherkit_plugin.binding.ledger import Record
from launcherkit_plugin.host.kernel_modules import VFIO_PCI
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.backoff import Backoff
from launcherkit_plugin.model.config import PciRule
from launcherkit_plugin.model.device import Device, Problem, Usage
from launcherkit_plugin.model.errors import (
    BINDING_TOO_SLOW,
    GIVING_BACK_TOO_SLOW,
    HOLDERS_UNKNOWN,
    NOT_BOUND_ON_DEMAND,
    NOT_GIVEN_BACK_ON_DEMAND,
)
from launcherkit_plugin.telemetry.metrics import Binding
from launcherkit_plugin.telemetry.reporter import Reporter

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 60.0
"""How long a device is Unhealthy after binding it failed, so that the next pod gets another one. The pause ends early
when a driver has changed."""


class OnDemandBinding:
    """A `launcherkit_plugin.devices.pci.BindsOnDemand` and `launcherkit_plugin.devices.container.GivesBack`.

    Args:
        match: returns the rule that applies to a function, if any.
        binder: binds groups and gives them back.
        queue: runs that work, one at a time for each group.
        reporter: receives successes and failures.
        usage: returns who has which device now, including what was allocated a moment ago.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        match: Callable[[PciFunction], PciRule | None],
        binder: Binder,
        queue: WorkQueue,
        reporter: Reporter,
        usage: Callable[[], Usage],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._match = match
        self._binder = binder
        self._queue = queue
        self._reporter = reporter
        self._usage = usage
        self._clock = clock
        self._host = NO_FACTS
        self._wanted: Mapping[PciAddress, PciRule] = {}
        self._to_bind: Mapping[PciAddress, GroupToBind] = {}
        self._attempts = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._ending: set[asyncio.Task[Done]] = set()
        """Tasks that report work; they outlast a caller that stops waiting."""
        self._stuck: dict[PciAddress, Problem] = {}
        self._on_record: Mapping[PciAddress, Record] = {}
        self._unreadable: Mapping[PciAddress, LauncherkitError] = {}
        self._failed: set[PciAddress] = set()
        """Functions of failed Allocates: a group was bound, then another group of the card failed."""

    def select(self, host: HostFacts) -> None:
        """Determine which functions are to be bound on demand."""
        if host is not self._host:
            self._host = host
            self._wanted = wanted_functions(host, self._match, lambda rule: rule.on_demand)

    # What is advertised

    def foreseen(self, host: HostFacts) -> tuple[HostFacts, Mapping[PciAddress, Problem]]:
        """See `launcherkit_plugin.devices.pci.BindsOnDemand`."""
        self.select(host)
        todo = groups_to_bind(self._wanted, host)
        self._to_bind = {address: group for group in todo for address in group.asked}
        self._attempts.forget_others({group.key for group in todo})
        problems = dict(self._stuck)
        bound: list[PciAddress] = []
        for group in todo:
            problem = self._refusal(group, host)
            if problem is None:
                bound += [address for address, _ in group.state]
            else:
                problems.update(dict.fromkeys(group.asked, problem))
        return as_bound(host, bound, VFIO_PCI), problems

    def _refusal(self, group: GroupToBind, host: HostFacts) -> Problem | None:
        """Why a group can't be bound now, as far as the facts tell; the host is not read again."""
        if (hanging := self._queue.hanging(work_key(group.asked[0], host))) is not None:
            return Problem("failed", hanging)
        if self._attempts.too_early(group.key, self._clock(), group.state):
            return Problem("failed", self._attempts.why(group.key, self._clock()) or "")
        try:
            for plan in plan_groups(group.asked, host):
                refuse_needed_by_host(plan, host, {}, force=False)
        except LauncherkitError as error:
            function = host.functions[group.asked[0]]
            return Problem("no-group" if function.iommu_group is None else "not-viable", error.message)
        return None

    # Allocated to a VM

    async def bind(self, resource: str, devices: Sequence[Device], seconds: float) -> None:
        """See `launcherkit_plugin.devices.pci.BindsOnDemand`."""
        deadline = self._clock() + seconds
        ids = [device.id for device in devices]
        functions = [function for device in devices for function in device.functions]
        self._failed.difference_update(functions)
        # For reservations and claims K3 has been checked: the device has the groups of all functions that are bound.
        binder = self._binder.allocating(resource, ids, lambda _: True)
        bound: list[PciAddress] = []
        for asked in self._groups(functions):
            try:
                variants = wants_variants(asked, self._wanted)
                work = partial(binder.bind_groups, asked, variants=variants)
                done = await self._in_time("bind", asked, work, deadline)
                if done is None or done.error is not None:
                    raise self._failure(resource, asked, seconds, done)
            except LauncherkitError:
                self._failed.update(bound, asked)
                raise
            bound += asked

    def _groups(self, functions: Iterable[PciAddress]) -> list[tuple[PciAddress, ...]]:
        """The functions of each group."""
        groups: dict[str, list[PciAddress]] = {}
        for address in dict.fromkeys(functions):
            groups.setdefault(work_key(address, self._host), []).append(address)
        return list(map(tuple, groups.values()))

    async def _in_time(
        self,
        action: Binding,
        functions: tuple[PciAddress, ...],
        work: Callable[[], Sequence[Changed]],
        deadline: float,
    ) -> Done | None:
        """Run work on a group; None if it hasn't ended in time. If it succeeds later, the group is given back then.

        Raises:
            WORK_HANGS: other work on the group hangs.
        """
        key = work_key(functions[0], self._host)
        doing = f"{'binding' if action == 'bind' else 'giving back'} {', '.join(map(str, functions))}"
        await self._queue.quiet([key], max(deadline - self._clock(), 0.0))
        left = deadline - self._clock()
        if left <= 0:
            return None
        usage = self._usage()
        self._binder.holders.usage = lambda: usage
        begun = self._queue.begin(key, doing, work, left)
        assert begun is not None
        ending = asyncio.create_task(self._end(action, functions, begun))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        done, _ = await asyncio.wait({ending}, timeout=left)
        if not done:
            self._queue.give_up(key)
            return None
        return ending.result()

    async def _end(
        self, action: Binding, functions: tuple[PciAddress, ...], begun: asyncio.Future[Sequence[Changed]]
    ) -> Done:
        done = await Done.of(action, functions, begun)
        done.report(self._reporter)
        if done.action == "unbind":
            self.given_back(done)
            return done
        group = self._to_bind.get(done.functions[0])
        if group is not None and done.error is None:
            self._attempts.succeeded(group.key)
        elif group is not None and done.error is not None:
            failure = f"it can't be bound to {VFIO_PCI}: {done.error.message}"
            self._attempts.failed(group.key, self._clock(), failure, group.state)
        return done

    def _failure(
        self, resource: str, asked: Sequence[PciAddress], seconds: float, done: Done | None
    ) -> LauncherkitError:
        who = ", ".join(map(str, asked))
        if done is None or done.error is None:
            return BINDING_TOO_SLOW(
                f"{resource}: binding {who} to {VFIO_PCI} has taken longer than {seconds:.0f} s",
                "The driver is slow to release it: see `dmesg` on the node. It is given back once that has ended; "
                "a larger bindSeconds in the configuration allows more time.",
                device=who,
                resource=resource,
            )
        return NOT_BOUND_ON_DEMAND(
            f"{resource}: {who} can't be bound to {VFIO_PCI}: {done.error.message}",
            done.error.remedy,
            device=who,
            resource=resource,
        )

    # Allocated to a container

    def stays(self, address: PciAddress) -> Problem | None:
        """See `launcherkit_plugin.devices.container.GivesBack`."""
        if address in self._stuck:
            return self._stuck[address]
        record = self._on_record.get(address)
        for leader, problem in self._unreadable.items():
            if leader in self._group_of(address):
                return Problem("failed", problem.message)
        if record is None:
            return Problem("driver", f"{address} is bound to VFIO, and not by this plugin, which won't give it back")
        if record.by == "command":
            back = f"`launcherkit-plugin unbind {address}` gives it back"
            return Problem("driver", f"{address} was bound to {record.driver_of(address)} by command: {back}")
        if next(entry.driver for entry in record.entries if entry.address == address) is None:
            return Problem("driver", f"{address} had no driver before it was bound to {VFIO_PCI}")
        if self.grace(record) is None:
            return Problem("other-use", f"{address} stays bound to {VFIO_PCI}: giveBack is never in its rule")
        return None

    def _group_of(self, address: PciAddress) -> frozenset[PciAddress]:
        """The members of a function's group: a record is named after the first of them."""
        function = self._host.functions.get(address)
        group = None if function is None else function.iommu_group
        return frozenset((address, *(self._host.groups.get(group, ()) if group is not None else ())))

    def goes_with(self, address: PciAddress) -> frozenset[PciAddress]:
        """See `launcherkit_plugin.devices.container.GivesBack`."""
        records = frozenset(self._on_record.values())
        return frozenset(
            entry.address for record in records if _goes_back(record, {address.slot}) for entry in record.entries
        )

    async def give_back(
        self, resource: str, ids: Sequence[str], addresses: Sequence[PciAddress], seconds: float
    ) -> None:
        """See `launcherkit_plugin.devices.container.GivesBack`. A card's siblings are given back with it.

        A record may have functions of other cards, too. If these are reserved or in a claim, they are in use.
        """
        deadline = self._clock() + seconds
        slots = {address.slot for address in addresses}
        ledger = self._binder.ledger
        binder = self._binder.allocating(resource, ids, lambda address: address.slot in slots)
        for leader, problem in ledger.unreadable().items():
            if any(leader in self._group_of(address) for address in addresses):
                raise problem
        for record in ledger.records():
            if not _goes_back(record, slots):
                continue
            functions = tuple(entry.address for entry in record.entries)
            who = ", ".join(map(str, functions))
            done = await self._in_time("unbind", functions, partial(binder.give_back, record), deadline)
            if done is None:
                raise GIVING_BACK_TOO_SLOW(
                    f"{resource}: giving {who} back to its driver has taken longer than {seconds:.0f} s",
                    "The driver is slow to take it over: see `dmesg` on the node. The next pod finds it with its "
                    "driver; a larger bindSeconds in the configuration allows more time.",
                    device=who,
                    resource=resource,
                )
            if done.error is not None:
                raise NOT_GIVEN_BACK_ON_DEMAND(
                    f"{resource}: {who} can't be given back to its driver: {done.error.message}",
                    done.error.remedy,
                    device=who,
                    resource=resource,
                )

    # No longer needed

    def grace(self, record: Record) -> float | None:
        """How many seconds the functions of a record must be unused before they are given back; None: never."""
        if self._failed & {entry.address for entry in record.entries}:
            return 0.0
        rules = [rule for address in record.asked if (rule := self._wanted.get(address)) is not None]
        if any(rule.give_back == "never" for rule in rules):
            return None
        return max((rule.grace_seconds for rule in rules), default=0.0)

    def given_back(self, done: Done) -> None:
        """Note the result of giving something back."""
        self._failed.difference_update(done.functions)
        for address in done.functions:
            self._stuck.pop(address, None)
        if done.error is not None and done.error.code != HOLDERS_UNKNOWN.code:
            problem = Problem("failed", f"it can't be given back to its driver: {done.error.message}")
            self._stuck.update(dict.fromkeys(done.functions, problem))

    def note_records(self, records: Iterable[Record], unreadable: Mapping[PciAddress, LauncherkitError] = {}) -> None:
        """Note the records that exist, and the errors of those that can't be read; forget all about other functions."""
        self._unreadable = unreadable
        self._on_record = {entry.address: record for record in records for entry in record.entries}
        self._stuck = {address: problem for address, problem in self._stuck.items() if address in self._on_record}

    def note_held(self, record: Record) -> None:
        """Note that a pod has these functions: earlier failures to give them back don't matter any more."""
        for entry in record.entries:
            self._stuck.pop(entry.address, None)


def _goes_back(record: Record, slots: Container[PciSlot]) -> bool:
    """Whether the functions of a record are given back with the card in one of these slots."""
    return record.by != "command" and any(entry.address.slot in slots for entry in record.entries)
