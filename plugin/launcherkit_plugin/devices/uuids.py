"""The UUIDs of NVIDIA's cards, which are their device IDs; remembered while a card has another driver (K10)."""

from __future__ import annotations

import json
import os
from contextlib import suppress

from launcherkit.atomic import write_atomically

FILE = "gpu-uuids"
"""The file in the ledger's folder. It has no extension, because files with ``.json`` are records there."""


class CardUuids:
    """The UUIDs that were seen since the machine booted, by address.

    Args:
        folder: where they are kept for the next process; None: nowhere.
        boot: the ID of this boot; after a reboot the addresses may belong to other cards.
    """

    def __init__(self, folder: str | None, boot: str) -> None:
        self._path = None if folder is None else os.path.join(folder, FILE)
        self._boot = boot
        self._found = _kept(self._path, boot)

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
            with suppress(OSError):  # the write below gives the reason
                os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            content = {"boot": self._boot, "uuids": self._found}
            write_atomically(self._path, (json.dumps(content, indent=1) + "\n").encode(), mode=0o600)


def _kept(path: str | None, boot: str) -> dict[str, str]:
    """The UUIDs that an earlier process kept. If they can't be read, they are learnt again when the cards have their
    driver."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        if path is not None:
            with open(path, "rb") as file:
                content = json.load(file)
            if content["boot"] == boot:
                return {str(address): str(uuid) for address, uuid in content["uuids"].items()}
    return {}
