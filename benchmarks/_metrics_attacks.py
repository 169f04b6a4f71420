"""The metrics' port under attack: how long the kubelet waits, and what a scraper gets (T4, T6).

4,700 connections a second, or as many as the attackers get to make: they ask for the metrics, or say nothing, and are
closed. The attackers have another address than the scraper, or the same. The honest kubelet asks every 2 ms, the
scraper every 50 ms. The target: p99 of the kubelet under 50 ms.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import socket
import statistics
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from urllib.request import urlopen

from benchmarks.plugin import ENVIRONMENT, PLUGIN, build
from launcherkit_lab.kubelet import Kubelet, running_kubelet
from launcherkit_plugin.kubelet.proto import deviceplugin_v1beta1_pb2 as wire
from tests.support.hooks import ServerProcess
from tests.support.webprocess import WebProcess

A_SECOND = 4700
_OPEN = 200
"""Connections that an attacker keeps before it closes the oldest."""
_ATTACKERS = 2
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"


def measure(folder: Path, seconds: float) -> None:
    """Print a line for each attack."""
    build(folder / "host", 1024)
    path = folder / "w.sock"
    with running_kubelet(folder / "k") as kubelet:
        places = ["--host", str(folder / "host"), "--dev-root", str(folder / "host")]
        command = [*PLUGIN, *places, "--kubelet-dir", str(folder / "k"), "--web-socket", str(path)]
        daemon = ServerProcess(command, ENVIRONMENT)
        try:
            with WebProcess(path, python=sys.executable) as web:
                kubelet.wait(lambda: all(kubelet.devices(name) for name in kubelet.resources()) and kubelet.resources())
                report("nothing", kubelet, web, daemon, seconds)
                for name, request in {"scrapes": REQUEST, "silent connections": b""}.items():
                    for place, address in {"another address": "127.0.0.2", "the same address": "127.0.0.1"}.items():
                        flood_and_report(f"{name} from {place}", request, address, kubelet, web, daemon, seconds)
        finally:
            daemon.close()


def flood_and_report(
    name: str, request: bytes, address: str, kubelet: Kubelet, web: WebProcess, daemon: ServerProcess, seconds: float
) -> None:
    """Flood the port, and report."""
    made = multiprocessing.Value("q", 0)
    attackers = [
        multiprocessing.Process(target=flood, args=(web.where, request, address, made), daemon=True)
        for _ in range(_ATTACKERS)
    ]
    for attacker in attackers:
        attacker.start()
    time.sleep(1)  # they need a moment to be at full strength
    before, began = made.value, time.monotonic()
    report(name, kubelet, web, daemon, seconds)
    rate = (made.value - before) / (time.monotonic() - began)
    print(f"  {rate:.0f} connections a second", flush=True)
    for attacker in attackers:
        attacker.kill()
        attacker.join()


def report(name: str, kubelet: Kubelet, web: WebProcess, daemon: ServerProcess, seconds: float) -> None:
    """One line."""
    resource = min(kubelet.resources())
    ids = sorted(kubelet.devices(resource))
    asked = wire.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=2)
    request = wire.PreferredAllocationRequest(container_requests=[asked])
    scraped: list[bool] = []
    ended = threading.Event()
    scraper = threading.Thread(target=scrape, args=(web.where, scraped, ended))
    scraper.start()
    processor = {process: _processor_seconds(process) for process in (daemon, web)}
    taken, end = list[float](), time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        kubelet.call(resource, "GetPreferredAllocation", request, wire.PreferredAllocationResponse)
        taken.append(time.monotonic() - began)
        time.sleep(0.002)
    shares = [(_processor_seconds(process) - before) / seconds for process, before in processor.items()]
    ended.set()
    scraper.join()
    p50, p99 = (1e3 * value for value in (statistics.median(taken), statistics.quantiles(taken, n=100)[98]))
    print(
        f"under {name}: {len(taken)} calls, p50 {p50:.1f} ms, p99 {p99:.1f} ms, at most {1e3 * max(taken):.1f} ms; "
        f"{sum(scraped)} of {len(scraped)} scrapes answered; the daemon has {shares[0]:.0%} of a processor and "
        f"{daemon.resident_peak():.1f} MB, the web process {shares[1]:.0%} and {web.resident_peak():.1f} MB",
        flush=True,
    )


def _processor_seconds(process: ServerProcess) -> float:
    return time.clock_gettime(~process.process.pid << 3 | 2)  # as clock_getcpuclockid(3) makes it


def scrape(where: str, scraped: list[bool], ended: threading.Event) -> None:
    """Every 50 ms; whether each had an answer."""
    while not ended.wait(0.05):
        answered = False
        with suppress(OSError), urlopen(f"http://{where}/metrics", timeout=5) as answer:
            answered = b"launcherkit_plugin_devices" in answer.read()
        scraped.append(answered)


def flood(where: str, request: bytes, address: str, made: Synchronized[int]) -> None:
    """Connect, ask, leave."""
    os.nice(19)  # real attackers have processors of their own
    host, _, port = where.rpartition(":")
    opened, number, began = list[socket.socket](), 0, time.monotonic()
    while True:
        number += 1
        it = socket.socket()
        it.setblocking(False)
        with suppress(OSError):
            it.bind((address, 0))
            with suppress(BlockingIOError):
                it.connect((host, int(port)))
            it.send(request)
        opened.append(it)
        if len(opened) > _OPEN:
            opened.pop(0).close()
        with made.get_lock():
            made.value += 1
        select.select([], [], [], max(0, began + number * _ATTACKERS / A_SECOND - time.monotonic()))
