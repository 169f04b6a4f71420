"""Devices of rules with ``release`` are cleaned after a pod, before another one gets them (K11)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from launcherkit.choose.nodes import group_node
from launcherkit.errors import LauncherkitError, UnreadableFile
from launcherkit.host.use import mdevs_on
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.host import NO_FACTS, HostFacts, PciDetail, PciFunction, bound_to_vfio
from launcherkit_plugin.binding.binder import Binder, Changed, Done
from launcherkit_plugin.binding.group import work_key
from launcherkit_plugin.binding.in_use import holders_of
from launcherkit_plugin.binding.lent import Lent, LentDevices
from launcherkit_plugin.host.driver_nodes import read_short
from launcherkit_plugin.host.drivers import STEP_SECONDS
from launcherkit_plugin.host.processes import OpenNodes
from launcherkit_plugin.host.supervised import ProgramFailed, run_program
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.backoff import Backoff
from launcherkit_plugin.model.config import PciRule, Release
from launcherkit_plugin.model.device import Device, Problem, Resource, Usage, without_replica
from launcherkit_plugin.model.errors import (
    CAME_BACK_WRONG,
    DEVICE_HELD,
    DEVICE_UNHEALTHY,
    HOLDERS_UNKNOWN,
    NOT_CLEANED,
)
from launcherkit_plugin.telemetry.reporter import Reporter

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0
"""Pauses between attempts; they double."""
ALLOCATE_SECONDS = 20.0
"""How long an Allocate waits until its devices are clean. The pod that had them has often ended a moment ago."""
MORE_SECONDS = 60.0
"""For what is done beside resetting, or beside the program: giving the device back, looking at it."""
_RECORD_SECONDS = 5.0
_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


class Cleaner:
    """A `launcherkit_plugin.devices.provider.Reconciler`.

    Args:
        match: returns the rule that applies to a function, if any.
        binder: of its host, sysfs and locks; gives devices back to their drivers before a program cleans them.
        lent: the records.
        queue: runs that work, one at a time for each IOMMU group.
        reporter: receives successes and failures.
        usage: returns who has which device now, including what was allocated a moment ago.
        boot: the ID of this boot.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        match: Callable[[PciFunction], PciRule | None],
        binder: Binder,
        lent: LentDevices,
        queue: WorkQueue,
        reporter: Reporter,
        usage: Callable[[], Usage],
        boot: str,
        clock: Callable[[], float],
    ) -> None:
        self._match = match
        self._binder = binder
        self._lent = lent
        self._queue = queue
        self._reporter = reporter
        self._usage = usage
        self._boot = boot
        self._clock = clock
        self._facts = NO_FACTS
        self._attempts = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._ending: set[asyncio.Task[bool]] = set()
        self._advertised: dict[PciAddress, Lent] = {}
        """What records of the devices that were advertised would say, by their primaries."""
        self._lending: set[PciAddress] = set()
        """What is being allocated: it gets its record in the end."""

    def wants(self, function: PciFunction) -> bool:  # noqa: ARG002
        """See `launcherkit_plugin.devices.provider.Reconciler`: the provider of the devices wants their details."""
        return False

    def _rule(self, functions: Sequence[PciAddress]) -> PciRule | None:
        """The rule of a device that has to be cleaned after each pod: that of its first function which has a rule.

        With another configuration another function may be the only one that is still advertised.
        """
        present = (self._facts.functions.get(address) for address in functions)
        rules = (self._match(function) for function in present if function is not None)
        rule = next((rule for rule in rules if rule is not None), None)
        return rule if rule is not None and rule.release is not None else None

    def _unclean_card(self, device: Device, lent: Mapping[str, Lent]) -> Lent | None:
        """The record of a vGPU's card, if that is to be cleaned."""
        record = lent.get(device.card)
        return record if record is not None and self._rule(record.functions) is not None else None

    # What is advertised

    def marked(self, resources: Iterable[Resource], host: HostFacts, usage: Usage) -> tuple[Resource, ...]:
        """The same resources; devices that aren't clean are Unhealthy. A pod's own devices stay Healthy (K4).

        Devices that pods already had when ``release`` was configured are recorded.
        """
        self._facts = host
        held = _ids(usage)
        try:
            lent = _by_function(self._lent.read())
        except UnreadableFile as error:
            self._reporter.problem("cleaning", error)
            return tuple(self._unknown(resource, held, error) for resource in resources)
        self._reporter.solved("cleaning")
        return tuple(self._marked(resource, lent, held, is_known=usage.known) for resource in resources)

    def _unknown(self, resource: Resource, held: frozenset[str], error: LauncherkitError) -> Resource:
        """The devices while it is unknown which of them are clean."""
        marked = {
            key: device._replace(problem=Problem("cleaning", error.message))
            for key, device in resource.devices.items()
            if self._rule(_card_of(device)) is not None and held.isdisjoint(device.card_ids)
        }
        return resource._replace(devices={**resource.devices, **marked}) if marked else resource

    def _marked(
        self, resource: Resource, lent: Mapping[str, Lent], held: frozenset[str], *, is_known: bool
    ) -> Resource:
        marked: dict[str, Device] = {}
        for key, device in resource.devices.items():
            if device.card:  # a vGPU isn't clean while its card isn't
                record = self._unclean_card(device, lent)
                if record is not None and is_known and held.isdisjoint((*record.ids, *device.card_ids)):
                    marked[key] = device._replace(problem=_problem(record))
                continue
            if self._rule(device.functions[:1]) is None:
                continue
            primary, of_pod = device.functions[0], Lent.to_pod(resource.name, device, self._clock())
            record, self._advertised[primary] = lent.get(str(primary)), of_pod
            if of_pod.is_among(held):
                if record is None and primary not in self._lending:
                    self._record(of_pod)
            elif record is not None and is_known:
                marked[key] = device._replace(problem=_problem(record))
        return resource._replace(devices={**resource.devices, **marked}) if marked else resource

    def _record(self, lent: Lent) -> None:
        """Record a device that a pod had before ``release`` was configured; if that fails, a later turn does it."""
        about = ("recording", lent.functions[0])
        try:
            self._lent.write(lent)
        except LauncherkitError as error:
            self._reporter.problem(about, error)
        else:
            self._reporter.solved(about)

    # Allocated to a pod

    @asynccontextmanager
    async def lending(self, resource: Resource, ids: Sequence[str]) -> AsyncIterator[None]:
        """Clean devices for a pod to which they are allocated in the block, and record at its end that it has them.

        Raises:
            DEVICE_UNHEALTHY: one can't be cleaned, or takes longer than `ALLOCATE_SECONDS`.
            WORK_HANGS: other work on it takes longer.
            UnwritableFile: the pod must not get them.
        """
        devices = [resource.devices[key] for key in ids]
        self._refuse_unclean_cards(resource, [device for device in devices if device.card])
        rules = {device: rule for device in devices if (rule := self._rule(device.functions[:1])) and not device.card}
        own = {device.functions[0] for device in rules}
        self._lending |= own
        try:
            deadline = asyncio.get_running_loop().time() + ALLOCATE_SECONDS
            for device, rule in rules.items():
                await self._make_ready(resource, ids, device, rule, deadline)
            yield
            records = [Lent.to_pod(resource.name, device, self._clock()) for device in rules]
            if records:
                doing = "recording which devices pods get"
                await self._queue.run("records", doing, lambda: list(map(self._lent.write, records)), _RECORD_SECONDS)
        finally:
            self._lending -= own

    def _refuse_unclean_cards(self, resource: Resource, vgpus: Sequence[Device]) -> None:
        lent = _by_function(self._lent.read()) if vgpus else {}
        for device in vgpus:
            if (record := self._unclean_card(device, lent)) is not None:
                raise _not_clean(resource, device, record)

    async def _make_ready(
        self, resource: Resource, ids: Sequence[str], device: Device, rule: PciRule, deadline: float
    ) -> None:
        """Clean a device if it isn't clean: the pod that had it has ended, or the kubelet wouldn't allocate it."""
        address = device.functions[0]
        await self._queue.quiet([work_key(address, self._facts)], ALLOCATE_SECONDS)
        lent = _by_function(self._lent.read()).get(str(address))
        if lent is not None and not lent.resource:
            lent = Lent.to_pod(resource.name, device, self._clock())
        if lent is not None and not self._is_shut_away(lent):
            usage = self._usage()
            self._binder.holders.usage = lambda: usage
            work = self._begin(lent, rule, self._binder.allocating(resource.name, ids, lambda _: True))
            await asyncio.wait({work}, timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
        if lent is not None and (lent := _by_function(self._lent.read()).get(str(address))) is not None:
            raise _not_clean(resource, device, lent)

    # No pod has it any more

    def reconcile(self, host: HostFacts, usage: Usage, now: float) -> Sequence[asyncio.Task[bool]]:
        """See `launcherkit_plugin.devices.provider.Reconciler`: begins to clean what no pod has."""
        self._facts = host
        begun = list(self._ending)
        if not usage.known:
            return begun
        self._binder.holders.usage = lambda: usage
        try:
            lent, held = self._lent.read(), _ids(usage)
        except UnreadableFile:  # which `marked` reports
            return begun
        self._attempts.forget_others(lent.keys())
        for address, recorded in lent.items():
            # Of a broken record the functions and IDs are known once the device was advertised.
            device = recorded if recorded.resource else self._advertised.get(address)
            rule = None if device is None else self._rule(device.functions)
            if device is None or rule is None or device.is_among(held) or self._is_shut_away(device):
                continue
            if next(holders_of(device.functions, host, usage, OpenNodes({})), None) is not None:
                continue  # another function of its group or slot
            if self._queue.is_busy(work_key(address, host)) or self._attempts.too_early(address, now):
                continue
            self._attempts.failed(address, now)  # unless it succeeds
            begun.append(self._begin(device, rule, self._binder))
        return begun

    def _begin(self, lent: Lent, rule: PciRule, binder: Binder) -> asyncio.Task[bool]:
        address, release = lent.functions[0], rule.release
        seconds = len(lent.functions) * STEP_SECONDS if not isinstance(release, tuple) else release.timeout
        work = partial(self._clean, lent, rule, binder)
        begun = self._queue.begin(work_key(address, self._facts), f"cleaning {address}", work, seconds + MORE_SECONDS)
        assert begun is not None
        ending = asyncio.create_task(self._end(lent, begun))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    async def _end(self, lent: Lent, begun: asyncio.Future[Sequence[Changed]]) -> bool:
        address, about = lent.functions[0], ("cleaning", lent.functions[0])
        try:
            changed = await begun
        except LauncherkitError as error:
            is_refusal = error.code in (DEVICE_HELD.code, HOLDERS_UNKNOWN.code)
            self._reporter.metrics.cleaned("refused" if is_refusal else "failed")
            reason = "DeviceQuarantined" if error.code == CAME_BACK_WRONG.code else "CleaningFailed"
            self._reporter.problem(about, error, reason)
            return True
        Done("unbind", lent.functions, changed).report(self._reporter)
        self._attempts.succeeded(address)
        self._reporter.solved(about)
        self._reporter.metrics.cleaned("done")
        self._reporter.happened("DeviceCleaned", f"{lent.resource}: {address} is clean again after a pod had it")
        return True

    def _clean(self, lent: Lent, rule: PciRule, binder: Binder) -> Sequence[Changed]:
        """Clean a device, and remove its record; blocks.

        Raises:
            NOT_CLEANED, CAME_BACK_WRONG, DEVICE_HELD, HOLDERS_UNKNOWN, UnwritableFile: the record stays.
        """
        if lent.state != "cleaning":
            lent = lent._replace(state="cleaning", since=int(self._clock()), text="", seen="")
            self._lent.write(lent)
        try:
            changed = _cleaned(lent, rule, binder)
        except LauncherkitError as error:
            if error.code == CAME_BACK_WRONG.code:
                lent = lent._replace(state="quarantined", since=int(self._clock()), seen=self._stay(lent))
            if error.message != lent.text:
                self._lent.write(lent._replace(text=error.message))
            raise
        self._lent.remove(lent)
        return changed

    def _is_shut_away(self, lent: Lent) -> bool:
        """Whether it is in quarantine, which ends when the card was off the bus meanwhile, or the machine booted."""
        return lent.state == "quarantined" and lent.seen == self._stay(lent)

    def _stay(self, lent: Lent) -> str:
        """Identifies the stay of a device on the bus: a function that is found again gets another inode."""
        inodes = []
        for address in lent.functions:
            try:
                inodes.append(str(os.stat(f"{self._binder.sysfs.root}/sys/bus/pci/devices/{address}").st_ino))
            except OSError:
                inodes.append("gone")
        return " ".join([self._boot, *inodes])


def _ids(usage: Usage) -> frozenset[str]:
    return frozenset(map(without_replica, usage.kept_ids))


def _card_of(device: Device) -> Sequence[PciAddress]:
    """The primary of a card, of a vGPU that of its card; nothing if that is no PCI function."""
    try:
        return [PciAddress.parse(device.card)] if device.card else device.functions[:1]
    except ValueError:
        return []


def _by_function(lent: Mapping[PciAddress, Lent]) -> dict[str, Lent]:
    """The records by each of their functions."""
    return {str(function): record for record in lent.values() for function in record.functions}


def _not_clean(resource: Resource, device: Device, lent: Lent) -> LauncherkitError:
    return DEVICE_UNHEALTHY(
        f"{resource.name}: {_problem(lent).text}",
        "It is offered again once it is clean; the next pod gets another device if there is one.",
        device=device.id,
        resource=resource.name,
    )


def _problem(lent: Lent) -> Problem:
    text = lent.text or f"{lent.functions[0]} is not clean yet since a pod had it"
    return Problem("quarantined" if lent.state == "quarantined" else "cleaning", text)


def _cleaned(lent: Lent, rule: PciRule, binder: Binder) -> Sequence[Changed]:
    """Clean a device, and look at it; returns what was given back to its driver for that.

    Raises:
        LauncherkitError: as `Cleaner._clean`.
    """
    failure: LauncherkitError | None = None
    changed = _given_back(lent, rule, binder) if isinstance(rule.release, tuple) else []
    with binder.ledger.locked(lent.functions) as locks:
        binder.holders.check(lent.functions, giving_back=True)
        _refuse_used(lent, binder)
        assert rule.release is not None
        try:
            _do(rule.release, lent, binder, locks)
        except LauncherkitError as error:
            failure = error
        _check_answers(lent, binder)
    if failure is not None:
        raise failure
    return changed


def _refuse_used(lent: Lent, binder: Binder) -> None:
    """Check that nothing uses functions through the drivers that they have on the host.

    Raises:
        DEVICE_HELD: a process, the host or a guest does, or may.
        HOLDERS_UNKNOWN: it is unknown whether a process does.
    """
    facts = binder.host.facts(lent.functions)
    with_host: list[PciAddress] = []
    for address in lent.functions:
        function, detail = facts.functions.get(address), facts.details.get(address)
        if function is None or function.driver is None or bound_to_vfio(function, detail):
            continue
        with_host.append(address)
        if detail is not None and detail.virtfns:
            binder.holders.check(detail.virtfns, giving_back=True)
    if not with_host:
        return
    nodes = binder.holders.users(with_host)
    if not nodes.complete:
        raise HOLDERS_UNKNOWN(
            f"it is unknown whether a process has {lent.functions[0]} open: {nodes.unseen}",
            "Run the daemon as root in the host's PID namespace (in a pod: hostPID).",
            device=str(lent.functions[0]),
        )
    for address, uses in binder.uses(with_host).items():
        for use in uses:
            if use.vital:
                raise _used(address, f"is in use by this host: {use.text}")
        _refuse_used_mdevs(address, binder, nodes)


def _refuse_used_mdevs(address: PciAddress, binder: Binder, nodes: OpenNodes) -> None:
    mdevs = [MdevAddress(uuid) for uuid in mdevs_on(binder.sysfs.root, address)]
    facts = binder.host.facts((), mdevs).mdevs if mdevs else {}
    held = _ids(binder.holders.usage())
    for mdev in mdevs:
        fact = facts.get(mdev.uuid)
        node = group_node(None if fact is None else fact.iommu_group)
        if mdev.uuid in held or node in nodes.holders:
            raise _used(address, f"has the mediated device {mdev.uuid}, which a guest has")


def _used(address: PciAddress, how: str) -> LauncherkitError:
    return DEVICE_HELD(f"{address} {how}", "End that first: a device in use is never cleaned.", device=str(address))


def _given_back(lent: Lent, rule: PciRule, binder: Binder) -> list[Changed]:
    """Give a device back that was bound on demand: a program may need the driver of the host."""
    if not rule.on_demand or rule.give_back == "never":
        return []
    own = set(lent.functions)
    return [
        changed
        for record in binder.ledger.records()
        if record.by == "configuration" and not own.isdisjoint(entry.address for entry in record.entries)
        for changed in binder.give_back(record)
    ]


def _do(release: Release, lent: Lent, binder: Binder, locks: Sequence[int]) -> None:
    """Clean a device, whose functions are locked.

    Raises:
        NOT_CLEANED: it failed.
    """
    primary = lent.functions[0]
    try:
        if isinstance(release, tuple):
            addresses = " ".join(map(str, lent.functions))
            env = {**_ENV, "LAUNCHERKIT_ADDRESSES": addresses, "LAUNCHERKIT_RESOURCE": lent.resource}
            run_program(release.command, env, release.timeout, locks)
            return
        if not binder.sysfs.can_reset(primary):
            raise ProgramFailed("the kernel knows no way to reset it: there is no file `reset`")
        with binder.sysfs.holding(locks) as steps:
            for address in filter(steps.can_reset, lent.functions):
                steps.reset(address)
    except (LauncherkitError, ProgramFailed) as problem:
        program = f"{release.command[0]}: " if isinstance(release, tuple) else ""
        raise _not_cleaned(lent, f"{program}{problem}") from problem


def _not_cleaned(lent: Lent, reason: str) -> LauncherkitError:
    return NOT_CLEANED(
        f"{lent.functions[0]} can't be cleaned: {reason}",
        "It is tried again, after growing pauses, and no pod gets it until then. Mend what the message says; by hand, "
        "run the program with the variables that it gets.",
        device=str(lent.functions[0]),
    )


def _check_answers(lent: Lent, binder: Binder) -> None:
    """Check that a device that was cleaned answers (V3).

    Raises:
        CAME_BACK_WRONG: it doesn't.
        NOT_CLEANED: that is unknown (T2).
    """
    host = binder.host.facts(lent.functions)
    for address in lent.functions:
        if address in host.unknown:
            raise _not_cleaned(lent, f"{address} can't be read: {host.unknown[address]}")
        wrong = _wrong(host.functions.get(address), host.details.get(address), binder.sysfs.root)
        if wrong:
            raise CAME_BACK_WRONG(
                f"{lent.functions[0]} is in quarantine: {address} {wrong}",
                "See the kernel's log (dmesg). It is tried again once the card was taken off the bus and found again "
                "(echo 1 > /sys/bus/pci/devices/ADDRESS/remove; echo 1 > /sys/bus/pci/rescan), and after a reboot.",
                device=str(lent.functions[0]),
            )


def _wrong(function: PciFunction | None, detail: PciDetail | None, root: str) -> str:
    """What is wrong with a function; empty if nothing is."""
    if function is None:
        return "is no longer on the bus"
    if detail is not None and not detail.config_readable:
        return "reads all ones from config space"
    if detail is not None and detail.power_state == "D3cold" and bound_to_vfio(function, detail):
        return "is in D3cold"
    if not function.is_vf and _has_no_link(f"{root}/sys/bus/pci/devices/{function.address}"):
        return "has no PCIe link any more"
    return ""


def _has_no_link(device: str) -> bool:
    """Whether a function has lanes of which none is in use. A VF, and a device in the root complex, has no link."""
    lanes, most = (read_short(f"{device}/{name}_link_width") for name in ("current", "max"))
    return lanes is not None and lanes.strip() == "0" and (most or "0").strip() not in ("0", "255")
