"""The records of partitions that this plugin has activated, so that it deactivates those, and no others (K13).

A `launcherkit_plugin.records` file for each is written before it is activated, and removed once it is inactive.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

from launcherkit.atomic import Disk
from launcherkit.model.address import PciAddress
from launcherkit.request.fields import Fields, FirstProblem, string, text
from launcherkit_plugin.records import RecordFolder, Stored


class Activated(NamedTuple):
    """A partition that was activated, or was about to be."""

    number: int
    cards: tuple[PciAddress, ...]
    """Empty for a broken record."""
    resource: str = ""
    """As which its cards were allocated."""


class ActivatedPartitions:
    """The records in a folder, by the ID of the partition.

    Args:
        folder: created on the first write.
        boot: the ID of this boot: Fabric Manager starts again with the machine, so records of other boots are void.
        disk: writes and removes the files.
    """

    def __init__(self, folder: str, boot: str, disk: Disk | None = None) -> None:
        self._boot = boot
        self._records = RecordFolder(folder, boot, _parse, _is_number, disk or Disk())

    def read(self) -> Mapping[int, Activated]:
        """All records of this boot. A broken one still says by its name which partition was activated (T2).

        Raises:
            UnreadableFile: the folder can't be read.
        """
        content = self._records.load()
        ours = {int(name): each for name, (boot, each) in content.whole.items() if boot == self._boot}
        return ours | {int(name): Activated(int(name), ()) for name in content.broken}

    def write(self, activated: Activated) -> None:
        """Write a record.

        Raises:
            UnwritableFile: the previous one is unchanged.
        """
        self._records.write(str(activated.number), _content(activated))

    def prepared(self, activated: Activated) -> AbstractContextManager[tuple[str, str]]:
        """A record that the process with the library puts in its place: see `RecordFolder.prepared`."""
        return self._records.prepared(str(activated.number), _content(activated))

    def remove(self, number: int) -> None:
        """Remove a record.

        Raises:
            UnwritableFile: it is still there.
        """
        self._records.remove(str(number))


def _content(activated: Activated) -> object:
    return {"cards": list(map(str, activated.cards)), "resource": activated.resource}


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and str(int(name)) == name


def _parse(name: str, stored: Stored) -> tuple[str, Activated]:
    record = Fields(stored.content, "", FirstProblem())
    cards = record.many("cards", lambda value: PciAddress.parse(text(value)), "an address")
    if not cards:
        raise ValueError("cards: there are none")
    return stored.boot, Activated(int(name), cards, record.needed("resource", string, "a name"))
