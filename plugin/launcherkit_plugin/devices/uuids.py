"""The UUIDs of NVIDIA's cards, kept while another driver has them: the kubelet knows the cards by these (K10)."""

from __future__ import annotations

import json
import os
from contextlib import suppress

from launcherkit.atomic import write_atomically

FILE = "gpu-uuids"
"""In the folder of what was bound to what before. It has no ending, because those with ``.json`` are records there."""


class CardUuids:
    """What was learnt since the boot.

    Args:
        folder: where that is kept for the next process; None: nowhere.
        boot: which boot of the machine this is; another one may have other cards at these addresses.
    """

    def __init__(self, folder: str | None, boot: str) -> None:
        self._path = None if folder is None else os.path.join(folder, FILE)
        self._boot = boot
        self._found = _kept(self._path, boot)

    def get(self, address: str) -> str | None:
        """The UUID of the card at an address, if it has been known."""
        return self._found.get(address)

    def learn(self, address: str, uuid: str) -> None:
        """Keep a UUID.

        Raises:
            UnwritableFile: it is known to this process alone.
        """
        if self._found.get(address) == uuid:
            return
        # Another card at its place: whatever had this UUID has it no longer.
        self._found = {at: other for at, other in self._found.items() if other != uuid} | {address: uuid}
        if self._path is not None:
            with suppress(OSError):  # the write below gives the reason
                os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            content = {"boot": self._boot, "uuids": self._found}
            write_atomically(self._path, (json.dumps(content, indent=1) + "\n").encode(), mode=0o600)


def _kept(path: str | None, boot: str) -> dict[str, str]:
    """What an earlier process has kept; what can't be read is learnt again, as soon as the card has its driver."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        if path is not None:
            with open(path, "rb") as file:
                content = json.load(file)
            if content["boot"] == boot:
                return {str(address): str(uuid) for address, uuid in content["uuids"].items()}
    return {}
