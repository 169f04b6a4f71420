"""What the daemon hears from the cluster's process, from any thread, over whatever connection there is."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from launcherkit_plugin.cluster.protocol import HELLO, line_of


class Board:
    """The values as they are now: sent when they change, and all of them to a daemon that has started anew."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, object] = {}
        self._daemon: socket.socket | None = None

    def connect(self, daemon: socket.socket) -> None:
        """Greet a daemon and tell it what there is.

        Raises:
            OSError: it has gone already.
        """
        with self._lock:
            daemon.sendall(b"".join([line_of("hello", HELLO), *(line_of(*pair) for pair in self._values.items())]))
            self._daemon = daemon

    def disconnect(self) -> None:
        """The daemon has gone."""
        with self._lock:
            self._daemon = None

    def value(self, name: str, value: object) -> None:
        """What something is now; a value that was sent already is not sent again."""
        with self._lock:
            if name not in self._values or self._values[name] != value:
                self._values[name] = value
                self._tell(name, value)

    def happened(self, name: str, value: object) -> None:
        """What has happened; a daemon that comes later looks for itself."""
        with self._lock:
            self._tell(name, value)

    def _tell(self, name: str, value: object) -> None:
        if self._daemon is not None:
            with suppress(OSError):  # who reads from it sees that it has gone
                self._daemon.sendall(line_of(name, value))
