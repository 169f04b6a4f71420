"""Binds the members of an IOMMU group to a VFIO driver, or gives them back: all or none, even if killed midway (K8).

The previous drivers are recorded before anything is changed. So a change that was interrupted can be completed later,
by this process or another one: all members are bound, or all are as they were.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from launcherkit.errors import LauncherkitError
from launcherkit.host.source import Host
from launcherkit.host.use import HostUse, read_uses
from launcherkit.model.address import PciAddress
from launcherkit_plugin.binding.group import plan_groups, refuse_needed_by_host
from launcherkit_plugin.binding.in_use import Holders
from launcherkit_plugin.binding.ledger import LOCK_SECONDS, By, Entry, Ledger, Record, State
from launcherkit_plugin.host.drivers import AWAKE, Sysfs, SysfsSteps
from launcherkit_plugin.host.kernel_modules import VFIO_PCI, require_driver
from launcherkit_plugin.host.vfio_variants import choose_drivers
from launcherkit_plugin.model.errors import (
    BIND_REFUSED,
    DEVICE_HELD,
    HOLDERS_UNKNOWN,
    NO_VFIO_DRIVER,
    STEP_FAILED,
    StepFailed,
    TooSlow,
)
from launcherkit_plugin.telemetry.metrics import Binding
from launcherkit_plugin.telemetry.reporter import Reporter


class Changed(NamedTuple):
    """The drivers of a function before and after a change; None: no driver."""

    address: PciAddress
    before: str | None
    after: str | None


class Done(NamedTuple):
    """The result of binding the groups of some functions, or of giving back those of a record."""

    action: Binding
    functions: tuple[PciAddress, ...]
    changed: Sequence[Changed] = ()
    error: LauncherkitError | None = None

    @staticmethod
    async def of(action: Binding, functions: tuple[PciAddress, ...], work: Awaitable[Sequence[Changed]]) -> Done:
        """The result of work in progress, once it has ended."""
        try:
            return Done(action, functions, await work)
        except LauncherkitError as error:
            return Done(action, functions, error=error)

    def report(self, reporter: Reporter) -> None:
        """Log it, count it, and publish an Event."""
        about = ", ".join(map(str, self.functions))
        if self.error is not None:
            reporter.metrics.bound(self.action, "refused" if _is_refusal(self.error) else "failed")
            reporter.problem(about, self.error, "BindingFailed" if self.action == "bind" else "GivingBackFailed")
            return
        reporter.solved(about)
        if not self.changed:
            return
        reporter.metrics.bound(self.action, "done")
        words = ", ".join(
            f"{change.address} {change.before or 'no driver'} -> {change.after or 'no driver'}"
            for change in self.changed
        )
        if self.action == "bind":
            reporter.happened("DevicesBound", f"bound: {words}")
        else:
            reporter.happened("DevicesGivenBack", f"given back: {words}")


def _is_refusal(error: LauncherkitError) -> bool:
    refusals = (BIND_REFUSED.code, DEVICE_HELD.code, HOLDERS_UNKNOWN.code, NO_VFIO_DRIVER.code)
    return all(leaf.code in refusals for leaf in error.leaves())


class Settled(NamedTuple):
    """The result of completing an interrupted change."""

    record: Record
    end: State | None
    """``bound``, or None if it was undone. Any other state: it is still incomplete, and ``error`` says why."""
    error: LauncherkitError | None = None


class Binder:
    """Changes which drivers functions are bound to. Its methods block.

    Args:
        host: facts about the functions are read from here.
        sysfs: performs the steps.
        ledger: records the previous drivers.
        holders: asked before a function is taken from its driver, while the locks are held.
        proc: where the host's proc file system is mounted.
    """

    def __init__(self, host: Host, sysfs: Sysfs, ledger: Ledger, holders: Holders, proc: str = "/proc") -> None:
        self.host = host
        self.sysfs = sysfs
        self.ledger = ledger
        self.holders = holders
        self._proc = proc

    def allocating(self, resource: str, ids: Collection[str], is_checked: Callable[[PciAddress], bool]) -> Binder:
        """The same for a pod to which devices are being allocated: see `Holders.besides`."""
        holders = self.holders.besides(resource, ids, is_checked)
        return Binder(self.host, self.sysfs, self.ledger, holders, self._proc)

    def uses(self, functions: Sequence[PciAddress]) -> Mapping[PciAddress, Sequence[HostUse]]:
        """See `launcherkit.host.use.read_uses`."""
        return read_uses(self.sysfs.root, self._proc, functions)

    def bind_groups(self, asked: Sequence[PciAddress], *, variants: bool = False) -> list[Changed]:
        """Bind the groups of some functions to vfio-pci, as the configuration says.

        Args:
            asked: functions.
            variants: bind each member to the variant that the kernel has for it, if there is one.

        Raises:
            NotOnHost, BIND_REFUSED, SeveralErrors: a group can't be bound, or the host needs it.
            NO_VFIO_DRIVER: vfio-pci or a variant can't be loaded, or it is unknown which there are.
            LauncherkitError: see `bind`.
        """
        facts = self.host.facts(asked)
        changed: list[Changed] = []
        for plan in plan_groups(asked, facts):
            change = [member.address for member in plan.change]
            refuse_needed_by_host(plan, facts, self.uses(change), force=False)
            require_driver(VFIO_PCI, self.sysfs)
            own = choose_drivers(change, self.sysfs, load=True) if variants else {}
            changed += self.bind(plan.addresses, change, VFIO_PCI, variants=own, asked=plan.asked, by="configuration")
        return changed

    def bind(
        self,
        members: Collection[PciAddress],
        change: Collection[PciAddress],
        driver: str,
        *,
        variants: Mapping[PciAddress, str] = {},
        asked: Sequence[PciAddress] = (),
        by: By = "command",
    ) -> list[Changed]:
        """Bind members of a group to a VFIO driver. If a step fails, all steps are undone.

        Args:
            members: all members of the group except bridges.
            change: those to bind. One that already has the driver stays as it is.
            driver: ``vfio-pci``. A record of the group overrides it: a group has one driver, but for its variants.
            variants: the drivers of members that get another one. One that is on record keeps what it has there.
            asked: the functions that were asked for; the others are bound because they share the group.
            by: who asks for it.

        Raises:
            DEVICE_HELD: a pod or a process has one of them; nothing was done.
            StepFailed, STEP_HANGS: a step failed or hangs. The others are undone, or stay on record to be undone later.
            UnwritableFile, BadRecord: the record can't be written; nothing was done.
        """
        with self._alone_with(members) as sysfs:
            record = self.ledger.find(members) or Record(min(members), driver, by, (), ())
            driver = record.driver  # one for all of a group, but for variants
            # This also completes what an earlier process left incomplete.
            entries = {entry.address: entry for entry in record.entries if sysfs.exists(entry.address)}
            pending = {entry.address for entry in entries.values() if entry.state != "bound"}
            before = {address: sysfs.driver(address) for address in sorted({*change, *pending})}
            aim = {address: _aim(record, address, variants) for address in before}
            todo = [address for address, present in before.items() if present != aim[address]]
            if not todo and not pending:
                return []
            self.holders.check(todo, giving_back=False)
            changing = sorted({*todo, *pending})
            touched = [_entry(sysfs, address, entries.get(address), aim[address], driver) for address in changing]
            merged = entries | {entry.address: entry for entry in touched}
            record = record._replace(
                asked=tuple(sorted({*record.asked, *asked})),
                entries=tuple(merged[address] for address in sorted(merged)),
            )
            self.ledger.write(record)
            self._forward_all(sysfs, record, changing)
            self.ledger.write(_with_state(record, "bound"))
            return [Changed(address, before[address], aim[address]) for address in todo]

    @contextmanager
    def _alone_with(self, addresses: Collection[PciAddress], seconds: float = LOCK_SECONDS) -> Iterator[SysfsSteps]:
        """Lock these functions until the block and every step that it began have ended."""
        with self.ledger.locked(addresses, seconds) as locks, self.sysfs.holding(locks) as steps:
            yield steps

    def _forward_all(self, sysfs: SysfsSteps, record: Record, todo: Sequence[PciAddress]) -> None:
        """Bind all of these, or undo every step of this change."""
        reached: list[PciAddress] = []
        try:
            for address in todo:
                reached.append(address)
                bind_function(sysfs, address, record.driver_of(address))
        except (LauncherkitError, KeyboardInterrupt) as error:
            pending = {entry.address for entry in record.entries if entry.state != "bound"}
            # Nothing more can be done to a device that hangs: every further step would hang behind the first.
            hung = reached[-1:] if isinstance(error, TooSlow) else []
            _, left = self._undo(sysfs, record, pending, hung)
            if left is not None and isinstance(error, LauncherkitError):
                message = f"{error.message}; undoing it failed too: {left.message}"
                raise LauncherkitError.codes()[error.code](message, error.remedy) from error
            raise

    def restore(self, record: Record) -> list[Changed]:
        """Give each function of a record back to the driver that it had.

        Raises:
            DEVICE_HELD, HOLDERS_UNKNOWN: see `Holders.check`; nothing was done.
            StepFailed, STEP_HANGS: a step failed or hangs. Its function stays on record; the others are given back.
        """
        addresses = [entry.address for entry in record.entries]
        with self._alone_with([record.leader, *addresses]) as sysfs:
            present = self.ledger.find(addresses)
            if present is None:
                return []  # another process has just done it
            addresses = [entry.address for entry in present.entries]
            self.holders.check(addresses, giving_back=True)
            before = {address: sysfs.driver(address) for address in addresses}
            _, error = self._undo(sysfs, present, set(addresses))
            if error is not None:
                raise error
            after = {address: sysfs.driver(address) for address in addresses}
            return [Changed(address, before[address], after[address]) for address in addresses]

    def give_back(self, record: Record) -> list[Changed]:
        """Give back the functions of a record; an interrupted change is completed instead.

        Raises:
            LauncherkitError: see `restore` and `Settled.error`.
        """
        self.ledger.remove_void()
        if record.is_settled:
            return self.restore(record)
        settled = self.finish(record, wait=False)
        if settled is not None and settled.error is not None:
            raise settled.error
        return []

    def recover(self, *, wait: bool = True) -> list[Settled]:
        """Complete the changes that other processes left incomplete. A function that is in use is not touched.

        Args:
            wait: whether to wait for a process that may still be working on one; if not, that record is skipped.

        Raises:
            BadRecord, UnwritableFile: the ledger can't be read or written.
        """
        self.ledger.remove_void()
        half_done = [record for record in self.ledger.records() if not record.is_settled]
        return [settled for record in half_done if (settled := self.finish(record, wait=wait)) is not None]

    def finish(self, record: Record, *, wait: bool) -> Settled | None:
        """Complete one change. None if another process has completed it, or is working on it and ``wait`` is false.

        Raises:
            BadRecord, UnwritableFile: as `recover`.
        """
        addresses = [record.leader, *(entry.address for entry in record.entries)]
        with ExitStack() as stack:
            try:
                sysfs = stack.enter_context(self._alone_with(addresses, LOCK_SECONDS if wait else 0.0))
            except TooSlow as busy:
                return Settled(record, "restoring", busy) if wait else None
            present = self.ledger.find(addresses)
            if present is None or present.is_settled:
                return None  # another process has completed it
            return self._settle(sysfs, present)

    def _settle(self, sysfs: SysfsSteps, record: Record) -> Settled:
        """Complete a change, with its locks held: bind the rest if all are bound by now, else undo it."""
        pending = {entry.address for entry in record.entries if entry.state != "bound"}
        try:
            self.holders.check(sorted(pending), giving_back=True)
        except LauncherkitError as error:
            if any(sysfs.driver(address) != record.driver_of(address) for address in pending):
                return Settled(record, "restoring", error)
            pending = set()  # all are bound, and already in use
        forward = all(
            entry.state != "restoring" and sysfs.driver(entry.address) == record.driver_of(entry.address)
            for entry in record.entries
            if entry.address in pending
        )
        if forward:
            try:
                for address in sorted(pending):
                    sysfs.set_power(address, AWAKE)
            except LauncherkitError as error:
                return Settled(record, "binding", error)
            record = _with_state(record, "bound")
            self.ledger.write(record)
            return Settled(record, "bound")
        rest, problem = self._undo(sysfs, record, pending)
        return Settled(record, "restoring" if problem else "bound" if rest else None, problem)

    def _undo(
        self, sysfs: SysfsSteps, record: Record, addresses: Collection[PciAddress], hung: Collection[PciAddress] = ()
    ) -> tuple[Record | None, LauncherkitError | None]:
        """Give back some functions of a record, in reverse order. Those in ``hung`` stay on record.

        Returns the record of what is left, or None if nothing is, and the first error.
        """
        record = record._replace(
            entries=tuple(
                entry._replace(state="restoring") if entry.address in addresses else entry for entry in record.entries
            )
        )
        self.ledger.write(record)
        failure: LauncherkitError | None = None
        given_back: set[PciAddress] = set()
        for entry in reversed(record.entries):
            if entry.address not in addresses or entry.address in hung:
                continue
            try:
                _back(sysfs, entry, record.driver_of(entry.address))
            except LauncherkitError as error:
                failure = failure or error
            else:
                given_back.add(entry.address)
        left = tuple(entry for entry in record.entries if entry.address not in given_back)
        if not left:
            self.ledger.remove(record)
            return None, failure
        record = record._replace(entries=left)
        self.ledger.write(record)
        return record, failure


def _aim(record: Record, address: PciAddress, variants: Mapping[PciAddress, str]) -> str:
    """The VFIO driver to which a function is to be bound: what the record says of it, else its variant."""
    if any(entry.address == address for entry in record.entries):
        return record.driver_of(address)
    return variants.get(address, record.driver)


def _entry(sysfs: SysfsSteps, address: PciAddress, before: Entry | None, aim: str, usual: str) -> Entry:
    """The entry to record: the function's present state, or the one on record if it was changed before."""
    if before is not None:
        return before._replace(state="binding")
    variant = None if aim == usual else aim
    return Entry(address, sysfs.driver(address), sysfs.override(address), "binding", sysfs.power(address), variant)


def bind_function(sysfs: SysfsSteps, address: PciAddress, driver: str) -> None:
    """Bind one function to a driver, from whichever it has; it stays awake.

    Raises:
        StepFailed, STEP_HANGS: a step failed or hangs.
    """
    # Even if it has no driver: the override keeps other drivers from taking it.
    if sysfs.override(address) != driver:
        sysfs.set_override(address, driver)
    present = sysfs.driver(address)
    if present is not None and present != driver:
        sysfs.unbind(address, present)
        if sysfs.driver(address) is not None:
            raise _not_verified(address, f"is bound to {sysfs.driver(address)} after it was unbound from {present}")
    if sysfs.driver(address) != driver:
        sysfs.probe(address)
    if sysfs.driver(address) != driver:
        raise _not_verified(
            address, f"is bound to {sysfs.driver(address) or 'no driver'} after it was offered to {driver}"
        )
    sysfs.set_power(address, AWAKE)  # not earlier: vfio-pci allows runtime suspend when it binds the function


def _back(sysfs: SysfsSteps, entry: Entry, driver: str) -> None:
    """Undo our change of one function. Later changes by others stay."""
    address = entry.address
    if not sysfs.exists(address):
        return
    if sysfs.override(address) == driver and entry.override != driver:
        sysfs.set_override(address, entry.override)
    if entry.driver == driver:
        sysfs.set_power(address, entry.power)
        return
    if sysfs.driver(address) == driver:
        sysfs.unbind(address, driver)
    if sysfs.driver(address) is None and entry.driver is not None:
        # A probe alone isn't enough: if two drivers match, the kernel picks the one that was loaded first.
        if sysfs.has_driver(entry.driver):
            with suppress(StepFailed):  # for example, it matched by a dynamic ID that has been removed
                sysfs.bind(address, entry.driver)
        if sysfs.driver(address) is None:
            sysfs.probe(address)
    present = sysfs.driver(address)
    if not sysfs.exists(address):
        return
    if present != driver and (present is not None or entry.driver is None):
        sysfs.set_power(address, entry.power)
        return
    raise _not_verified(
        address, f"is bound to {present or 'no driver'} and should be bound to {entry.driver or 'no driver'} again"
    )


def _not_verified(address: PciAddress, problem: str) -> StepFailed:
    return STEP_FAILED(f"{address} {problem}", "The kernel's log (dmesg) says why.", device=str(address))


def _with_state(record: Record, state: State) -> Record:
    return record._replace(entries=tuple(entry._replace(state=state) for entry in record.entries))
