"""The records of prepared ResourceClaims on disk: the driver's checkpoint (D8, T5).

There is a file for each claim, so that claims can be unprepared on a full disk, and a broken file doesn't affect
others. A record is written after all other files: a claim without a record was not prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from launcherkit.atomic import Disk
from launcherkit.request.fields import Fields, FirstProblem, flag, string, text
from launcherkit_plugin.dra.labels import device_and_share, device_id, share_name
from launcherkit_plugin.dra.resource_claim import is_uid
from launcherkit_plugin.model.device import ClaimRef, Holder, share_of
from launcherkit_plugin.model.errors import BAD_CLAIM_RECORD, BadRecord
from launcherkit_plugin.records import BrokenRecord, RecordFolder, Stored

FOLDER = "claims"
"""The folder of the records, in the driver's folder."""


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
    admin: bool = False
    """It is only looked at, and nobody holds it by this claim (D13)."""

    @property
    def name(self) -> str:
        """Its name in the files of the claim."""
        return share_name(self.device, self.share_id)


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


class BrokenClaim(NamedTuple):
    """A claim whose record can't be read."""

    error: BadRecord
    devices: frozenset[str] | None
    """The names of its devices (`share_name`), by its other files; none if no other file is of the claim; None
    if these can't be read either."""
    newer: bool
    """The record seems to be whole, and of a newer version."""


class ClaimRecords(NamedTuple):
    """All records, by the UIDs of the claims."""

    claims: Mapping[str, ClaimRecord] = {}
    broken: Mapping[str, BrokenClaim] = {}
    notes: tuple[str, ...] = ()
    """What else is in the folder, and is ignored."""

    def without(self, uid: str) -> ClaimRecords:
        """The same without the broken record of a claim."""
        return self._replace(broken={key: broken for key, broken in self.broken.items() if key != uid})

    def held(self, listed: Mapping[str, tuple[str, str]] = {}) -> tuple[dict[str, dict[str, Holder]], bool]:
        """The holders of devices, by resource and device ID, and whether these are all (T2).

        Args:
            listed: resource and ID of the published devices, by their names there.
        """
        held: dict[str, dict[str, Holder]] = {}
        complete = True
        for record in self.claims.values():
            for device in (each for each in record.devices if not each.admin):
                held.setdefault(device.resource, {})[device.id] = record.holder
        for uid, broken in self.broken.items():
            complete &= broken.devices is not None
            for name in broken.devices or ():
                published, share = device_and_share(name)
                resource, key = listed.get(published, ("", device_id(published)))
                complete &= key is not None
                if key is not None:
                    held.setdefault(resource, {})[share_of(key, share)] = Holder("", claim=ClaimRef("", "", uid))
        return held, complete


class Checkpoint:
    """The records in a folder. Another process may write there too: the driver's previous pod during an update.

    Args:
        folder: see `FOLDER`.
        boot: the ID of this boot.
        disk: writes and removes the files.
        in_files: the devices of a claim, by its UID, in its other files: see `BrokenClaim.devices`.
    """

    def __init__(self, folder: str, boot: str, disk: Disk, in_files: Callable[[str], frozenset[str] | None]) -> None:
        self._folder = RecordFolder(folder, boot, _parse, is_uid, disk, mode=0o644)
        self._in_files = in_files

    def read(self) -> ClaimRecords:
        """All records. Only files that have changed are read."""
        try:
            content = self._folder.read()
        except OSError as problem:
            broken = BrokenRecord(self._folder.folder, problem.strerror or str(problem))
            return ClaimRecords(broken={"": _broken(broken, None)})
        return ClaimRecords(
            content.whole,
            {uid: _broken(broken, self._in_files(uid)) for uid, broken in content.broken.items()},
            (
                *(f"{path} is ignored: its name is not the UID of a claim" for path in content.foreign),
                *(f"{each.path} is of an earlier boot, and void: {each.why}" for each in content.void.values()),
            ),
        )

    def put(self, record: ClaimRecord) -> None:
        """Write a record; it replaces what has its name.

        Raises:
            UnwritableFile: the record is unchanged.
        """
        devices = [device._asdict() for device in record.devices]
        self._folder.write(record.ref.uid, {**record.ref._asdict(), "devices": devices})

    def remove(self, uid: str) -> None:
        """Remove a record, if there is one.

        Raises:
            UnwritableFile: it is still there.
        """
        self._folder.remove(uid)


def _parse(uid: str, stored: Stored) -> ClaimRecord:
    record = Fields(stored.content, "$", FirstProblem())
    namespace, name, own_uid = (record.needed(key, text, "a name") for key in ClaimRef._fields)
    devices = tuple(map(_device, record.objects("devices")))
    if not devices:
        record.problem("devices", None, "a list of devices")
    if own_uid != uid:
        raise ValueError(f"it is the record of the claim with the UID {own_uid}")
    return ClaimRecord(ClaimRef(namespace, name, uid), devices, stored.boot)


def _device(device: Fields) -> PreparedDevice:
    request, pool, name, resource, key = (
        device.needed(field, text, "a name") for field in ("request", "pool", "device", "resource", "id")
    )
    if device.peek("cdi") is None:
        device.problem("cdi", None, "a list of names")
    cdi = device.many("cdi", string, "a name")
    share, admin = device.needed("share_id", string, "a name"), device.optional("admin", flag, "true or false") or False
    return PreparedDevice(request, pool, name, resource, key, cdi, share, admin)


def _broken(record: BrokenRecord, devices: Collection[str] | None) -> BrokenClaim:
    if devices is None:
        effect = "What the claim has is unknown, so nothing is prepared for other claims until"
    elif devices:
        effect = f"Nobody else gets the claim's devices, {', '.join(sorted(devices))}, until"
    else:
        effect = "No other file tells of such a claim, so it has no device and nobody waits for"
    if record.newer:
        remedy = (
            f"Install the newer version of the plugin again. {effect} its pods have ended, or the node has rebooted."
        )
    elif devices is not None and not devices:
        remedy = f"{effect} it. Remove the file."
    else:
        remedy = (
            f"{effect} the kubelet prepares it again, as after its restart, its pods have ended, or the node has "
            "rebooted. The claim's UID is the file's name."
        )
    return BrokenClaim(
        BAD_CLAIM_RECORD(
            f"{record.path}: the record of a prepared ResourceClaim can't be read: {record.why}",
            remedy,
            file=record.path,
        ),
        None if devices is None else frozenset(devices),
        record.newer,
    )
