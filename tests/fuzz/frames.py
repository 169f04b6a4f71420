"""HTTP/2 frames of any bytes to the server of the hooks: at most their own connection ends, and others are served."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

from launcherkit.hooks.core import HookSettings
from launcherkit.hooks.sidecar import sidecar
from launcherkit.rpc.calls import Calls
from launcherkit.rpc.server import BoundedServer
from tests.fuzz.choices import Choices

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
PATHS = (b"/kubevirt.hooks.info.Info/Info", b"/kubevirt.hooks.v1alpha3.Callbacks/OnDefineDomain", b"/", b"")


def run(data: bytes) -> None:
    """Send frames over a socket, hang up, and see that the server took it."""
    asyncio.run(_exchange(data))
    gc.collect(0)  # what a task died of is told when it is forgotten


async def _exchange(data: bytes) -> None:
    faults: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context))
    endpoint = sidecar("/", HookSettings({}, {}, "none"), asyncio.Event())
    server = BoundedServer(endpoint.services, Calls())
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as theirs:
        listening.bind("")  # no file: the kernel chooses an abstract name that is free
        await server.start(sock=listening)
        theirs.setblocking(False)
        await loop.sock_connect(theirs, listening.getsockname())
        for piece in _pieces(Choices(data)):
            try:
                await loop.sock_sendall(theirs, piece)
            except OSError:  # it hung up, as it may
                break
            for _ in range(3):
                await asyncio.sleep(0)
        theirs.close()
        await _is_served(listening)
        await server.hang_up()
        await server.wait_closed()
    assert faults == []


async def _is_served(listening: socket.socket) -> None:
    """An honest client gets the server's settings."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as honest:
        honest.setblocking(False)
        await loop.sock_connect(honest, listening.getsockname())
        await loop.sock_sendall(honest, PREFACE + SETTINGS)
        async with asyncio.timeout(10):
            answer = await loop.sock_recv(honest, 9)
    assert answer[3:4] == b"\x04", answer


def _pieces(choices: Choices) -> list[bytes]:
    """The preface as a rule, then frames whose parts are wrong in any way."""
    pieces = [PREFACE] if choices.number(16) else []
    for _ in range(choices.number(12)):
        kind, flags, stream = choices.number(12), choices.number(256), choices.one_of((0, 1, 1, 3, 5, 2, 0x7FFFFFFF))
        payload = choices.raw(200)
        if kind == 1 and choices.flag():
            path = choices.one_of(PATHS)
            payload = b"\x83\x86\x04" + bytes([len(path)]) + path + payload
        length = len(payload) if choices.number(8) else choices.number(1 << 24)
        pieces.append(length.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload)
    pieces.append(choices.rest())
    return pieces
