"""A connection's time: without a call, with one that takes for ever, with a peer that reads nothing."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from grpclib import GRPCError
from grpclib.client import Channel
from grpclib.const import Cardinality
from grpclib.server import Stream

from launcherkit.adapters.proto import hooks_info_pb2 as wire
from launcherkit.rpc import calls, connection, frames
from launcherkit.rpc.calls import Calls, receive
from launcherkit.rpc.methods import Servicer, call
from launcherkit.rpc.server import BoundedServer
from tests.support import hostile
from tests.support.looping import TimedLoop, run_timed, settled

Answer = Callable[[], Awaitable[wire.InfoResult]]
INFO = "/kubevirt.hooks.info.Info/Info"
SECONDS = 60
IDLE = 2.0
"""So short that a call of `SECONDS` outlasts it many times."""
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


async def arrive(under_way: Calls, number: int) -> None:
    """Until so many calls are under way whose requests are there."""
    while [call.has_arrived for call in under_way._calls.values()] != [True] * number:
        await asyncio.sleep(0)


@asynccontextmanager
async def serving(folder: Path, answer: Answer = at_once, under_way: Calls | None = None) -> AsyncIterator[Path]:
    server = BoundedServer([_Info(answer)], Calls() if under_way is None else under_way)
    path = folder / "s"
    await server.start(path=str(path))
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


def test_a_connection_without_a_call_ends_with_a_goodbye(tmp_path: Path) -> None:
    async def scenario(loop: TimedLoop) -> bytes:
        async with serving(tmp_path) as path:
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(hostile.PREFACE + hostile.frame(hostile.SETTINGS, 0, 0))
            await reader.readexactly(9)
            loop.skip(connection.IDLE_SECONDS)
            read = await reader.read()
            writer.close()
            return read

    goodbye = run_timed(scenario)[-17:]
    assert (goodbye[3], goodbye[-4:]) == (7, bytes(4)), "GOAWAY without an error"


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


def test_one_that_is_accepted_while_the_server_ends_does_not_hold_up_its_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = BoundedServer([_Info(at_once)], Calls())
        await server.start(path=str(tmp_path / "s"))
        await server.hang_up()
        ours, theirs = socket.socketpair()
        with ours:
            await asyncio.get_running_loop().connect_accepted_socket(server._protocol_factory, theirs)
            async with asyncio.timeout(SECONDS):
                await server._connections.hang_up()
            ours.settimeout(SECONDS)
            assert await asyncio.to_thread(ours.recv, 1) == b""

    asyncio.run(scenario())


def test_one_with_a_call_stays_and_its_client_dials_again_after_a_goodbye(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, answered = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(connection, "IDLE_SECONDS", IDLE)

    async def later() -> wire.InfoResult:
        begun.set()
        await answered.wait()
        return wire.InfoResult(name="late")

    async def scenario(loop: TimedLoop) -> list[str]:
        async with serving(tmp_path, later) as path:
            channel = Channel(path=str(path))
            first = asyncio.create_task(asked(channel))
            await begun.wait()
            for _ in range(3):
                loop.skip(IDLE)
                await settled()
            answered.set()
            names = [(await first).name]
            while channel._connected:
                loop.skip(IDLE)
                await settled()
            names.append((await asked(channel)).name)
            channel.close()
            return names

    assert run_timed(scenario) == ["late", "late"]


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
    async def scenario(loop: TimedLoop) -> None:
        under_way = Calls()
        async with serving(tmp_path, never, under_way) as path:
            channel = Channel(path=str(path))
            call = asyncio.create_task(asked(channel, DAY))
            await arrive(under_way, 1)
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
                loop.skip(calls.RECEIVE_SECONDS)
                with pytest.raises(GRPCError, match="did not arrive in time"):
                    await call
                while under_way:
                    await asyncio.sleep(0)
            channel.close()

    run_timed(scenario)


def test_calls_that_begin_during_a_long_one_have_their_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All calls share a timer, which the long one has set for the distant end of its time."""

    async def scenario(loop: TimedLoop) -> None:
        under_way = Calls()
        async with serving(tmp_path, never, under_way) as path:
            channel, other = Channel(path=str(path)), Channel(path=str(path))
            long = asyncio.create_task(asked(channel, DAY))
            await arrive(under_way, 1)
            loop.skip(calls.RECEIVE_SECONDS)  # from here on the timer is set for the end of the call
            await settled()
            monkeypatch.setattr(calls, "CALL_SECONDS", 1.0)
            short = asyncio.create_task(asked(other, DAY))
            await arrive(under_way, 2)
            loop.skip(1.0)
            try:
                await short
            finally:
                assert not long.done()
                long.cancel()
                await asyncio.wait({long})
                channel.close()
                other.close()

    with pytest.raises(GRPCError, match="took too long"):
        run_timed(scenario)


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


def test_a_peer_that_reads_nothing_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STALL_SECONDS", 0.05)
    monkeypatch.setattr(frames, "A_SECOND", 100_000.0)  # what it answers is to fill the socket soon

    async def scenario() -> None:
        async with serving(tmp_path) as path:
            reader, writer = await asyncio.open_unix_connection(str(path))
            reader._transport.pause_reading()  # type: ignore[attr-defined]  # asyncio has no other way
            writer.write(hostile.PREFACE + hostile.frame(hostile.SETTINGS, 0, 0))
            async with asyncio.timeout(SECONDS):
                while True:
                    writer.write(hostile.frame(hostile.PING, 0, 0, bytes(8)) * 1000)
                    await writer.drain()

    with pytest.raises(ConnectionError):
        asyncio.run(scenario())


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


def test_a_server_that_has_ended_leaves_no_timer(tmp_path: Path) -> None:
    """It would keep the calls in memory for as long as one may take."""

    async def scene() -> weakref.ref[Calls]:
        under_way = Calls()
        async with serving(tmp_path, under_way=under_way) as path:
            channel = Channel(path=str(path))
            await asked(channel)
            channel.close()
            await under_way.drain(SECONDS)
        return weakref.ref(under_way)

    async def after() -> None:
        left = await scene()
        gc.collect()
        assert left() is None

    asyncio.run(after())
