"""Binding an IOMMU group, and giving it back, in a thread of `launcherkit_plugin.host.work_queue.WorkQueue`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Container, Sequence
from typing import NamedTuple

from launcherkit.errors import LauncherkitError
from launcherkit.host.source import Host
from launcherkit.host.use import read_uses
from launcherkit.model.address import PciAddress, PciSlot
from launcherkit_plugin.binding.binder import Binder, Changed, CheckFree
from launcherkit_plugin.binding.group import VFIO_PCI, plan_groups, refuse_needed_by_host
from launcherkit_plugin.binding.in_use import Holders, address_in
from launcherkit_plugin.binding.ledger import Ledger, Record
from launcherkit_plugin.host.drivers import Sysfs, modprobe, no_modprobe, require_driver
from launcherkit_plugin.host.processes import OpenNodes
from launcherkit_plugin.model.device import NO_USAGE, Holder, Usage
from launcherkit_plugin.model.errors import BIND_REFUSED, DEVICE_HELD, HOLDERS_UNKNOWN, NO_VFIO_DRIVER
from launcherkit_plugin.telemetry.metrics import Binding
from launcherkit_plugin.telemetry.reporter import Reporter


class Done(NamedTuple):
    """The result for one group or record."""

    action: Binding
    functions: tuple[PciAddress, ...]
    changed: Sequence[Changed] = ()
    error: LauncherkitError | None = None

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


class GroupWork:
    """Binds groups to vfio-pci, and gives them back. Its methods block.

    Args:
        host: facts are read from here.
        ledger: the records of what was bound.
        sysfs: returns a new object that performs the steps; each group needs its own.
        open_nodes: reads which processes have device nodes open: VFIO's, and those passed to it.
        proc: where the host's proc file system is mounted.
    """

    def __init__(
        self,
        host: Host,
        ledger: Ledger,
        *,
        sysfs: Callable[[], Sysfs],
        open_nodes: Callable[..., OpenNodes],
        proc: str,
    ) -> None:
        self.ledger = ledger
        self.usage: Usage = NO_USAGE
        """From the latest turn of the loop, or of the latest Allocate that begins work. Work in progress uses the
        newest value, too."""
        self._host = host
        self._sysfs = sysfs
        self._open_nodes = open_nodes
        self._proc = proc
        self._load = modprobe if os.path.realpath(sysfs().root) == "/" else no_modprobe

    def bind(self, asked: tuple[PciAddress, ...]) -> Done:
        """Bind the groups of some functions, as the configuration says."""
        return self._bind(asked, self._holders(lambda: self.usage))

    def bind_for(self, asked: tuple[PciAddress, ...], resource: str, ids: Collection[str]) -> Done:
        """Bind the groups of some functions for a pod to which devices of a resource are being allocated."""
        # For reservations and claims K3 has been checked: the device has the groups of all functions that are bound.
        holders = self._holders(lambda: _of_others(self.usage, resource, ids, lambda _: True))

        def check(addresses: Sequence[PciAddress], *, giving_back: bool) -> None:  # noqa: ARG001  # it never is
            nodes = holders.users(addresses)
            if not nodes.complete:  # unknown counts as in use (T2)
                who = ", ".join(map(str, addresses))
                raise HOLDERS_UNKNOWN(
                    f"it is unknown whether a process has {who} open: {nodes.unseen}",
                    "Run the daemon as root in the host's PID namespace (in a pod: hostPID).",
                    device=who,
                )

        return self._bind(asked, check)

    def _bind(self, asked: tuple[PciAddress, ...], check: CheckFree) -> Done:
        try:
            sysfs = self._sysfs()
            facts = self._host.facts(asked)
            changed: list[Changed] = []
            for plan in plan_groups(asked, facts):
                uses = read_uses(sysfs.root, self._proc, [member.address for member in plan.change])
                refuse_needed_by_host(plan, facts, uses, force=False)
                require_driver(VFIO_PCI, sysfs, self._load)
                change = [member.address for member in plan.change]
                binder = Binder(self._sysfs(), self.ledger, check)
                changed += binder.bind(plan.addresses, change, VFIO_PCI, asked=plan.asked, by="configuration")
        except LauncherkitError as error:
            return Done("bind", asked, error=error)
        return Done("bind", asked, changed)

    def restore(self, record: Record) -> Done:
        """Give back the functions of a record; an interrupted change is completed instead."""
        return self._restore(record, self._holders(lambda: self.usage))

    def restore_for(self, record: Record, resource: str, ids: Collection[str], slots: Container[PciSlot]) -> Done:
        """The same for a container to which devices of a resource, the cards in some slots, are being allocated.

        A record may have functions of other cards, too. If these are reserved or in a claim, they are in use.
        """
        return self._restore(
            record, self._holders(lambda: _of_others(self.usage, resource, ids, lambda address: address.slot in slots))
        )

    def _restore(self, record: Record, check: CheckFree) -> Done:
        functions = tuple(entry.address for entry in record.entries)
        binder = Binder(self._sysfs(), self.ledger, check)
        try:
            self.ledger.remove_void()
            if record.is_settled:
                return Done("unbind", functions, binder.restore(record))
            settled = binder.finish(record, wait=False)
        except LauncherkitError as error:
            return Done("unbind", functions, error=error)
        return Done("unbind", functions, error=None if settled is None else settled.error)

    def _holders(self, usage: Callable[[], Usage]) -> Holders:
        return Holders(self._host, usage, self._open_nodes, root=self._sysfs().root, proc=self._proc)


def _of_others(usage: Usage, resource: str, ids: Collection[str], is_checked: Callable[[PciAddress], bool]) -> Usage:
    """The devices that others hold.

    Args:
        usage: who holds what.
        resource, ids: what is being allocated, and is left out.
        is_checked: whether K3 has been checked for a function. Its reservation, or its claim, is left out.
    """

    def matters(device: str, holder: Holder) -> bool:
        address = address_in(device)
        return bool(holder.pod) or (address is not None and not is_checked(address))

    held = {
        name: {
            device: holder
            for device, holder in devices.items()
            if matters(device, holder) and not (name == resource and device in ids)
        }
        for name, devices in usage.kept.items()
    }
    return Usage(usage.source, held)


def _is_refusal(error: LauncherkitError) -> bool:
    refusals = (BIND_REFUSED.code, DEVICE_HELD.code, HOLDERS_UNKNOWN.code, NO_VFIO_DRIVER.code)
    return all(leaf.code in refusals for leaf in error.leaves())
