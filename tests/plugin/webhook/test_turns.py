"""Large reviews wait for their turn, and small ones don't wait for them."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy.own_ca import certified
from deploy.render import injections
from launcherkit_plugin.telemetry.reporter import silent
from launcherkit_plugin.webhook.injection import read_injections
from launcherkit_plugin.webhook.server import Answers, serving
from launcherkit_plugin.webhook.tls import Certificate
from tests.support.launcher_pods import VALUES, launcher_pod
from tests.support.looping import TimedLoop, run_timed

LARGE = 64 << 10


def review(size: int) -> bytes:
    """A review of a launcher pod, of so many bytes."""
    asked = {"uid": "u-1", "kind": {"version": "v1", "kind": "Pod"}, "operation": "CREATE", "object": launcher_pod()}
    body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}).encode()
    return body.ljust(size)


@pytest.fixture
def answers(tmp_path: Path) -> Answers:
    for name, text in injections(VALUES).items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return Answers(read_injections(tmp_path), tmp_path, silent)


@pytest.fixture
def trusting(tmp_path: Path) -> ssl.SSLContext:
    authority, certificate, key = certified("localhost")
    (tmp_path / "tls.crt").write_bytes(certificate)
    (tmp_path / "tls.key").write_bytes(key)
    return ssl.create_default_context(cadata=authority.decode())


async def answered(port: int, trusting: ssl.SSLContext, body: bytes) -> bytes:
    """The first line of the answer to a review."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname="localhost")
    try:
        head = f"POST /launcherkit-sidecar HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        return await reader.readline()
    finally:
        writer.close()


def test_a_review_of_64_kib_is_answered_while_a_larger_one_waits_for_its_turn(
    tmp_path: Path, answers: Answers, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, goes_on = asyncio.Event(), asyncio.Event()

    async def turn(_: float) -> None:
        waits.set()
        await goes_on.wait()

    async def scene(_: TimedLoop) -> None:
        certificate = Certificate(tmp_path / "tls.crt", tmp_path / "tls.key", None, silent)
        async with serving(0, certificate, answers) as port:
            larger = asyncio.create_task(answered(port, trusting, review(LARGE + 1)))
            await waits.wait()
            assert b" 200 " in await answered(port, trusting, review(LARGE))
            assert not larger.done()
            goes_on.set()
            assert b" 200 " in await larger

    for_the_server = SimpleNamespace(**{**vars(asyncio), "sleep": turn})
    monkeypatch.setattr("launcherkit_plugin.webhook.server.asyncio", for_the_server)
    run_timed(scene)
