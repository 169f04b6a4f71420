"""The records of prepared ResourceClaims on disk: the driver's checkpoint (D8).

There is a file for each claim, so that claims can be unprepared on a full disk, and a broken file doesn't affect
others. A record is replaced by rename, and written after all other files: a claim without a record was not prepared.
It isn't synced to disk: if the machine dies, so do the pods, and after the boot the kubelet prepares or unprepares all
of their claims again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from glob import escape, glob
from typing import Any

from launcherkit.errors import shown
from launcherkit.model.value import NamedTuple
from launcherkit_plugin.dra.whole_files import WholeFiles
from launcherkit_plugin.model.device import ClaimRef, Holder, Usage
from launcherkit_plugin.model.errors import BadClaimRecord

FOLDER = "claims"
"""The folder of the records, in the driver's folder."""
_VERSION = 1
_RECORD_BYTES = 1 << 20
_SUFFIX = ".json"


class PreparedDevice(NamedTuple):
    """A device of a claim: its name for the kubelet, and the plugin's own device."""

    request: str
    pool: str
    device: str
    resource: str
    """The name of its `launcherkit_plugin.model.device.Resource` when it was prepared."""
    id: str
    """The ID of its `launcherkit_plugin.model.device.Device`."""
    cdi: tuple[str, ...]
    """Its qualified CDI names."""
    share_id: str = ""


class ClaimRecord(NamedTuple):
    """A prepared claim."""

    ref: ClaimRef
    devices: tuple[PreparedDevice, ...]
    boot: str
    """The ID of the boot in which it was prepared. After a reboot, device nodes may differ and files in /run are gone.
    """

    @property
    def holder(self) -> Holder:
        """The claim as the holder of its devices."""
        return Holder("", claim=self.ref)


class Records(NamedTuple):
    """All records, by the UIDs of the claims."""

    claims: Mapping[str, ClaimRecord] = {}
    broken: Mapping[str, BadClaimRecord] = {}
    """Records that can't be read: the devices of these claims are unknown (T2)."""

    def held(self) -> dict[str, dict[str, Holder]]:
        """The holders of devices, by resource and device ID."""
        held: dict[str, dict[str, Holder]] = {}
        for record in self.claims.values():
            for device in record.devices:
                held.setdefault(device.resource, {})[device.id] = record.holder
        return held


class Checkpoint:
    """The records in a folder. Another process may write there too: the driver's previous pod during an update."""

    def __init__(self, folder: str, files: WholeFiles) -> None:
        self.folder = folder
        self._files = files
        self._seen: dict[str, tuple[tuple[int, int], ClaimRecord | BadClaimRecord]] = {}

    def path(self, uid: str) -> str:
        """The path of a claim's record."""
        return f"{self.folder}/{uid}{_SUFFIX}"

    def read(self) -> Records:
        """All records. Only files that have changed are read."""
        seen: dict[str, tuple[tuple[int, int], ClaimRecord | BadClaimRecord]] = {}
        try:
            for entry in sorted(os.scandir(self.folder), key=lambda entry: entry.name):
                if entry.name.endswith(_SUFFIX) and not entry.name.startswith("."):
                    uid = entry.name.removesuffix(_SUFFIX)
                    with suppress(FileNotFoundError):  # it has just been removed
                        identity = _identity(entry.stat(follow_symlinks=False))
                        before = self._seen.get(uid)
                        seen[uid] = before if before and before[0] == identity else (identity, self._read(uid))
        except FileNotFoundError:
            pass  # no claim was ever prepared
        except OSError as problem:
            return Records(broken={"": _broken(self.folder, problem.strerror or str(problem))})
        self._seen = seen
        return self.last()

    def last(self) -> Records:
        """All records, from the last reading and from what this process has written since."""
        found = {uid: record for uid, (_, record) in self._seen.items()}
        return Records(
            {uid: record for uid, record in found.items() if isinstance(record, ClaimRecord)},
            {uid: error for uid, error in found.items() if isinstance(error, BadClaimRecord)},
        )

    def put(self, record: ClaimRecord) -> None:
        """Write a record.

        Raises:
            ClaimFilesFailed: the record is unchanged.
        """
        path = self.path(record.ref.uid)
        self._files.write(path, _text(record))
        with suppress(OSError):  # the next reading finds out
            self._seen[record.ref.uid] = _identity(os.stat(path)), record

    def remove(self, uid: str) -> None:
        """Remove a record, if there is one.

        Raises:
            ClaimFilesFailed: it is still there.
        """
        self._files.remove(self.path(uid))
        self._seen.pop(uid, None)

    def _read(self, uid: str) -> ClaimRecord | BadClaimRecord:
        path = self.path(uid)
        try:
            with open(path, "rb") as file:
                record = _parse(json.loads(file.read(_RECORD_BYTES)))
            if record.ref.uid != uid:
                raise ValueError(f"it is the record of the claim with the UID {record.ref.uid}")
        except (OSError, ValueError, RecursionError) as problem:
            return _broken(path, str(problem))
        return record


def with_claims(usage: Usage, kubelet_dir: str) -> Usage:
    """Usage with the devices of ResourceClaims, from the records of all drivers on the node. For commands only."""
    held = {resource: dict(devices) for resource, devices in usage.held.items()}
    known = True
    for folder in sorted(glob(f"{escape(kubelet_dir)}/plugins/*/{FOLDER}")):
        records = Checkpoint(folder, WholeFiles()).read()
        known &= not records.broken
        for resource, devices in records.held().items():
            held.setdefault(resource, {}).update(devices)
    return usage._replace(source=usage.source if known else "none", held=held)


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_ino, stat.st_ctime_ns


def _text(record: ClaimRecord) -> bytes:
    fields = PreparedDevice._fields
    devices = [dict(zip(fields, device, strict=True)) for device in record.devices]
    document = {"version": _VERSION, "boot": record.boot, **record.ref._asdict(), "devices": devices}
    return (json.dumps(document) + "\n").encode()


def _parse(document: Any) -> ClaimRecord:
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        raise ValueError(f"it is not an object of version {_VERSION}")
    devices = document.get("devices")
    if not isinstance(devices, list) or not devices:
        raise ValueError(f"$.devices: {shown(devices)} is not a list of devices")
    ref = ClaimRef(*(_string(document, key, "$") for key in ClaimRef._fields))
    return ClaimRecord(ref, tuple(_devices(devices)), _string(document, "boot", "$", empty=True))


def _devices(found: list[Any]) -> Iterator[PreparedDevice]:
    for index, device in enumerate(found):
        path = f"$.devices[{index}]"
        if not isinstance(device, dict):
            raise ValueError(f"{path}: {shown(device)} is not an object")
        cdi = device.get("cdi")
        if not isinstance(cdi, list) or not all(isinstance(name, str) for name in cdi):
            raise ValueError(f"{path}.cdi: {shown(cdi)} is not a list of names")
        request, pool, name, resource, key = (
            _string(device, field, path) for field in ("request", "pool", "device", "resource", "id")
        )
        share = _string(device, "share_id", path, empty=True)
        yield PreparedDevice(request, pool, name, resource, key, tuple(cdi), share)


def _string(fields: dict[str, Any], key: str, path: str, *, empty: bool = False) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not (value or empty):
        raise ValueError(f"{path}.{key}: {shown(value)} is not a name")
    return value


def _broken(path: str, why: str) -> BadClaimRecord:
    return BadClaimRecord(
        f"{path}: the record of a prepared ResourceClaim can't be read: {why}",
        "What the claim has is unknown, so nothing is prepared for other claims. Its UID is the file's name: end the "
        "pods that use it, or remove the file if there is no such claim any more.",
        file=path,
    )
