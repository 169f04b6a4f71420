"""Prepares and unprepares ResourceClaims (D7, D8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from launcherkit.errors import LauncherkitError
from launcherkit_plugin.allocation.allocator import Allocator
from launcherkit_plugin.dra.admin_access import admin_states
from launcherkit_plugin.dra.claim_files import files_of, prepared
from launcherkit_plugin.dra.claim_queue import ClaimQueue, ReportStep
from launcherkit_plugin.dra.claim_record import BrokenClaim, ClaimRecord, ClaimRecords, PreparedDevice
from launcherkit_plugin.dra.claim_store import ClaimStore
from launcherkit_plugin.dra.request_parts import ListedDevice, granted_devices, parts_of
from launcherkit_plugin.dra.resource_claim import AllocatedClaim, AllocatedDevice, allocated, check_names
from launcherkit_plugin.model.device import ClaimRef, Desired, Holder
from launcherkit_plugin.model.errors import BAD_RESOURCE_CLAIM

GET_SECONDS, AGAIN_SECONDS = 10.0, 2.0
"""How long to wait for the API server to return a claim, and one that is already prepared."""

GetClaim: TypeAlias = Callable[[str, str, str, float], Awaitable[dict[str, Any]]]
"""Reads a claim from the API server, by namespace, name and UID, within so many seconds."""


class Preparer:
    """Prepares and unprepares claims; both are idempotent.

    Args:
        store: the files of claims.
        allocator: allocates the devices.
        get_claim: reads claims from the API server.
        queue: see `ClaimQueue`.
        environment: returns whether containers get the variables of E1.
    """

    def __init__(
        self,
        store: ClaimStore,
        allocator: Allocator,
        get_claim: GetClaim,
        queue: ClaimQueue,
        environment: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._driver = store.places.driver
        self._allocator = allocator
        self._get_claim = get_claim
        self._queue = queue
        self._environment = environment
        self._listed: Mapping[str, ListedDevice] = {}
        self._told: Mapping[str, bytes] = {}

    def listed(self, devices: Mapping[str, ListedDevice]) -> None:
        """Set the published devices, by their names there."""
        self._listed = devices

    def held(self) -> ClaimRecords:
        """Read the records, and make the allocator hold the devices of claims."""
        return self._hold(self._store.read())

    def _hold(self, records: ClaimRecords) -> ClaimRecords:
        listed = {name: (each.published.resource, each.published.id) for name, each in self._listed.items()}
        held, complete = records.held(listed)
        self._allocator.claimed(self._driver, held, complete=complete)
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
        in_place = before is not None and self._store.is_in_place(before)
        report("waiting for the API server")
        try:
            seconds = AGAIN_SECONDS if in_place else GET_SECONDS
            document = await self._get_claim(ref.namespace, ref.name, ref.uid, seconds)
            claim = allocated(document, ref, self._driver)
        except LauncherkitError:
            if before is not None and in_place:
                return before.devices
            raise
        if _has_others(before, broken, claim):
            await self._unprepare(ref, report)  # the kubelet forgot to, and the claim was allocated again since
            before = broken = None
        elif before is not None and in_place:
            return before.devices
        for ended in self._ended(claim):
            await self._unprepare(ended, report)
        return await self._allocate(claim, report, anew=before is None and broken is None)

    async def _allocate(self, claim: AllocatedClaim, report: ReportStep, *, anew: bool) -> tuple[PreparedDevice, ...]:
        """Allocate the devices of a claim and write its files; ``anew``: it wasn't prepared before."""
        ref = claim.ref
        records = self.held().without(ref.uid)
        _refuse_beside(records, claim, anew=anew)
        parts = parts_of(claim, self._listed)
        report(f"allocating {', '.join(result.device for result in claim.devices)}")
        desired = [Desired(part.resource, list(listed), part.parameters.wishes) for part, listed in parts.items()]
        self._hold(records)  # what the broken record of this very claim may have is not in its way
        try:
            async with self._allocator.claiming(Holder("", claim=ref), desired, claim.asking) as grants:
                devices = granted_devices(claim, parts, grants, self._listed, environment=self._environment())
                record = ClaimRecord(ref, prepared(claim, devices, self._driver), self._store.boot)
                files = self._states(record) | files_of(claim, devices, self._store.places)
                report("writing its files")
                await self._store.write(files, record, anew=anew)
        finally:
            self.held()
        return record.devices

    def _states(self, record: ClaimRecord) -> dict[str, bytes]:
        """The contents of a claim's files for requests with admin access, by path. Most claims have none."""
        if not any(device.admin for device in record.devices):
            return {}
        states = admin_states(record, self._listed, self._allocator.usage(), self._driver)
        return {self._store.places.admin_file(record.ref.uid, request): data for request, data in states.items()}

    async def tell_states(self) -> None:
        """Write the present state of devices into the files of claims with admin access, where it has changed.

        Raises:
            CLAIM_FILES_FAILED: a file can't be written; what comes after it isn't, either.
        """
        told: dict[str, bytes] = {}
        for record in self._store.read().claims.values():
            files = self._states(record)
            changed = {path: data for path, data in files.items() if self._told.get(path) != data}
            if changed:
                await self._store.update(record.ref, changed)
            told |= files
        self._told = told

    def _ended(self, claim: AllocatedClaim) -> list[ClaimRef]:
        """Claims that were prepared before the machine booted, and whose name or device another has now.

        Their pods ended with the boot, and whoever was to unprepare them has lost them.
        """
        mine = [one for one in claim.devices if not one.admin]
        return [
            record.ref
            for record in self._store.read().claims.values()
            if record.ref.uid != claim.ref.uid
            and self._store.is_of_earlier_boot(record)
            and (str(record.ref) == str(claim.ref) or _exclude_each_other(mine, record))
        ]

    async def _unprepare(self, ref: ClaimRef, report: ReportStep) -> None:
        report("removing its files")
        await self._store.remove(ref)
        self.held()


def _has_others(before: ClaimRecord | None, broken: BrokenClaim | None, claim: AllocatedClaim) -> bool:
    """Whether a claim was prepared with other devices than are allocated to it now.

    Args:
        before: its record.
        broken: the same, if it can't be read.
        claim: as it is allocated.
    """
    if before is not None and not _is_as_allocated(before, claim):
        return True
    if broken is None or not broken.devices:
        return False
    return broken.devices != {one.name for one in claim.devices if not one.admin}


def _is_as_allocated(record: ClaimRecord, claim: AllocatedClaim) -> bool:
    """Whether the devices that were prepared are those that are allocated to the claim now."""
    return {(*one.key, one.pool, one.admin) for one in claim.devices} == {
        (one.request, one.device, one.share_id, one.pool, one.admin) for one in record.devices
    }


def _exclude_each_other(mine: Sequence[AllocatedDevice], record: ClaimRecord) -> bool:
    """Whether a claim has one of these devices as a whole, or that share of it, or a share of one that is mine."""
    theirs = [one for one in record.devices if not one.admin]
    return any(
        one.device == other.device and (one.share_id == other.share_id or not (one.share_id and other.share_id))
        for one in mine
        for other in theirs
    )


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
    devices = {name for one in claim.devices if not one.admin for name in (one.name, one.device)}
    for broken in records.broken.values():
        if anew and devices if broken.devices is None else broken.devices & devices:
            raise broken.error
    for record in records.claims.values():
        if (record.ref.namespace, record.ref.name) == (ref.namespace, ref.name) and record.ref.uid != ref.uid:
            raise BAD_RESOURCE_CLAIM(
                f"ResourceClaim {ref} can't be prepared: one of that name, with the UID {record.ref.uid!r}, still is",
                "It was deleted while pods had it. The kubelet tries again by itself, until these have ended.",
                file=f"ResourceClaim {ref}",
            )
