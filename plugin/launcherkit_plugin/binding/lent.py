"""The records of devices that pods have, or had, and that have not been cleaned since (K11).

A `launcherkit_plugin.records` file for each device is written before a pod gets it, and removed once it is clean. The
folder outlives a reboot, for what a pod wrote to a device does so too.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeAlias, get_args

from launcherkit.atomic import Disk
from launcherkit.model.address import PciAddress
from launcherkit.request.fields import Fields, FirstProblem, integer, string, text
from launcherkit_plugin.binding.ledger import choice, is_address
from launcherkit_plugin.model.device import Device
from launcherkit_plugin.records import RecordFolder, Stored

LentState: TypeAlias = Literal["used", "cleaning", "quarantined"]
"""``used``: a pod has it, or had it; ``cleaning``: no pod has it any more; ``quarantined``: it came back wrong."""


class Lent(NamedTuple):
    """A device that was given to a pod."""

    functions: tuple[PciAddress, ...]
    """The primary first."""
    resource: str
    """As which it was allocated last; empty for a broken record."""
    ids: tuple[str, ...]
    """The IDs under which pods may have it: `Device.card_ids`."""
    state: LentState
    since: int
    """When it got this state, in seconds since the epoch."""
    text: str = ""
    """Why cleaning it has failed, or what is wrong with it."""
    seen: str = ""
    """In quarantine: what identifies the functions' present stay on the bus, see `Cleaner`."""

    def __str__(self) -> str:
        """``cleaning since 2026-11-25 12:00 UTC: nvme format: exit status 1``."""
        since = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%d %H:%M UTC")
        return f"{self.state} since {since}" + (f": {self.text}" if self.text else "")

    @classmethod
    def to_pod(cls, resource: str, device: Device, now: float) -> Lent:
        """A device that a pod gets now."""
        return cls(device.functions, resource, device.card_ids, "used", int(now))

    def is_among(self, ids: Set[str]) -> bool:
        """Whether it is one of these devices."""
        return not ids.isdisjoint(self.ids)


class LentDevices:
    """The records in a folder, by the address of the primary.

    Args:
        folder: created on the first write.
        disk: writes and removes the files.
    """

    def __init__(self, folder: str, disk: Disk | None = None) -> None:
        # Without a boot: these outlive it, and a broken one is never void.
        self._records = RecordFolder(folder, "", _parse, is_address, disk or Disk())

    def read(self) -> Mapping[PciAddress, Lent]:
        """All records. A broken one still says by its name which device has to be cleaned (T2).

        Raises:
            UnreadableFile: the folder can't be read.
        """
        content = self._records.load()
        devices = {PciAddress.parse(name): lent for name, lent in content.whole.items()}
        for name, broken in content.broken.items():
            address = PciAddress.parse(name)
            devices[address] = Lent((address,), "", (name,), "used", 0, f"its record can't be read: {broken.why}")
        return devices

    def write(self, lent: Lent) -> None:
        """Write a record.

        Raises:
            UnwritableFile: the previous one is unchanged.
        """
        content = {**lent._asdict(), "functions": list(map(str, lent.functions))}
        self._records.write(str(lent.functions[0]), content)

    def remove(self, lent: Lent) -> None:
        """Remove a record.

        Raises:
            UnwritableFile: it is still there.
        """
        self._records.remove(str(lent.functions[0]))


def _moment(value: object) -> int:
    """Seconds since the epoch, up to the year 9999."""
    seconds = integer(value)
    if not 0 <= seconds < 253_402_300_800:
        raise ValueError
    return seconds


def _parse(name: str, stored: Stored) -> Lent:
    record = Fields(stored.content, "", FirstProblem())
    functions = record.many("functions", lambda value: PciAddress.parse(text(value)), "an address")
    if not functions or str(functions[0]) != name:
        raise ValueError("functions: it is the record of another device")
    return Lent(
        functions,
        record.needed("resource", string, "a name"),
        record.many("ids", text, "an ID"),
        choice(record, "state", get_args(LentState)),
        record.needed("since", _moment, "a time"),
        record.needed("text", string, "a text"),
        record.needed("seen", string, "a text"),
    )
