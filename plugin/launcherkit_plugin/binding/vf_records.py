"""The records of virtual functions that were made, so that they can be taken away even after a crash (K12).

There is a `launcherkit_plugin.records` file for each physical function, below the folder of the ledger. It is written
before the change that it describes, and means nothing after a reboot: virtual functions don't survive one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias, get_args

from launcherkit.atomic import Disk
from launcherkit.model.address import PciAddress
from launcherkit.request.fields import Fields, FirstProblem, flag, integer, string
from launcherkit_plugin.binding.ledger import choice, is_address
from launcherkit_plugin.codec import encode
from launcherkit_plugin.model.config import VfSettings
from launcherkit_plugin.model.errors import BAD_RECORD, BadRecord
from launcherkit_plugin.records import BrokenRecord, RecordFolder, Stored

MakingState: TypeAlias = Literal["making", "made", "removing"]


class VfRecord(NamedTuple):
    """The virtual functions of one physical function."""

    physfn: PciAddress
    number: int
    autoprobe: bool | None
    """Whether the kernel offered virtual functions to drivers before; None: there is no such setting."""
    wish: str
    """What they were made for, see `wish_text`."""
    state: MakingState


def wish_text(wish: VfSettings) -> str:
    """Text that differs if virtual functions have to be made anew."""
    return json.dumps(encode(wish._replace(number=None)), sort_keys=True)


class VfRecords:
    """The records in a folder, by the address of the physical function.

    Args:
        folder: created on the first write.
        boot: the ID of this boot; records of other boots are void.
        disk: writes and removes the files.
    """

    def __init__(self, folder: str, boot: str, disk: Disk | None = None) -> None:
        self._boot = boot
        self._records = RecordFolder(folder, boot, _parse, is_address, disk or Disk())

    def read(self) -> tuple[Mapping[PciAddress, VfRecord], Mapping[PciAddress, BadRecord]]:
        """The records, and the errors of those that can't be read.

        Raises:
            UnreadableFile: the folder can't be read.
        """
        content = self._records.load()
        whole = {record.physfn: record for boot, record in content.whole.values() if boot == self._boot}
        return whole, {PciAddress.parse(name): _bad(broken) for name, broken in content.broken.items()}

    def find(self, physfn: PciAddress) -> VfRecord | None:
        """The record of a physical function.

        Raises:
            BadRecord: it can't be read.
        """
        whole, broken = self.read()
        if physfn in broken:
            raise broken[physfn]
        return whole.get(physfn)

    def write(self, record: VfRecord) -> None:
        """Write a record.

        Raises:
            UnwritableFile: the previous one is unchanged.
        """
        self._records.write(str(record.physfn), {**record._asdict(), "physfn": str(record.physfn)})

    def remove(self, physfn: PciAddress) -> None:
        """Remove a record, if there is one.

        Raises:
            UnwritableFile: it is still there.
        """
        self._records.remove(str(physfn))


def _parse(name: str, stored: Stored) -> tuple[str, VfRecord]:
    record = Fields(stored.content, "", FirstProblem())
    if record.needed("physfn", string, "an address") != name:
        raise ValueError("physfn: it is the record of another function")
    return stored.boot, VfRecord(
        PciAddress.parse(name),
        record.needed("number", integer, "a number"),
        record.optional("autoprobe", flag, "true or false"),
        record.needed("wish", string, "a text"),
        choice(record, "state", get_args(MakingState)),
    )


def _bad(record: BrokenRecord) -> BadRecord:
    return BAD_RECORD(
        f"{record.path} is not a valid record of virtual functions that were made: {record.why}",
        "Install the newer version of the plugin again, or write 0 to the function's sriov_numvfs and remove the file."
        if record.newer
        else "Write 0 to the function's sriov_numvfs once nobody has its virtual functions: that removes the record. "
        "Other functions are not affected.",
        file=record.path,
    )
