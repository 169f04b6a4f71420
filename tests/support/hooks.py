"""A running `launcherkit hook serve`, and clients for it: well-behaved ones by grpclib, others by bare HTTP/2."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from grpclib.client import Channel
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, Event

from launcherkit.hooks.proto import (
    hooks_info_pb2,
    hooks_v1alpha1_pb2,
    hooks_v1alpha2_pb2,
    hooks_v1alpha3_pb2,
    plugins_v1alpha1_pb2,
)
from launcherkit.rpc import methods as rpc
from tests.support.forked import LAUNCHERKIT, PLUGIN, Process

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
"""Seconds before a test gives up; nothing here should take one."""

VERSIONS: dict[str, Any] = {
    "v1alpha1": hooks_v1alpha1_pb2,
    "v1alpha2": hooks_v1alpha2_pb2,
    "v1alpha3": hooks_v1alpha3_pb2,
}

INFO = hooks_info_pb2.DESCRIPTOR.services_by_name["Info"].methods_by_name["Info"]
MUTATE = plugins_v1alpha1_pb2.DESCRIPTOR.services_by_name["DomainHookService"].methods_by_name["MutateDomain"]


def callback(name: str, version: str = "v1alpha3") -> MethodDescriptor:
    """A method that KubeVirt calls."""
    service: ServiceDescriptor = VERSIONS[version].DESCRIPTOR.services_by_name["Callbacks"]
    return service.methods_by_name[name]


VMI = json.dumps(
    {
        "metadata": {"name": "gpu-vm", "namespace": "render"},
        "spec": {"domain": {"devices": {"gpus": [{"name": "gpu1", "deviceName": "nvidia.com/GA102"}]}}},
    }
).encode()
DOMAIN = b"""<domain type="kvm"><os><type arch="x86_64" machine="q35">hvm</type></os>
  <devices>
    <hostdev type="pci" managed="no">
      <source><address domain="0x0000" bus="0xe1" slot="0x00" function="0x0"></address></source>
      <alias name="ua-gpu-gpu1"></alias>
    </hostdev>
  </devices>
</domain>"""


def provoked(code: str) -> str:
    """The message that the page of an error shows."""
    lines = (ROOT / "tests" / "provoked" / "hooks.error").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(code))
    return "error[{}]: {}".format(*line.split(": ", 1))


class ServerProcess:
    """A server as a process, of an entry point or of a program; its messages are read as they come."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], **popen: Any) -> None:
        start = Process if command[0] in (LAUNCHERKIT, PLUGIN) else subprocess.Popen
        self.process = start(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            **popen,
        )
        self._lines: list[str] = []
        self._ended = False
        self._change = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._change:
                self._lines.append(line.rstrip("\n"))
                self._change.notify_all()
        with self._change:
            self._ended = True
            self._change.notify_all()

    def wait_for(self, text: str) -> str:
        """The first line with a text, once it is there."""

        def found() -> str | None:
            return next((line for line in self._lines if text in line), None)

        with self._change:
            self._change.wait_for(lambda: found() is not None or self._ended, PATIENCE)
            line = found()
        assert line is not None, f"it never said {text!r}, but\n{self.reported()}"
        return line

    def reported(self) -> str:
        """All that it has said."""
        with self._change:
            return "\n".join(self._lines)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and give the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def resident_peak(self) -> float:
        """In MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1000

    def close(self) -> None:
        """End it whatever state it is in."""
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


class HookProcess(ServerProcess):
    """`launcherkit hook serve`, forked or by a Python with its flags."""

    def __init__(
        self,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        python: Sequence[str] = (),
        **popen: Any,
    ) -> None:
        program = "import sys; from launcherkit.cli.main import main; sys.exit(main())"
        command = [*python, "-c", program] if python else [LAUNCHERKIT]
        super().__init__(
            [*command, "hook", "serve", *map(str, arguments)],
            {"PYTHONPATH": str(ROOT), "CONTAINER_NAME": "hook", **(env or {})},
            **popen,
        )


@contextmanager
def hook_process(
    *arguments: str | Path, serves: Sequence[str] = ("the hook sidecar",), **options: Any
) -> Iterator[HookProcess]:
    """A process that serves by now what ``serves`` names, and that is gone afterwards."""
    process = HookProcess(*arguments, **options)
    try:
        for title in serves:
            process.wait_for(f"serving {title}")
        yield process
    finally:
        process.close()


class Client:
    """Calls on one connection, as the launcher makes them."""

    def __init__(self, path: Path) -> None:
        self.channel = Channel(path=str(path))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()

    async def info(self) -> hooks_info_pb2.InfoResult:
        request = hooks_info_pb2.InfoParams()
        answer: hooks_info_pb2.InfoResult = await rpc.call(self.channel, INFO, request, timeout=PATIENCE)
        return answer

    async def callback(self, name: str, request: Message, version: str = "v1alpha3") -> Any:
        return await rpc.call(self.channel, callback(name, version), request, timeout=PATIENCE)

    async def define(self, domain: bytes = DOMAIN, vmi: bytes = VMI, version: str = "v1alpha3") -> bytes:
        asked = VERSIONS[version].OnDefineDomainParams(domainXML=domain, vmi=vmi)
        return bytes((await self.callback("OnDefineDomain", asked, version)).domainXML)

    async def mutate(
        self, domain: bytes = DOMAIN, vmi: bytes = VMI, domain_type: str = "libvirt", context: str = "Boot"
    ) -> bytes:
        invocation = plugins_v1alpha1_pb2.SidecarContext(invocation_context=context)
        asked = plugins_v1alpha1_pb2.MutateDomainRequest(
            domain_type=domain_type, domain=domain, vmi=vmi, sidecar_context=invocation
        )
        return bytes((await rpc.call(self.channel, MUTATE, asked, timeout=PATIENCE)).domain)


def call(path: Path, use: Callable[[Client], Any]) -> Any:
    """Run one coroutine with a client of its own."""

    async def run() -> Any:
        async with Client(path) as client:
            return await use(client)

    return asyncio.run(run())


class BareClient:
    """HTTP/2 without gRPC's manners."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(str(path))
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.send()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def request(self, path: str, *more: tuple[str, str]) -> int:
        """Headers of a call that is not ended yet."""
        number = self.h2.get_next_available_stream_id()
        headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
        self.h2.send_headers(number, [*headers, ("te", "trailers"), ("content-type", "application/grpc"), *more])
        self.send()
        return number

    def headers_until(self, stream: int, name: str) -> str:
        """The value of a header of the answer."""
        for event in self.events():
            if getattr(event, "stream_id", None) == stream:
                for key, value in getattr(event, "headers", None) or ():
                    if key == name:
                        return str(value)
        raise AssertionError(f"the connection ended without {name}")

    def events(self) -> Iterator[Event]:
        """What comes, until the connection ends."""
        while data := self._received():
            events = self.h2.receive_data(data)
            self.send()
            yield from events
            if any(isinstance(event, ConnectionTerminated) for event in events):
                return

    def _received(self) -> bytes:
        try:
            return self.socket.recv(65536)
        except ConnectionResetError:  # ended with something of ours unread
            return b""
