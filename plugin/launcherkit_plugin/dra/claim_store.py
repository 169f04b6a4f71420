"""The files of prepared ResourceClaims on disk, with their records (D8).

The record is written last and removed last. So if the process is killed at any moment, there is either a claim with a
record, which the kubelet's next call completes, or files without a record, which the next start removes.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from launcherkit.atomic import Disk
from launcherkit.errors import UnwritableFile
from launcherkit_plugin.dra.claim_files import (
    ClaimPlaces,
    devices_in_files,
    files_left,
    is_in_place,
    leftover_files,
    remove_empty,
)
from launcherkit_plugin.dra.claim_record import Checkpoint, ClaimRecord, ClaimRecords
from launcherkit_plugin.model.device import ClaimRef
from launcherkit_plugin.model.errors import CLAIM_FILES_FAILED

RunForClaim: TypeAlias = Callable[[str, Callable[[], None]], Awaitable[None]]
"""Does work on the files of the claim that the first argument names."""


async def _at_once(_: str, work: Callable[[], None]) -> None:
    work()


class ClaimStore:
    """The files and records of a driver's claims.

    Args:
        places: the paths of the files.
        boot: the ID of this boot.
        disk: writes and removes files.
        in_thread: does so elsewhere than in the event loop's thread, since a disk may hang (K9); by default at once.
    """

    def __init__(
        self, places: ClaimPlaces, boot: str = "", disk: Disk | None = None, in_thread: RunForClaim = _at_once
    ) -> None:
        self.places = places
        self.boot = boot
        self._disk = disk or Disk()
        self._in_thread = in_thread
        self._checkpoint = Checkpoint(places.records, boot, self._disk, partial(devices_in_files, places))

    def read(self) -> ClaimRecords:
        """The records of all claims. Only files that have changed are read."""
        return self._checkpoint.read()

    def is_in_place(self, record: ClaimRecord) -> bool:
        """Whether all files of a claim are whole and of this boot: after a reboot, device nodes may differ."""
        return record.boot == self.boot and is_in_place(self.places, record.ref, record.devices)

    def is_of_earlier_boot(self, record: ClaimRecord) -> bool:
        """Whether a claim was certainly prepared before the machine booted."""
        return "" != record.boot != self.boot != ""

    async def write(self, files: Mapping[str, bytes], record: ClaimRecord, *, anew: bool) -> None:
        """Write all files of a claim, and then its record. On failure, the files of a new claim are removed.

        Raises:
            CLAIM_FILES_FAILED: a file can't be written.
        """
        await self._in_thread(str(record.ref), partial(self._write, files, record, anew=anew))

    def _write(self, files: Mapping[str, bytes], record: ClaimRecord, *, anew: bool) -> None:
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

    async def update(self, ref: ClaimRef, files: Mapping[str, bytes]) -> None:
        """Replace files of a claim. One that isn't there any more, as the claim is unprepared, stays away.

        Raises:
            CLAIM_FILES_FAILED: a file can't be written.
        """
        await self._in_thread(str(ref), partial(self._update, files))

    def _update(self, files: Mapping[str, bytes]) -> None:
        try:
            for path in filter(os.path.exists, files):
                self._disk.replace(path, files[path])
        except UnwritableFile as problem:
            raise _failed("written", problem) from problem

    async def remove(self, ref: ClaimRef) -> None:
        """Remove the files of a claim, and then its record.

        Raises:
            CLAIM_FILES_FAILED: a file can't be removed; the record is still there.
        """
        await self._in_thread(str(ref), partial(self._remove, ref))

    def _remove(self, ref: ClaimRef) -> None:
        try:
            for path in files_left(self.places, ref):
                self._disk.remove(path)
            remove_empty(self.places.metadata_folder(ref))
            remove_empty(self.places.admin_folder(ref.uid))
            self._checkpoint.remove(ref.uid)
        except UnwritableFile as problem:
            raise _failed("removed", problem) from problem

    def tidy(self) -> None:
        """Remove files of claims without a record, which a killed process left. No claim may be being prepared."""
        for path in leftover_files(self.places, self.read()):
            with suppress(UnwritableFile):  # the next start tries again
                self._disk.remove(path)


def _failed(done: str, problem: UnwritableFile) -> UnwritableFile:
    return CLAIM_FILES_FAILED(
        f"a file of the ResourceClaim can't be {done}: {problem.message}",
        "Make room on that file system, or mount the folder writable (component `dra`). The kubelet tries again by "
        "itself.",
        file=problem.file or "",
    )
