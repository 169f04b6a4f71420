"""Prepares and unprepares ResourceClaims (D7, D8).

The record is written last and removed last. So if the process is killed at any moment, there is either a claim with a
record, which the kubelet's next call completes, or files without a record, which the next start removes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from launcherkit.atomic import Disk
from launcherkit.errors import LauncherkitError, UnwritableFile
from launcherkit_plugin.dra.claim_files import (
    ClaimPlaces,
    files_left,
    files_of,
    is_in_place,
    leftover_files,
    prepared,
    remove_empty,
    told,
)
from launcherkit_plugin.dra.claim_queue import ClaimQueue, ReportStep
from launcherkit_plugin.dra.claim_record import Checkpoint, ClaimRecord, ClaimRecords, PreparedDevice
from launcherkit_plugin.dra.resource_claim import AllocatedClaim, allocated, check_names
from launcherkit_plugin.dra.shares import ListedDevice, given_devices, shares_of
from launcherkit_plugin.model.device import ClaimRef, Desired, Grant, Holder
from launcherkit_plugin.model.errors import BAD_RESOURCE_CLAIM, CLAIM_FILES_FAILED
from launcherkit_plugin.model.wakeups import Wakeup

T = TypeVar("T")

GET_SECONDS, AGAIN_SECONDS = 10.0, 2.0
"""How long to wait for the API server to return a claim, and one that is already prepared."""


class ClaimReader(Protocol):
    """`launcherkit_plugin.cluster.socket.ClusterSocket`."""

    async def get_claim(self, namespace: str, name: str, uid: str, seconds: float) -> dict[str, Any]: ...


class ClaimAllocator(Protocol):
    """`launcherkit_plugin.allocation.allocator.Allocator`."""

    @asynccontextmanager
    def claiming(self, holder: Holder, wanted: Sequence[Desired]) -> AsyncIterator[Sequence[Grant]]: ...

    def claimed(self, by: str, held: Mapping[str, Mapping[str, Holder]], *, known: bool = True) -> None: ...


class OfClaimInThread(Protocol):
    """Runs work that may hang, because a disk does, elsewhere than in the event loop's thread (K9)."""

    def __call__(self, claim: str, work: Callable[[], T], /) -> Awaitable[T]: ...


async def _at_once(_: str, work: Callable[[], T], /) -> T:
    return work()


class Preparer:
    """Prepares and unprepares claims; both are idempotent.

    Args:
        places: the paths of the files.
        allocator: allocates the devices.
        reader: reads claims from the API server.
        queue: see `ClaimQueue`.
        wake: called when a claim has got or lost devices.
        environment: returns whether containers get the variables of E1.
        boot: the ID of this boot.
        disk: writes and removes files.
        in_thread: runs what writes and removes files.
    """

    def __init__(  # noqa: PLR0913  # each is a thing of its own
        self,
        places: ClaimPlaces,
        allocator: ClaimAllocator,
        reader: ClaimReader,
        queue: ClaimQueue,
        wake: Callable[[Wakeup], object],
        *,
        environment: Callable[[], bool] = lambda: True,
        boot: str = "",
        disk: Disk | None = None,
        in_thread: OfClaimInThread = _at_once,
    ) -> None:
        self._places = places
        self._allocator = allocator
        self._reader = reader
        self._queue = queue
        self._wake = wake
        self._environment = environment
        self._boot = boot
        self._disk = disk or Disk()
        self._in_thread = in_thread
        self._checkpoint = Checkpoint(places.records, boot, self._disk, partial(told, places))
        self._listed: Mapping[str, ListedDevice] = {}

    def listed(self, devices: Mapping[str, ListedDevice]) -> None:
        """Set the published devices, by their names there."""
        self._listed = devices

    def held(self) -> ClaimRecords:
        """Read the records, and make the allocator hold the devices of claims."""
        return self._hold(self._checkpoint.read())

    def _hold(self, records: ClaimRecords) -> ClaimRecords:
        listed = {name: (each.published.resource, each.published.id) for name, each in self._listed.items()}
        held, known = records.held(listed)
        self._allocator.claimed(self._places.driver, held, known=known)
        return records

    async def prepare(self, ref: ClaimRef) -> tuple[PreparedDevice, ...]:
        """Prepare the devices of a claim.

        Raises:
            LauncherkitError: it can't be prepared; nothing is left half done.
        """
        check_names(ref)
        return await self._queue.run(ref, lambda report: self._prepare(ref, report))

    async def unprepare(self, ref: ClaimRef) -> None:
        """Unprepare a claim; does nothing if it wasn't prepared.

        Raises:
            CLAIM_FILES_FAILED: a file can't be removed; the claim keeps its devices.
            PREPARE_LATE: it takes too long.
        """
        check_names(ref)
        await self._queue.run(ref, lambda report: self._unprepare(ref, report))

    async def _prepare(self, ref: ClaimRef, report: ReportStep) -> tuple[PreparedDevice, ...]:
        records = self.held()
        broken = records.broken.get(ref.uid)
        if broken is not None and broken.newer:
            raise broken.error
        before = records.claims.get(ref.uid)
        in_place = before is not None and self._is_in_place(before)
        report("waiting for the API server")
        try:
            seconds = AGAIN_SECONDS if in_place else GET_SECONDS
            document = await self._reader.get_claim(ref.namespace, ref.name, ref.uid, seconds)
            claim = allocated(document, ref, self._places.driver)
        except LauncherkitError:
            if before is not None and in_place:
                return before.devices
            raise
        others = broken is not None and broken.devices and broken.devices != {one.device for one in claim.devices}
        if others or (before is not None and not _is_as_allocated(before, claim)):
            await self._unprepare(ref, report)  # the kubelet forgot to, and the claim was allocated again since
            before = broken = None
        elif before is not None and in_place:
            return before.devices
        for ended in self._ended(claim):
            await self._unprepare(ended, report)
        records, anew = self.held().without(ref.uid), before is None and broken is None
        _refuse_beside(records, claim, anew=anew)
        shares = shares_of(claim, self._listed)
        report(f"allocating {', '.join(result.device for result in claim.devices)}")
        wanted = [Desired(share.resource, list(listed), share.parameters.wishes) for share, listed in shares.items()]
        self._hold(records)  # what the broken record of this very claim may have is not in its way
        try:
            async with self._allocator.claiming(Holder("", claim=ref), wanted) as grants:
                given = given_devices(claim, shares, grants, environment=self._environment())
                record = ClaimRecord(ref, prepared(claim, given, self._places.driver), self._boot)
                files = files_of(claim, given, self._places)
                report("writing its files")
                await self._in_thread(str(ref), partial(self._write, files, record, anew=anew))
        finally:
            self.held()
        self._wake(Wakeup.ALLOCATED)
        return record.devices

    def _is_in_place(self, record: ClaimRecord) -> bool:
        """Whether all files of a claim are whole and of this boot: after a reboot, device nodes may differ."""
        return record.boot == self._boot and is_in_place(self._places, record.ref, record.devices)

    def _ended(self, claim: AllocatedClaim) -> list[ClaimRef]:
        """Claims that were prepared before the machine booted, and whose name or device another has now.

        Their pods ended with the boot, and whoever was to unprepare them has lost them.
        """
        mine = {(one.device, one.share_id) for one in claim.devices}
        return [
            record.ref
            for record in self._checkpoint.read().claims.values()
            if record.ref.uid != claim.ref.uid
            and "" != record.boot != self._boot != ""
            and (str(record.ref) == str(claim.ref) or mine & {(one.device, one.share_id) for one in record.devices})
        ]

    def _write(self, files: Mapping[str, bytes], record: ClaimRecord, *, anew: bool) -> None:
        """Write all files and then the record; on failure, remove the files of a new claim."""
        try:
            for path, data in files.items():
                self._disk.replace(path, data)
            self._checkpoint.put(record)
        except UnwritableFile as problem:
            if anew:
                for path in files:
                    with suppress(UnwritableFile):  # a remaining file is removed by the next start, or overwritten
                        self._disk.remove(path)
            raise _failed("written", problem) from problem

    async def _unprepare(self, ref: ClaimRef, report: ReportStep) -> None:
        report("removing its files")
        known = self._checkpoint.read()
        await self._in_thread(str(ref), partial(self._remove, ref))
        self.held()
        if ref.uid in known.claims or ref.uid in known.broken:
            self._wake(Wakeup.PODS)

    def _remove(self, ref: ClaimRef) -> None:
        try:
            for path in files_left(self._places, ref):
                self._disk.remove(path)
            remove_empty(self._places.metadata_folder(ref))
            self._checkpoint.remove(ref.uid)
        except UnwritableFile as problem:
            raise _failed("removed", problem) from problem

    def tidy(self) -> None:
        """Remove files of claims without a record, which a killed process left. No claim may be being prepared."""
        for path in leftover_files(self._places, self.held()):
            with suppress(UnwritableFile):  # the next start tries again
                self._disk.remove(path)


def _is_as_allocated(record: ClaimRecord, claim: AllocatedClaim) -> bool:
    """Whether the devices that were prepared are those that are allocated to the claim now."""
    return {(one.request, one.pool, one.device, one.share_id) for one in record.devices} == {
        (one.request, one.pool, one.device, one.share_id) for one in claim.devices
    }


def _refuse_beside(records: ClaimRecords, claim: AllocatedClaim, *, anew: bool) -> None:
    """Check that the devices are not those of another claim whose record can't be read, and that no other claim with
    this name is prepared.

    Args:
        records: those of all claims.
        claim: the one to prepare.
        anew: it wasn't prepared before. If it was, its devices are no other's, and two claims of which nothing is known
            don't wait for each other for ever.

    Raises:
        BAD_CLAIM_RECORD: the record of another claim, which has or may have one of the devices, can't be read.
        BAD_RESOURCE_CLAIM: a claim with this name was deleted, and is still prepared.
    """
    ref = claim.ref
    for broken in records.broken.values():
        if anew if broken.devices is None else broken.devices & {one.device for one in claim.devices}:
            raise broken.error
    for record in records.claims.values():
        if (record.ref.namespace, record.ref.name) == (ref.namespace, ref.name) and record.ref.uid != ref.uid:
            raise BAD_RESOURCE_CLAIM(
                f"ResourceClaim {ref} can't be prepared: one of that name, with the UID {record.ref.uid!r}, still is",
                "It was deleted while pods had it. The kubelet tries again by itself, until these have ended.",
                file=f"ResourceClaim {ref}",
            )


def _failed(what: str, problem: UnwritableFile) -> UnwritableFile:
    return CLAIM_FILES_FAILED(
        f"a file of the ResourceClaim can't be {what}: {problem.message}",
        "Make room on that file system, or mount the folder writable (component `dra`). The kubelet tries again by "
        "itself.",
        file=problem.file or "",
    )
