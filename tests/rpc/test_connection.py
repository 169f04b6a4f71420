"""A connection and its calls: with one that takes for ever, with a peer that reads nothing, where there is no room."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from grpclib import GRPCError
from grpclib.client import Channel
from grpclib.const import Cardinality
from grpclib.exceptions import StreamTerminatedError
from grpclib.server import Stream

from launcherkit.errors import SOCKET_IN_USE, LauncherkitError
from launcherkit.hooks.proto import hooks_info_pb2 as wire
from launcherkit.rpc import calls, connection
from launcherkit.rpc import connection as connections
from launcherkit.rpc.calls import Calls, receive
from launcherkit.rpc.client import in_a_task, unix_channel
from launcherkit.rpc.methods import Servicer, call
from launcherkit.rpc.server import BoundedServer, report_faults
from launcherkit.rpc.server import serving as serve_at
from tests.support import hostile
from tests.support.looping import TimedLoop, run_timed, settled

Answer = Callable[[], Awaitable[wire.InfoResult]]
INFO = "/kubevirt.hooks.info.Info/Info"
SECONDS = 60
DAY = 86400.0


class _Info(Servicer):
    service = wire.DESCRIPTOR.services_by_name["Info"]

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def Info(self, stream: Stream[wire.InfoParams, wire.InfoResult]) -> None:
        await receive(stream, wire.InfoParams)
        await stream.send_message(await self._answer())


async def at_once() -> wire.InfoResult:
    return wire.InfoResult(name="a")


async def never() -> wire.InfoResult:
    await asyncio.Event().wait()
    raise AssertionError


@asynccontextmanager
async def serving(folder: Path, answer: Answer = at_once, under_way: Calls | None = None) -> AsyncIterator[Path]:
    server = BoundedServer([_Info(answer)], Calls() if under_way is None else under_way)
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        await server.listen(bound)
        try:
            yield path
        finally:
            await server.hang_up()


async def asked(channel: Channel, seconds: float = SECONDS) -> wire.InfoResult:
    answer: wire.InfoResult = await call(
        channel, _Info.service.methods_by_name["Info"], wire.InfoParams(), timeout=seconds
    )
    return answer


async def asked_in_vain(channel: Channel) -> None:
    """A call whose request never comes."""
    begun = channel.request(INFO, Cardinality.UNARY_UNARY, wire.InfoParams, wire.InfoResult)
    async with begun as stream:
        await stream.send_request()
        await stream.recv_message()


def test_a_peer_may_still_write_until_it_has_read_that_the_server_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the acknowledgement of settings: at EPIPE grpclib's client drops an answer that it has not read."""
    monkeypatch.setattr(connection, "LINGER_SECONDS", SECONDS)

    async def scenario() -> None:
        async with AsyncExitStack() as server:
            path = await server.enter_async_context(serving(tmp_path))
            loop = asyncio.get_running_loop()
            with socket.socket(socket.AF_UNIX) as client:
                client.setblocking(False)
                await loop.sock_connect(client, str(path))
                await loop.sock_sendall(client, hostile.PREFACE + hostile.frame(hostile.SETTINGS, 0, 0))
                assert await loop.sock_recv(client, 1)
                ended = asyncio.create_task(server.aclose())
                async with asyncio.timeout(SECONDS):
                    while await loop.sock_recv(client, 65536):
                        pass
                for _ in range(3):
                    await loop.sock_sendall(client, hostile.frame(hostile.PING, 0, 0, bytes(8)))
                    await asyncio.sleep(0)
                assert not ended.done()
            async with asyncio.timeout(SECONDS):
                await ended

    asyncio.run(scenario())


def test_a_call_that_arrives_after_the_server_has_ended_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_SECONDS", SECONDS)
    begun: list[int] = []

    async def answer() -> wire.InfoResult:
        begun.append(1)
        return await at_once()

    def asking(stream: int) -> bytes:
        block = hostile.headers(INFO)
        head = hostile.frame(hostile.HEADERS, hostile.END_HEADERS, stream, block)
        return head + hostile.frame(hostile.DATA, hostile.END_STREAM, stream, bytes(5))

    async def scenario() -> None:
        async with AsyncExitStack() as server:
            path = await server.enter_async_context(serving(tmp_path, answer))
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(hostile.PREFACE + hostile.frame(hostile.SETTINGS, 0, 0) + asking(1))
            while not begun:
                await asyncio.sleep(0)
            ended = asyncio.create_task(server.aclose())
            async with asyncio.timeout(SECONDS):
                await reader.read()
                writer.write(asking(3))
                await writer.drain()
                await settled()
                writer.close()
                await ended

    asyncio.run(scenario())
    assert len(begun) == 1


def test_no_connection_is_accepted_while_the_last_calls_end(tmp_path: Path) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow() -> wire.InfoResult:
        begun.set()
        await may_end.wait()
        return await at_once()

    def refused(path: str, why: str = "") -> LauncherkitError:
        return SOCKET_IN_USE(f"{path}: {why}", "Nothing.")

    async def scenario() -> None:
        path = tmp_path / "s"
        async with AsyncExitStack() as server:
            await server.enter_async_context(
                serve_at(str(path), [_Info(slow)], refused, refused, drain_seconds=SECONDS)
            )
            channel = Channel(path=str(path))
            asking = asyncio.create_task(asked(channel))
            await begun.wait()
            ended = asyncio.create_task(server.aclose())
            await settled()
            with socket.socket(socket.AF_UNIX) as late:
                late.setblocking(False)
                with suppress(OSError):
                    late.connect(str(path))
                    late.send(hostile.PREFACE + hostile.frame(hostile.SETTINGS, 0, 0))
                await settled()
                with pytest.raises(OSError):  # noqa: PT011  # nothing to read, or not connected
                    late.recv(1)
            may_end.set()
            assert (await asking).name == "a"
            channel.close()
            await ended

    asyncio.run(scenario())


@pytest.mark.parametrize(("env", "passed_on"), [({}, []), ({"LAUNCHERKIT_DEBUG": "1"}, ["asyncio", "grpclib"])])
def test_what_libraries_log_is_passed_on_only_to_who_looks_for_faults(
    env: dict[str, str], passed_on: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[str] = []

    async def start() -> None:
        report_faults(env, got.append)

    root = logging.Handler()
    monkeypatch.setattr(root, "emit", lambda record: got.append(record.name))
    logging.getLogger().addHandler(root)
    loggers = [logging.getLogger(name) for name in ("asyncio", "grpclib")]
    before = [(logger.propagate, logger.handlers[:]) for logger in loggers]
    try:
        for logger in loggers:
            logger.propagate = True
        asyncio.run(start())
        for logger in loggers:
            logger.error("a traceback")
    finally:
        logging.getLogger().removeHandler(root)
        for logger, (propagate, handlers) in zip(loggers, before, strict=True):
            logger.propagate, logger.handlers[:] = propagate, handlers
    assert got == passed_on


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be root")
def test_root_may_call_a_server_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> str:
        async with serving(tmp_path) as path:
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
            channel = Channel(path=str(path))
            try:
                return (await asked(channel)).name
            finally:
                channel.close()

    assert asyncio.run(scenario()) == "a"


def test_one_that_is_accepted_while_the_server_ends_does_not_hold_up_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted: list[connection.BoundedConnection] = []

    class Accepted(connection.BoundedConnection):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            accepted.append(self)

    async def scenario() -> None:
        server = BoundedServer([_Info(at_once)], Calls())
        await server.start(path=str(tmp_path / "s"))
        with socket.socket(socket.AF_UNIX) as ours:
            ours.connect(str(tmp_path / "s"))
            async with asyncio.timeout(SECONDS):
                while not accepted:  # asyncio connects it to its socket in a later turn of the loop
                    await asyncio.sleep(0)
                await server.hang_up()
                ours.settimeout(SECONDS)
                assert await asyncio.to_thread(ours.recv, 1) == b""
                await server.hang_up()
                await server.wait_closed()

    monkeypatch.setattr("launcherkit.rpc.server.BoundedConnection", Accepted)
    asyncio.run(scenario())


@pytest.mark.parametrize("kind", [7, 11])
def test_a_frame_that_nobody_knows_behind_many_others_ends_its_connection(tmp_path: Path, kind: int) -> None:
    """GOAWAY with a text that is none, and a frame of an extension: also where they are not of the first turn."""

    async def scenario() -> None:
        async with serving(tmp_path) as path:
            reader, writer = await asyncio.open_unix_connection(str(path))
            many = hostile.frame(hostile.PING, 0, 0, bytes(8)) * 40
            writer.write(hostile.PREFACE + hostile.frame(hostile.SETTINGS, 0, 0) + many)
            writer.write(hostile.frame(kind, 0, 0, bytes(8) + b"\xff"))
            async with asyncio.timeout(SECONDS):
                with suppress(ConnectionError):
                    await reader.read()
            writer.close()
            channel = Channel(path=str(path))
            assert (await asked(channel)).name == "a"
            channel.close()

    asyncio.run(scenario())


def test_a_call_has_its_time(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def slow() -> wire.InfoResult:
        begun.set()
        return await never()

    async def scenario(loop: TimedLoop) -> None:
        async with serving(tmp_path, slow) as path:
            channel = Channel(path=str(path))
            call = asyncio.create_task(asked(channel, DAY))
            await begun.wait()
            loop.skip(calls.CALL_SECONDS)
            try:
                await call
            finally:
                channel.close()

    with pytest.raises(GRPCError, match="took too long"):
        run_timed(scenario)


@pytest.mark.parametrize("endless", [frozenset[str](), frozenset({INFO})])
def test_a_request_that_does_not_arrive_is_not_waited_for(tmp_path: Path, endless: frozenset[str]) -> None:
    async def scenario(loop: TimedLoop) -> None:
        under_way = Calls(endless)
        async with serving(tmp_path, never, under_way) as path:
            channel = Channel(path=str(path))
            for _ in range(2):
                call = asyncio.create_task(asked_in_vain(channel))
                while not under_way:
                    await asyncio.sleep(0)
                await settled()
                loop.skip(calls.RECEIVE_SECONDS)
                with pytest.raises(GRPCError, match="did not arrive in time"):
                    await call
                while under_way:
                    await asyncio.sleep(0)
            channel.close()

    run_timed(scenario)


def test_beyond_a_number_of_calls_others_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CALLS_AT_ONCE", 2)

    async def scenario() -> None:
        under_way = Calls()
        async with serving(tmp_path, under_way=under_way) as path:
            channel = Channel(path=str(path))
            unasked = [asyncio.create_task(asked_in_vain(channel)) for _ in range(2)]
            while len(under_way) < 2:
                await asyncio.sleep(0)
            with pytest.raises(GRPCError, match="2 calls are under way"):
                await asked(channel)
            for call in unasked:
                call.cancel()
            await asyncio.wait(unasked)
            while under_way:
                await asyncio.sleep(0)
            assert (await asked(channel)).name == "a"
            channel.close()

    asyncio.run(scenario())


def test_of_a_peer_that_reads_nothing_nothing_more_is_read_until_it_reads(tmp_path: Path) -> None:
    ping = hostile.frame(hostile.PING, 0, 0, bytes(8))

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with serving(tmp_path) as path:
            with socket.socket(socket.AF_UNIX) as client:
                client.setblocking(False)
                await loop.sock_connect(client, str(path))
                await loop.sock_sendall(client, hostile.PREFACE + hostile.frame(hostile.SETTINGS, 0, 0))
                sent = 0
                while True:
                    try:
                        sent += client.send(ping * 60)
                    except BlockingIOError:
                        held = sent
                        await settled()
                        with suppress(BlockingIOError):
                            sent += client.send(ping * 60)
                        if held == sent:
                            break
                    await asyncio.sleep(0)
                assert sent < 1 << 20
                answers = 0
                while answers < sent // len(ping) * len(ping):
                    answers += len(await loop.sock_recv(client, 65536))
                client.setblocking(True)
            channel = Channel(path=str(path))
            assert (await asked(channel)).name == "a"
            channel.close()

    run_timed(lambda _: scenario())


def test_little_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that others have their turn."""
    sizes: list[int] = []
    received = connection.BoundedConnection.data_received

    def counted(it: connection.BoundedConnection, data: bytes) -> None:
        sizes.append(len(data))
        received(it, data)

    monkeypatch.setattr(connection.BoundedConnection, "data_received", counted)

    async def scenario() -> None:
        async with serving(tmp_path) as path:
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(hostile.PREFACE + hostile.frame(hostile.SETTINGS, 0, 0))
            writer.write(hostile.frame(hostile.PING, 0, 0, bytes(8)) * 1000)
            async with asyncio.timeout(SECONDS):
                await reader.readexactly(17_000)
            writer.close()

    asyncio.run(scenario())
    assert sum(sizes) > 17_000
    assert max(sizes) <= connection.READ_BYTES


def test_a_new_connection_takes_the_place_of_the_oldest_without_a_call_unless_all_are_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_AT_ONCE", 3)
    begun, answered = asyncio.Event(), asyncio.Event()

    async def later() -> wire.InfoResult:
        begun.set()
        await answered.wait()
        return wire.InfoResult(name="late")

    async def greeted(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection that is served; None if it was closed."""
        reader, writer = await asyncio.open_unix_connection(str(path))
        if await reader.read(9):
            return reader, writer
        writer.close()
        return None

    async def scenario(loop: TimedLoop) -> str:
        async with serving(tmp_path, later) as path:
            busy = Channel(path=str(path))
            call = asyncio.create_task(asked(busy, DAY))
            await begun.wait()
            first, second = await greeted(path), await greeted(path)
            assert first
            assert second
            assert await greeted(path) is None
            loop.skip(connections.NEW_SECONDS)
            third = await greeted(path)
            assert third
            with suppress(ConnectionError):
                while await first[0].read(4096):
                    pass
            fourth = await greeted(path)  # the second is as old as the first
            assert fourth
            assert await greeted(path) is None
            answered.set()
            name = (await call).name
            for _, writer in (first, second, third, fourth):
                writer.close()
            busy.close()
            return name

    assert run_timed(scenario) == "late"


@pytest.mark.parametrize("chunks", [hostile.pings, hostile.settings])
def test_a_server_that_sends_without_end_is_left_and_others_have_their_turn(
    tmp_path: Path, chunks: Callable[[str], Iterator[bytes]]
) -> None:
    """Such as what answers at the path of a kubelet's socket."""
    sent = 0

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with suppress(ConnectionError):
            writer.write(hostile.frame(hostile.SETTINGS, 0, 0))
            for chunk in chunks(""):
                writer.write(chunk)
                sent += len(chunk)
                await writer.drain()
        writer.close()

    async def scenario() -> None:
        path = str(tmp_path / "s")
        server = await asyncio.start_unix_server(flood, path)
        channel = unix_channel(path)
        async with asyncio.timeout(SECONDS):
            with pytest.raises(StreamTerminatedError):
                await in_a_task(asked(channel, DAY))
        channel.close()
        server.close()
        await server.wait_closed()

    asyncio.run(scenario())
    assert sent < 4 << 20, "what the sockets hold"


def test_a_call_that_has_no_end_is_not_ended(tmp_path: Path) -> None:
    begun, answered = asyncio.Event(), asyncio.Event()

    async def slow() -> wire.InfoResult:
        begun.set()
        await answered.wait()
        return wire.InfoResult(name="slow")

    async def scenario(loop: TimedLoop) -> str:
        async with serving(tmp_path, slow, Calls(endless={INFO})) as path:
            channel = Channel(path=str(path))
            call = asyncio.create_task(asked(channel, DAY))
            await begun.wait()
            for _ in range(2):
                loop.skip(calls.CALL_SECONDS)
                await settled()
            answered.set()
            answer = await call
            channel.close()
            return answer.name

    assert run_timed(scenario) == "slow"


def test_what_is_written_after_the_end_is_dropped_and_what_the_peer_writes_still_arrives() -> None:
    async def scenario() -> tuple[bytes, bytes]:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        arrived = asyncio.StreamReader()
        transport, _ = await loop.create_connection(lambda: asyncio.StreamReaderProtocol(arrived), sock=ours)
        closing = connection.HalfClosingTransport(transport)
        closing.write(b"answer")
        closing.finish()
        closing.write(b"too late")
        assert closing.is_closing()
        reader, writer = await asyncio.open_unix_connection(sock=theirs)
        async with asyncio.timeout(SECONDS):
            answer = await reader.read()
            writer.write(b"thanks")
            writer.close()
            await writer.wait_closed()
            thanks = await arrived.read()
        closing.close()
        await asyncio.sleep(0)
        return answer, thanks

    assert asyncio.run(scenario()) == (b"answer", b"thanks")


class _Sends(asyncio.Transport):
    """Notes what it is given to send."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str | bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def write_eof(self) -> None:
        self.sent.append("the end")

    def close(self) -> None:
        self.sent.append("closed")


async def sent_by(*actions: Callable[[connection.HalfClosingTransport], object]) -> list[str | bytes]:
    """What is sent of that, before the event loop has its turn."""
    below = _Sends()
    transport = connection.HalfClosingTransport(below)
    for action in actions:
        action(transport)
    return below.sent


def written(data: bytes) -> Callable[[connection.HalfClosingTransport], object]:
    return lambda transport: transport.write(data)


def test_what_is_written_at_one_time_is_sent_at_once() -> None:
    async def scenario() -> list[str | bytes]:
        sent = await sent_by(*map(written, (b"headers ", b"message ", b"trailers")))
        assert sent == []
        await asyncio.sleep(0)
        return sent

    assert asyncio.run(scenario()) == [b"headers message trailers"]


def test_what_is_much_is_sent_before_there_is_more() -> None:
    half = bytes(connection.SEND_BYTES // 2)

    async def scenario() -> list[str | bytes]:
        return list(await sent_by(*map(written, (half, half, b"1", b"2"))))

    assert asyncio.run(scenario()) == [2 * half + b"1"]


@pytest.mark.parametrize(
    ("end", "ended"),
    [(connection.HalfClosingTransport.finish, "the end"), (connection.HalfClosingTransport.close, "closed")],
)
def test_what_is_written_before_the_end_is_sent_before_it(
    end: Callable[[connection.HalfClosingTransport], object], ended: str
) -> None:
    assert asyncio.run(sent_by(written(b"answer"), end)) == [b"answer", ended]
