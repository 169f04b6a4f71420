"""Prepares and unprepares ResourceClaims (D7, D8).

The record is written last and removed last. So if the process is killed at any moment, there is either a claim with a
record, which the kubelet's next call completes, or files without a record, which the next start removes.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from launcherkit.errors import LauncherkitError
from launcherkit_plugin.dra.claim_files import ClaimPlaces, files_left, files_of, leftover_files, prepared, remove_empty
from launcherkit_plugin.dra.claim_record import Checkpoint, ClaimRecord, PreparedDevice, Records
from launcherkit_plugin.dra.resource_claim import AllocatedClaim, allocated, check_names
from launcherkit_plugin.dra.shares import ListedDevice, given_devices, shares_of
from launcherkit_plugin.dra.turns import ReportStep, Turns
from launcherkit_plugin.dra.whole_files import WholeFiles
from launcherkit_plugin.model.device import ClaimRef, Grant, Holder, Wanted
from launcherkit_plugin.model.errors import BadResourceClaim, ClaimFilesFailed
from launcherkit_plugin.model.wakeups import Wakeup

GET_SECONDS, AGAIN_SECONDS = 10.0, 2.0
"""How long to wait for the API server to return a claim, and one that is already prepared."""


class ClaimReader(Protocol):
    """`launcherkit_plugin.cluster.socket.ClusterSocket`."""

    async def get_claim(self, namespace: str, name: str, uid: str, seconds: float) -> dict[str, Any]: ...


class ClaimAllocator(Protocol):
    """`launcherkit_plugin.allocation.allocator.Allocator`."""

    @asynccontextmanager
    def claiming(self, holder: Holder, wanted: Sequence[Wanted]) -> AsyncIterator[Sequence[Grant]]: ...

    def claimed(self, by: str, held: Mapping[str, Mapping[str, Holder]], *, known: bool = True) -> None: ...


class Preparer:
    """Prepares and unprepares claims; both are idempotent.

    Args:
        places: the paths of the files.
        allocator: allocates the devices.
        reader: reads claims from the API server.
        turns: see `Turns`.
        wake: called when a claim has got or lost devices.
        environment: returns whether containers get the variables of E1.
        boot: the ID of this boot.
        files: writes and removes files.
    """

    def __init__(
        self,
        places: ClaimPlaces,
        allocator: ClaimAllocator,
        reader: ClaimReader,
        turns: Turns,
        wake: Callable[[Wakeup], object],
        *,
        environment: Callable[[], bool] = lambda: True,
        boot: str = "",
        files: WholeFiles | None = None,
    ) -> None:
        self._places = places
        self._allocator = allocator
        self._reader = reader
        self._turns = turns
        self._wake = wake
        self._environment = environment
        self._boot = boot
        self._files = files or WholeFiles()
        self._checkpoint = Checkpoint(places.records, self._files)
        self._listed: Mapping[str, ListedDevice] = {}

    def listed(self, devices: Mapping[str, ListedDevice]) -> None:
        """Set the published devices, by their names there."""
        self._listed = devices

    def held(self) -> Records:
        """Read the records, and make the allocator hold the devices of claims."""
        return self._hold(self._checkpoint.read())

    def _hold(self, records: Records) -> Records:
        self._allocator.claimed(self._places.driver, records.held(), known=not records.broken)
        return records

    async def prepare(self, ref: ClaimRef) -> tuple[PreparedDevice, ...]:
        """Prepare the devices of a claim.

        Raises:
            LauncherkitError: it can't be prepared; nothing is left half done.
        """
        check_names(ref)
        return await self._turns.take(ref, lambda report: self._prepare(ref, report))

    async def unprepare(self, ref: ClaimRef) -> None:
        """Unprepare a claim; does nothing if it wasn't prepared.

        Raises:
            ClaimFilesFailed: a file can't be removed; the claim keeps its devices.
            PrepareLate: it takes too long.
        """
        check_names(ref)
        await self._turns.take(ref, lambda report: self._unprepare(ref, report))

    async def _prepare(self, ref: ClaimRef, report: ReportStep) -> tuple[PreparedDevice, ...]:
        records = self.held()
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
        if before is not None and not _is_as_allocated(before, claim):
            await self._unprepare(ref, report)  # the kubelet forgot to, and the claim was allocated again since
            before = None
        elif before is not None and in_place:
            return before.devices
        _refuse_beside(records, ref)
        shares = shares_of(claim, self._listed)
        report(f"allocating {', '.join(result.device for result in claim.devices)}")
        wanted = [Wanted(share.resource, list(listed), share.parameters.wishes) for share, listed in shares.items()]
        async with self._allocator.claiming(Holder("", claim=ref), wanted) as grants:
            given = given_devices(claim, shares, grants, environment=self._environment())
            record = ClaimRecord(ref, prepared(claim, given, self._places.driver), self._boot)
            self._write(files_of(claim, given, self._places), record, anew=before is None)
            self._hold(self._checkpoint.last())
        self._wake(Wakeup.GIVEN)
        return record.devices

    def _is_in_place(self, record: ClaimRecord) -> bool:
        """Whether all files of a claim exist and are of this boot: after a reboot, device nodes may differ."""
        requests = [device.request for device in record.devices]
        return record.boot == self._boot and all(map(os.path.exists, self._places.all_of(record.ref, requests)))

    def _write(self, files: Mapping[str, bytes], record: ClaimRecord, *, anew: bool) -> None:
        """Write all files and then the record; on failure, remove the files of a new claim."""
        try:
            for path, data in files.items():
                self._files.write(path, data)
            self._checkpoint.put(record)
        except ClaimFilesFailed:
            if anew:
                for path in files:
                    with suppress(ClaimFilesFailed):  # a remaining file is removed by the next start, or overwritten
                        self._files.remove(path)
            raise

    async def _unprepare(self, ref: ClaimRef, report: ReportStep) -> None:
        report("removing its files")
        for path in files_left(self._places, ref):
            self._files.remove(path)
        remove_empty(self._places.metadata_folder(ref))
        records = self._checkpoint.read()
        if ref.uid in records.claims or ref.uid in records.broken:
            self._checkpoint.remove(ref.uid)
            self._hold(self._checkpoint.last())
            self._wake(Wakeup.PODS)

    def tidy(self) -> None:
        """Remove files of claims without a record, which a killed process left. No claim may be being prepared."""
        for path in leftover_files(self._places, self.held()):
            with suppress(ClaimFilesFailed):  # the next start tries again
                self._files.remove(path)


def _is_as_allocated(record: ClaimRecord, claim: AllocatedClaim) -> bool:
    """Whether the devices that were prepared are those that are allocated to the claim now."""
    return {(one.request, one.pool, one.device, one.share_id) for one in record.devices} == {
        (one.request, one.pool, one.device, one.share_id) for one in claim.devices
    }


def _refuse_beside(records: Records, ref: ClaimRef) -> None:
    """Check that no other claim's devices are unknown, and that no other claim with this name is prepared.

    Raises:
        BadClaimRecord: the record of another claim, which may have the same devices, can't be read.
        BadResourceClaim: a claim with this name was deleted, and is still prepared.
    """
    for uid, error in records.broken.items():
        if uid != ref.uid:
            raise error
    for record in records.claims.values():
        if (record.ref.namespace, record.ref.name) == (ref.namespace, ref.name) and record.ref.uid != ref.uid:
            raise BadResourceClaim(
                f"ResourceClaim {ref} can't be prepared: one of that name, with the UID {record.ref.uid!r}, still is",
                "It was deleted while pods had it. The kubelet tries again by itself, until these have ended.",
                file=f"ResourceClaim {ref}",
            )
