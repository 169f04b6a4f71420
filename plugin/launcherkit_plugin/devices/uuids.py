"""The UUIDs of NVIDIA's cards, which are their device IDs; remembered while a card has another driver (K10)."""

from __future__ import annotations

import os

from launcherkit.atomic import Disk
from launcherkit_plugin.records import Stored, read_record, write_record

FILE = "gpu-uuids"
"""The file in the ledger's folder. It has no extension, because files with ``.json`` are records there."""


class CardUuids:
    """The UUIDs that were seen since the machine booted, by address.

    Args:
        folder: where they are kept for the next process; None: nowhere.
        boot: the ID of this boot; after a reboot the addresses may belong to other cards.
        disk: writes the file.
    """

    def __init__(self, folder: str | None, boot: str, disk: Disk | None = None) -> None:
        self._path = None if folder is None else os.path.join(folder, FILE)
        self._boot = boot
        self._disk = disk or Disk()
        self.problem: str | None = None
        """Why what an earlier process kept can't be read. It is learnt again when the cards have their driver."""
        self._found = self._kept()

    def get(self, address: str) -> str | None:
        """The UUID of the card at an address; None if unknown."""
        return self._found.get(address)

    def learn(self, address: str, uuid: str) -> None:
        """Remember a UUID.

        Raises:
            UnwritableFile: it can't be kept for the next process; this process remembers it.
        """
        if self._found.get(address) == uuid:
            return
        # The card may have moved: no other address has this UUID any more.
        self._found = {at: other for at, other in self._found.items() if other != uuid} | {address: uuid}
        if self._path is not None:
            write_record(self._disk, self._path, Stored(self._boot, {"uuids": self._found}))

    def _kept(self) -> dict[str, str]:
        if self._path is None:
            return {}
        try:
            stored = read_record(self._path)
            if stored.boot != self._boot:
                return {}
            return {str(address): str(uuid) for address, uuid in stored.content["uuids"].items()}
        except FileNotFoundError:
            return {}
        except OSError as problem:
            self.problem = f"{self._path}: {problem.strerror or problem}"
        except (ValueError, LookupError, TypeError, AttributeError) as problem:
            self.problem = f"{self._path} is not the record of the cards' UUIDs: {problem}"
        return {}
