"""HTTP on one connection: which requests are answered, and how."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcherkit_plugin.http.exchange import SocketStream, answer_get
from launcherkit_plugin.http.response import Response, not_found


async def known(path: str, headers: Mapping[str, str]) -> Response:
    """One page, which repeats a header, and a stream."""

    async def parts() -> AsyncGenerator[bytes, None]:
        yield b"one"
        yield b"two"

    if path == "/parts":
        return Response(200, b"none", stream=parts())
    return Response(200, headers.get("x-said", "").encode("latin-1")) if path == "/page" else not_found(["/page"])


def answered(request: bytes) -> bytes:
    """All bytes of the answer."""

    async def scene() -> bytes:
        client, server = socket.socketpair()
        with client, server:
            server.setblocking(False)
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            await answer_get(SocketStream(server), known)
            server.close()
            return b"".join(iter(lambda: client.recv(65536), b""))

    return asyncio.run(scene())


def status(request: bytes) -> str:
    return answered(request)[9:12].decode()


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [
        (b"GET /page HTTP/1.1", "200"),
        (b"GET /page?verbose HTTP/1.0", "200"),
        (b"GET / HTTP/1.1", "404"),
        (b"GET /page/../etc HTTP/1.1", "404"),
        (b"POST /page HTTP/1.1", "405"),
        (b"HEAD /page HTTP/1.1", "405"),
        (b"GET  /page HTTP/1.1", "400"),
        (b"\x16\x03\x01\x02", "400"),
        (b"", "400"),
        (b"GET /page HTTP/1.1\r\nX: " + b"a" * 100_000, "431"),
    ],
)
def test_a_request_is_answered_as_it_deserves(request_line: bytes, expected: str) -> None:
    assert status(request_line + b"\r\nHost: a\r\n\r\n") == expected


def test_an_answer_says_that_it_is_the_last_and_that_its_type_is_no_guess() -> None:
    head, _, body = answered(b"GET /page HTTP/1.1\r\nHost: a\r\nX-Said: hello\r\n\r\n").partition(b"\r\n\r\n")
    lines = head.lower().splitlines()
    assert {b"connection: close", b"x-content-type-options: nosniff", b"content-length: 5"} <= set(lines)
    assert body == b"hello"


def test_a_stream_is_sent_in_its_parts() -> None:
    new, old = (answered(b"GET /parts HTTP/1.%d\r\nHost: a\r\n\r\n" % minor).partition(b"\r\n\r\n") for minor in (1, 0))
    assert new[2] == b"4\r\nnone\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
    assert old[2] == b"noneonetwo"


def test_who_says_nothing_gets_nothing() -> None:
    assert answered(b"") == b""


@given(st.binary(min_size=1, max_size=300))
def test_no_request_is_too_odd_to_be_answered(request: bytes) -> None:
    assert status(request + b"\r\n\r\n") in {"200", "400", "404", "405"}
