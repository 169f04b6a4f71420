"""Who may call: root and this process's user, who may end this process anyway (T4).

The mode of a socket also lets its group in, and in a pod many users have the same group.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import Any

_CREDENTIALS = struct.Struct("iII")
"""The pid, uid and gid of a peer: ``struct ucred``."""
_AT_ONCE = 16
"""How many strangers are turned away before the event loop has its turn."""


class OwnersSocket(socket.socket):
    """A listening unix socket that closes connections of others as it accepts them."""

    def accept(self) -> tuple[socket.socket, Any]:
        """See `socket.socket`.

        Raises:
            ConnectionAbortedError: there were only strangers; asyncio tries again.
        """
        for _ in range(_AT_ONCE):
            connection, address = super().accept()
            uid = _uid_of(connection)
            if uid in (0, os.geteuid()):
                return connection, address
            connection.close()
            text = f"a connection of user {uid} was closed: only root and the user of this process may call"
            asyncio.get_running_loop().call_exception_handler({"message": text})
        raise ConnectionAbortedError


def _uid_of(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])
