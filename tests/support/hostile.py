"""Peers that mean harm: HTTP/2 in bytes, as fast as a socket takes them."""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from h2.events import StreamEnded, StreamReset
from hpack import Encoder

from tests.support.hooks import BareClient

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING = 0, 1, 3, 4, 6
END_HEADERS, END_STREAM = 4, 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack("!L", stream) + payload


def headers(path: str) -> bytes:
    """The headers of a call, without a table that both sides would have to keep."""
    pairs = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
    pairs += [("te", "trailers"), ("content-type", "application/grpc")]
    encoder = Encoder()
    encoder.header_table_size = 0
    return bytes(encoder.encode(pairs))


def resets(path: str) -> Iterator[bytes]:
    """Calls that are taken back in the same breath."""
    block = headers(path)
    for stream in range(1, 1 << 30, 2):
        yield frame(HEADERS, END_HEADERS, stream, block) + frame(RESET, 0, stream, bytes(4))


def answered(path: str) -> Iterator[bytes]:
    """Calls that are answered, each with an empty message."""
    block = headers(path)
    for stream in range(1, 1 << 30, 2):
        yield frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, bytes(5))


def pings(_: str) -> Iterator[bytes]:
    while True:
        yield frame(PING, 0, 0, bytes(8))


def settings(_: str) -> Iterator[bytes]:
    while True:
        yield frame(SETTINGS, 0, 0, struct.pack("!HL", 3, 100))


def hold(client: BareClient, path: str, size: int) -> None:
    """Send all but the last byte of a message, as fast as the windows allow; returns early when the call is ended."""
    stream = client.request(path)
    client.h2.send_data(stream, struct.pack("!BL", 0, size))
    left = size - 1
    while left:
        room = min(left, client.h2.local_flow_control_window(stream), client.h2.max_outbound_frame_size)
        if room:
            client.h2.send_data(stream, bytes(room))
            client.send()
            left -= room
            continue
        for event in client.h2.receive_data(client.socket.recv(65536)):
            if isinstance(event, StreamEnded | StreamReset) and event.stream_id == stream:
                return
        client.send()


def connected(path: Path) -> socket.socket:
    """A connection that has said hello, unless the server closed it before."""
    it = socket.socket(socket.AF_UNIX)
    try:
        it.connect(str(path))  # with a timeout it would not wait for room among those that are to be accepted
        it.settimeout(60)
        with suppress(BrokenPipeError):  # it may have made room for another one
            it.sendall(PREFACE + frame(SETTINGS, 0, 0))
    except OSError:
        it.close()
        raise
    return it


def dial_often(path: Path, ended: threading.Event) -> None:
    """Open connections as fast as they are taken, and keep the last 300."""
    kept: deque[socket.socket] = deque()
    while not ended.is_set():
        with suppress(OSError):
            kept.append(connected(path))
        if len(kept) > 300:
            kept.popleft().close()
    for it in kept:
        it.close()


class Flood:
    """So many connections that send without end; a connection that is closed on them is dialled again."""

    def __init__(self, path: Path, chunks: Callable[[], Iterator[bytes]], connections: int, reads: bool) -> None:
        self._path = path
        self._chunks = chunks
        self._reads = reads
        self.ended = threading.Event()
        self.sent = 0
        self.threads = [threading.Thread(target=self._run) for _ in range(connections)]

    def _run(self) -> None:
        while not self.ended.is_set():
            with suppress(OSError), connected(self._path) as it:
                it.setblocking(False)
                self._send(it)

    def _send(self, it: socket.socket) -> None:
        rest = b""
        chunks = self._chunks()
        while not self.ended.is_set():
            while len(rest) < 32768:
                rest += next(chunks)
            if self._reads:
                with suppress(BlockingIOError):
                    if not it.recv(65536):
                        return
            try:
                sent = it.send(rest)
            except BlockingIOError:
                self.ended.wait(0.002)
            else:
                self.sent += sent
                rest = rest[sent:]


@contextmanager
def flood(
    path: Path, chunks: Callable[[], Iterator[bytes]], connections: int = 4, *, reads: bool = True
) -> Iterator[Flood]:
    """A flood while the block runs."""
    it = Flood(path, chunks, connections, reads)
    for thread in it.threads:
        thread.start()
    try:
        yield it
    finally:
        it.ended.set()
        for thread in it.threads:
            thread.join()
