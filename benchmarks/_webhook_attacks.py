"""The webhook under attack: how long an honest review takes, and how much memory the process has (T4).

200 connections at a time that say nothing, or half of a handshake, a header or a review, and come again when they are
closed; 2,000 connections a second that begin a handshake; 32 clients that send the largest reviews in a row. They come
from one other address, each from an address of its own, or from the client's. The honest client keeps its connection as
the API server does, or makes one for each review. The targets: p99 under 50 ms, resident under 96 MB.
"""

from __future__ import annotations

import http.client
import multiprocessing
import os
import re
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.plugin.webhook.test_server import PATH, YES, Webhook, review

Address = str | None
"""Of all attackers; None: each has its own."""
PLACES: dict[str, Address] = {"another address": "127.0.0.2", "200 addresses": None, "the same address": "127.0.0.1"}
REVIEW = review(YES)
TIMEOUT = 5.0
"""The registration's ``timeoutSeconds``."""
BETWEEN = 0.01


def measure(folder: Path, seconds: float) -> None:
    """Print a line for each attack, place and kind of client."""
    webhook = Webhook(folder)
    with served(webhook) as pid:
        report("nothing", webhook, seconds, pid)
    for name, attack in {"200 slow": slow, "2,000 a second": fast, "32 large": large}.items():
        for place, address in PLACES.items():
            with served(webhook) as pid:
                attacker = multiprocessing.Process(target=attack, args=(webhook.port, address), daemon=True)
                attacker.start()
                time.sleep(1)  # it needs a moment to be at full strength
                report(f"{name} from {place}", webhook, seconds, pid)
                attacker.kill()
                attacker.join()


@contextmanager
def served(webhook: Webhook) -> Iterator[int]:
    """The process's ID."""
    command = [sys.executable, "-m", "launcherkit_plugin", *webhook.arguments()[1:]]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        webhook.port = int(process.stderr.readline().rsplit(" ", 1)[1])
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield process.pid
        process.terminate()


def report(attack: str, webhook: Webhook, seconds: float, pid: int) -> None:
    for name, client in {"kept connection": kept, "new connections": new}.items():
        taken, failed = client(webhook, time.monotonic() + seconds / 2)
        p50, p99 = (1e3 * value for value in (statistics.median(taken), statistics.quantiles(taken, n=100)[98]))
        status = Path(f"/proc/{pid}/status").read_text()
        peak, now = (int(re.findall(rf"{key}:\s*(\d+)", status)[0]) / 1000 for key in ("VmHWM", "VmRSS"))
        print(
            f"under {attack}, {name}: {len(taken)} reviews, p50 {p50:.1f} ms, p99 {p99:.1f} ms, {failed} failed, "
            f"{now:.1f} MB resident, at most {peak:.1f}",
            flush=True,
        )


def connect(webhook: Webhook) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection("localhost", webhook.port, context=webhook.trusting, timeout=TIMEOUT)


def ask(connection: http.client.HTTPSConnection) -> None:
    connection.request("POST", PATH, REVIEW)
    response = connection.getresponse()
    if response.status != 200 or b"patch" not in response.read():
        raise http.client.HTTPException(response.status)


def kept(webhook: Webhook, end: float) -> tuple[list[float], int]:
    """The seconds of each review, and how many failed; then a new connection is made."""
    taken, failed, connection = list[float](), 0, connect(webhook)
    while (began := time.monotonic()) < end:
        try:
            ask(connection)
        except (OSError, http.client.HTTPException):
            failed += 1
            connection.close()
        taken.append(time.monotonic() - began)
        time.sleep(BETWEEN)
    connection.close()
    return taken, failed


def new(webhook: Webhook, end: float) -> tuple[list[float], int]:
    """The same with a connection for each."""
    taken, failed = list[float](), 0
    while (began := time.monotonic()) < end:
        connection = connect(webhook)
        try:
            ask(connection)
        except (OSError, http.client.HTTPException):
            failed += 1
        connection.close()
        taken.append(time.monotonic() - began)
        time.sleep(BETWEEN)
    return taken, failed


def source(address: Address, number: int) -> tuple[str, int]:
    return (address or f"127.1.{number % 200}.1", 0)


def hello() -> bytes:
    """The first bytes of a TLS client."""
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def slow(port: int, address: Address) -> None:
    """A thread each."""
    os.nice(19)  # real attackers have processors of their own

    def attack(number: int) -> None:
        while True:
            with suppress(OSError), _slow_connection(port, source(address, number), number % 4) as it:
                it.settimeout(60)
                while it.recv(1 << 16):
                    pass
            time.sleep(1)

    _in_threads(attack, 200)


def _slow_connection(port: int, own: tuple[str, int], kind: int) -> socket.socket:
    it = socket.create_connection(("127.0.0.1", port), TIMEOUT, own)
    if kind == 0:
        return it
    if kind == 1:
        it.sendall(hello()[:100])
        return it
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    secure = context.wrap_socket(it)
    secure.sendall(f"POST {PATH} HTTP/1.1\r\nHost: a\r\n".encode())
    if kind == 3:
        secure.sendall(b"Content-Length: 4000000\r\n\r\n" + bytes(2_000_000))
    return secure


def fast(port: int, address: Address) -> None:
    """Begin handshakes and leave."""
    os.nice(19)
    first, began, opened = hello(), time.monotonic(), list[socket.socket]()
    for number in range(1 << 30):
        with suppress(OSError):
            it = socket.create_connection(("127.0.0.1", port), 0.2, source(address, number))
            it.sendall(first)
            opened.append(it)
        if len(opened) > 100:
            opened.pop(0).close()
        time.sleep(max(0, began + number / 2000 - time.monotonic()))


def large(port: int, address: Address) -> None:
    """Reviews with as many values as are accepted, and wide characters."""
    os.nice(19)
    padding = [0] * 190_000
    body = review({**YES, "padding": padding, "wide": "\N{GRINNING FACE}"}).replace(
        b'"wide"', b'"' + b"w" * 3_000_000 + b'"'
    )
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def attack(number: int) -> None:
        while True:
            connection = http.client.HTTPSConnection(
                "127.0.0.1", port, source_address=source(address, number), context=context
            )
            with suppress(OSError, http.client.HTTPException):
                while True:
                    connection.request("POST", PATH, body)
                    connection.getresponse().read()
            connection.close()
            time.sleep(0.05)

    _in_threads(attack, 32)


def _in_threads(attack: Callable[[int], None], count: int) -> None:
    for number in range(count):
        threading.Thread(target=attack, args=(number,), daemon=True).start()
    time.sleep(3600)
