"""The guest's serial console on standard output."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

from launcherkit.adapters.libvirt_connection import LibvirtFailure

_DRAIN_SECONDS = 5.0


class Console:
    """Copies a console to a file descriptor in a thread of its own, until the guest ends or the reader has gone."""

    def __init__(self, chunks: Iterator[bytes], target: int) -> None:
        self._thread = threading.Thread(target=_copy, args=(chunks, target), name="console", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait a little for what the guest has printed last."""
        self._thread.join(_DRAIN_SECONDS)


def _copy(chunks: Iterator[bytes], target: int) -> None:
    try:
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(target, rest) :]
    except (OSError, LibvirtFailure):
        pass  # the reader or libvirt has gone; the guest does not depend on either
