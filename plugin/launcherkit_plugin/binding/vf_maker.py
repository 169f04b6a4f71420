"""Makes the virtual functions of a function, or takes them away: all of it or nothing, even if killed midway (K12).

What was there before is recorded before anything is changed, so a change that was interrupted can be completed, or
undone, by this process or another one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from launcherkit.errors import LauncherkitError, UnreadableFile, counted
from launcherkit.host.source import Host
from launcherkit.host.use import out_of_sight, read_uses
from launcherkit.model.address import PciAddress
from launcherkit.model.host import is_vfio_name
from launcherkit_plugin.binding.binder import bind_function
from launcherkit_plugin.binding.in_use import Holders
from launcherkit_plugin.binding.ledger import Ledger
from launcherkit_plugin.binding.vf_plan import macs_for
from launcherkit_plugin.binding.vf_records import VfRecord, VfRecords, wish_text
from launcherkit_plugin.host.driver_nodes import read_short
from launcherkit_plugin.host.drivers import Sysfs, SysfsSteps
from launcherkit_plugin.host.kernel_modules import require_driver
from launcherkit_plugin.host.supervised import ProgramFailed, run_program
from launcherkit_plugin.host.vf_network import NetworkRefused, VfNetwork, set_networks
from launcherkit_plugin.model.config import VfSettings
from launcherkit_plugin.model.errors import VFS_NOT_MADE, VFS_REFUSED, TooSlow

PROGRAM_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
_REPRESENTOR = re.compile(r"vf\d+$")
"""The end of the port's name of an interface that stands for a VF, in a NIC's switchdev mode."""


class VfsChanged(NamedTuple):
    """The virtual functions of a function after a change; none: they were taken away."""

    physfn: PciAddress
    vfs: tuple[PciAddress, ...]


class VfMaker:
    """Makes virtual functions, and takes them away. Its methods block.

    Args:
        host: facts are read from here.
        sysfs: performs the steps.
        ledger: its locks keep other processes from the same functions.
        records: what was made.
        holders: asked, while the locks are held, before anything is taken away.
        proc: where the host's proc file system is mounted.
        set_networks: see `launcherkit_plugin.host.vf_network`.
    """

    def __init__(
        self,
        host: Host,
        sysfs: Sysfs,
        ledger: Ledger,
        records: VfRecords,
        holders: Holders,
        proc: str,
        set_networks: Callable[[str, Sequence[VfNetwork]], None] = set_networks,
    ) -> None:
        self.sysfs = sysfs
        self.records = records
        self.holders = holders
        self._host = host
        self._ledger = ledger
        self._proc = proc
        self._set_networks = set_networks

    def make(self, physfn: PciAddress, number: int, wish: VfSettings) -> VfsChanged:
        """Make so many virtual functions and prepare them. If a step fails, all of them are taken away again.

        Raises:
            VFS_REFUSED: the host needs the function, or it has other VFs; nothing was done.
            DEVICE_HELD: a pod or process has it; nothing was done.
            NO_VFIO_DRIVER: the driver for them can't be loaded; nothing was done.
            VFS_NOT_MADE, StepFailed, STEP_HANGS: a step failed or hangs.
            UnwritableFile, BadRecord: the record can't be written; nothing was done.
        """
        with self._alone_with([physfn]) as (sysfs, locks):
            self._refuse_needed(physfn, ())
            self.holders.users([physfn])
            if wish.driver is not None and not sysfs.has_driver(wish.driver):
                require_driver(wish.driver, sysfs)
            record, existing = self.records.find(physfn), sysfs.numvfs(physfn)
            if existing not in (0, number) or (existing and record is None):
                raise _refused(physfn, f"has {counted(existing, 'virtual function')} that something else has made")
            if existing:  # an interrupted change is completed
                self.holders.check(sysfs.vfs(physfn), giving_back=True)
            before = sysfs.autoprobe(physfn) if record is None else record.autoprobe
            record = VfRecord(physfn, number, before, wish_text(wish), "making")
            self.records.write(record)
            try:
                vfs = self._make_all(sysfs, record, wish, locks)
            except (LauncherkitError, KeyboardInterrupt) as error:
                if not isinstance(error, TooSlow):  # every further step would hang behind that one
                    self._undo(sysfs, record, error)
                raise
            self.records.write(record._replace(state="made"))
            return VfsChanged(physfn, vfs)

    def _make_all(
        self, sysfs: SysfsSteps, record: VfRecord, wish: VfSettings, locks: Sequence[int]
    ) -> tuple[PciAddress, ...]:
        physfn, number = record.physfn, record.number
        sysfs.set_autoprobe(physfn, wish.autoprobe)
        if sysfs.numvfs(physfn) != number:
            sysfs.set_numvfs(physfn, number, number)
        vfs = sysfs.vfs(physfn)
        if len(vfs) != number:
            sysfs.set_numvfs(physfn, 0, number)  # a driver may make fewer, and say so only in the kernel's log
            raise _not_made(physfn, f"{number} were requested, and there are {len(vfs)}")
        with self._ledger.locked(vfs) as more:
            try:
                if wish.sets_network:
                    interface, own = self._interface(physfn)
                    macs = [None] * number if wish.mac is None else macs_for(wish.mac, own, number)
                    self._set_networks(interface, [VfNetwork(mac, wish.trust, wish.spoofcheck) for mac in macs])
                if wish.program is not None:
                    env = {"LAUNCHERKIT_PHYSFN": str(physfn), "LAUNCHERKIT_ADDRESSES": " ".join(map(str, vfs))}
                    program = wish.program
                    run_program(program.command, {**PROGRAM_ENV, **env}, program.timeout, (*locks, *more))
            except (NetworkRefused, ValueError) as problem:
                raise _not_made(physfn, str(problem)) from problem
            except ProgramFailed as problem:
                assert wish.program is not None
                raise _not_made(physfn, f"{wish.program.command[0]}: {problem}") from problem
            for vf in vfs:
                if wish.driver is not None and sysfs.driver(vf) != wish.driver:
                    bind_function(sysfs, vf, wish.driver)
        return vfs

    def _interface(self, physfn: PciAddress) -> tuple[str, str]:
        """The network interface of a function, and its MAC address."""
        folder = f"{self.sysfs.root}/sys/bus/pci/devices/{physfn}/net"
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            names = []
        own = [name for name in names if not _REPRESENTOR.search(_port_name(f"{folder}/{name}"))]
        if len(own) != 1:
            listed = ", ".join(own) or "none"
            raise _not_made(physfn, f"mac, trust and spoofcheck need its network interface, and it has {listed}")
        return own[0], _read(f"{folder}/{own[0]}/address")

    def remove(self, physfn: PciAddress) -> VfsChanged | None:
        """Take away the virtual functions that were made; None if there is nothing to do any more.

        Raises:
            VFS_REFUSED: the host needs the function or one of them; nothing was done.
            DEVICE_HELD, HOLDERS_UNKNOWN: see `Holders.check`; nothing was done.
            StepFailed, STEP_HANGS: a step failed or hangs. The record stays.
        """
        with self._alone_with([physfn, *self.sysfs.vfs(physfn)]) as (sysfs, _):
            record = self.records.find(physfn)
            if record is None:
                return None
            if sysfs.exists(physfn):
                vfs = sysfs.vfs(physfn)
                if vfs and len(vfs) == record.number:
                    self._refuse_needed(physfn, vfs)
                    self.holders.users([physfn])
                    self.holders.check(vfs, giving_back=True)
                record = record._replace(state="removing")
                self.records.write(record)
                self._take_away(sysfs, record)
            self.records.remove(physfn)
            return VfsChanged(physfn, ())

    @contextmanager
    def _alone_with(self, functions: Sequence[PciAddress]) -> Iterator[tuple[SysfsSteps, Sequence[int]]]:
        with self._ledger.locked(functions) as locks, self.sysfs.holding(locks) as steps:
            yield steps, locks

    def _undo(self, sysfs: SysfsSteps, record: VfRecord, error: BaseException) -> None:
        """Take away what was begun. What can't be taken away stays on record."""
        try:
            vfs = sysfs.vfs(record.physfn)
            if vfs:
                self.holders.check(vfs, giving_back=True)
            self.records.write(record._replace(state="removing"))
            self._take_away(sysfs, record)
            self.records.remove(record.physfn)
        except LauncherkitError as problem:
            if isinstance(error, LauncherkitError):
                message = f"{error.message}; taking them away failed too: {problem.message}"
                raise LauncherkitError.codes()[error.code](message, error.remedy) from error

    def _take_away(self, sysfs: SysfsSteps, record: VfRecord) -> None:
        """Take all away, and set what the kernel does with new ones. Later changes by others stay."""
        physfn = record.physfn
        if sysfs.numvfs(physfn) == record.number:
            sysfs.set_numvfs(physfn, 0, record.number)
            if left := sysfs.numvfs(physfn):
                raise VFS_NOT_MADE(
                    f"{physfn} still has {left} virtual functions after 0 was written to sriov_numvfs",
                    "The kernel's log (dmesg) says why.",
                    device=str(physfn),
                )
        if record.autoprobe is not None:
            sysfs.set_autoprobe(physfn, record.autoprobe)

    def _refuse_needed(self, physfn: PciAddress, vfs: Sequence[PciAddress]) -> None:
        """Refuse what would take something from the host. A NIC may be up: its VFs have no link otherwise.

        Raises:
            VFS_REFUSED: the host needs a function.
        """
        uses = read_uses(self.sysfs.root, self._proc, [physfn, *vfs])
        is_nic = _read(f"{self.sysfs.root}/sys/bus/pci/devices/{physfn}/class").startswith("0x02")
        for address, of_one in uses.items():
            for use in of_one:
                if use.vital or address != physfn or not is_nic:
                    raise _refused(address, f"is in use by this host: {use.text}")
        unknown = None if self.sysfs.driver(physfn) is None else out_of_sight(self.sysfs.root, self._proc, physfn)
        if unknown is not None:
            raise _refused(physfn, f"may be in use by this host: it can't be seen here {unknown}")
        if is_vfio_name(self.sysfs.driver(physfn)):
            raise _refused(physfn, f"is bound to {self.sysfs.driver(physfn)}, and a guest may have it")


def _read(path: str) -> str:
    return (read_short(path) or "").strip()


def _port_name(interface: str) -> str:
    """The name of an interface's port; empty if its driver doesn't know it, and reading it is an error."""
    with suppress(UnreadableFile):
        return _read(f"{interface}/phys_port_name")
    return ""


def _refused(physfn: PciAddress, reason: str) -> LauncherkitError:
    return VFS_REFUSED(
        f"{physfn} {reason}",
        "Stop using it on the host, and take away VFs that something else has made: echo 0 > "
        f"/sys/bus/pci/devices/{physfn}/sriov_numvfs. Or leave it out of the rule with virtualFunctions.",
        device=str(physfn),
    )


def _not_made(physfn: PciAddress, reason: str) -> LauncherkitError:
    return VFS_NOT_MADE(
        f"{physfn} gets no virtual functions: {reason}",
        "It is tried again, after growing pauses. The kernel's log (dmesg) may say more.",
        device=str(physfn),
    )
