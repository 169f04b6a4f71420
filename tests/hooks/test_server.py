"""The life of the hook's process: its sockets, signals, neighbours, rude clients, and what it needs to run."""

from __future__ import annotations

import asyncio
import os
import pwd
import resource
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from grpclib import GRPCError, Status
from h2.errors import ErrorCodes
from h2.events import StreamReset

from launcherkit.hooks.proto import hooks_v1alpha3_pb2 as v3
from launcherkit.rpc.methods import opened
from tests.support.forked import LAUNCHERKIT, Process
from tests.support.hooks import (
    DOMAIN,
    ROOT,
    VMI,
    BareClient,
    Client,
    HookProcess,
    call,
    callback,
    hook_process,
    provoked,
)
from tests.support.hosttree import HostTree
from tests.support.samples import from_kubevirt, sample

DEFINE = "/kubevirt.hooks.v1alpha3.Callbacks/OnDefineDomain"
FOLDER = "/var/run/kubevirt-hooks"
NEVER = ("pydantic", "jinja2", "libvirt", "kubernetes", "yaml", "grpc")


@pytest.fixture
def hook(sockets: Path) -> Iterator[HookProcess]:
    """A hook sidecar without host facts."""
    with hook_process("--socket-dir", sockets, "--host", "none") as process:
        yield process


@pytest.fixture
def path(sockets: Path, hook: HookProcess) -> Path:
    """Its socket."""
    return sockets / "hook.sock"


def refused(*arguments: str | Path, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and messages of a process that should not come up."""
    with hook_process(*arguments, serves=(), env=env) as process:
        return process.wait(), process.reported()


# The socket


def test_the_socket_is_for_its_user_and_group_alone_and_nothing_else_is_left_beside_it(
    sockets: Path, path: Path
) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert os.listdir(sockets) == ["hook.sock"]


def test_without_a_container_name_the_socket_has_a_default_one(sockets: Path) -> None:
    with hook_process("--socket-dir", sockets, env={"CONTAINER_NAME": ""}):
        assert os.listdir(sockets) == ["launcherkit.sock"]


def test_a_socket_of_a_killed_predecessor_is_taken_over(sockets: Path, hook: HookProcess, path: Path) -> None:
    hook.process.kill()
    hook.wait()
    assert path.is_socket()
    with hook_process("--socket-dir", sockets, "--host", "none"):
        assert call(path, lambda client: client.info()).name == "launcherkit"


def test_a_socket_of_a_living_neighbour_is_not(sockets: Path, path: Path) -> None:
    code, reported = refused("--socket-dir", sockets)
    assert code == 78
    assert reported.startswith(provoked("LK611").replace(FOLDER, str(sockets)))
    assert call(path, lambda client: client.info()).name == "launcherkit"


def test_a_successors_socket_stays_when_the_predecessor_ends(sockets: Path, hook: HookProcess, path: Path) -> None:
    path.unlink()
    with hook_process("--socket-dir", sockets, "--host", "none"):
        assert hook.end() == 0
        assert call(path, lambda client: client.info()).name == "launcherkit"


@pytest.mark.parametrize("way", ["file", "link", "folder"])
def test_what_is_not_a_socket_is_not_touched(sockets: Path, way: str) -> None:
    place = sockets / "hook.sock"
    if way == "file":
        place.write_text("mine")
    elif way == "link":
        place.symlink_to("elsewhere")
    else:
        place.mkdir()
    code, reported = refused("--socket-dir", sockets)
    assert (code, "error[LK612]" in reported, "what is there is not a socket" in reported) == (78, True, True)
    assert os.path.lexists(place)


def test_a_folder_that_is_not_there_is_reported(sockets: Path) -> None:
    code, reported = refused("--socket-dir", sockets / "absent")
    assert code == 78
    assert reported.startswith(provoked("LK612").replace(FOLDER, str(sockets / "absent")))


def test_a_path_that_is_too_long_for_a_socket_is_reported(sockets: Path) -> None:
    (sockets / ("x" * 120)).mkdir()
    code, reported = refused("--socket-dir", sockets / ("x" * 120))
    assert (code, "error[LK612]" in reported, "too long" in reported) == (78, True, True)


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "with space", "é", "-"])
def test_a_container_name_that_can_name_no_socket_is_refused(sockets: Path, name: str) -> None:
    code, reported = refused("--socket-dir", sockets, env={"CONTAINER_NAME": name})
    assert (code, reported.startswith(f"error[LK613]: CONTAINER_NAME: {name!r} is not a valid socket name")) == (
        78,
        True,
    )
    assert name != "../up" or reported.startswith(provoked("LK613"))


def test_a_plugins_folder_that_is_a_link_is_refused(sockets: Path) -> None:
    (sockets / "gpus").symlink_to(sockets)
    code, reported = refused("--plugin-dir", sockets, "--domain-hook", "gpus")
    assert (code, "error[LK612]" in reported, "is a symbolic link" in reported) == (78, True, True)


def test_where_one_of_two_sockets_can_not_be_made_neither_stays(sockets: Path) -> None:
    flags = ("--socket-dir", sockets, "--plugin-dir", sockets / "absent" / "deep", "--domain-hook", "a/b")
    code, reported = refused(*flags)
    assert (code, "error[LK613]: --domain-hook" in reported) == (78, True)
    assert os.listdir(sockets) == []


def test_without_the_extra_it_says_what_to_install(sockets: Path) -> None:
    program = (
        "import sys; sys.modules['grpclib'] = None; from launcherkit.cli.main import main\n"
        f"sys.argv = ['launcherkit', 'hook', 'serve', '--socket-dir', {str(sockets)!r}]; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 78
    assert done.stderr.startswith(provoked("LK614"))


# Its end


def test_sigterm_lets_a_call_under_way_finish_and_refuses_new_ones(
    sockets: Path, hook: HookProcess, path: Path
) -> None:
    async def scenario() -> None:
        async with Client(path) as client:
            async with opened(client.channel, callback("OnDefineDomain")) as stream:
                await stream.send_request()
                await client.info()  # on the same connection: the request before it has arrived
                hook.process.terminate()
                await asyncio.to_thread(hook.wait_for, "ending; calls under way: 1")
                assert not path.exists()
                with pytest.raises(GRPCError) as refusal:
                    await client.info()
                assert refusal.value.status is Status.UNAVAILABLE
                await stream.send_message(v3.OnDefineDomainParams(domainXML=DOMAIN, vmi=VMI), end=True)
                answer = await stream.recv_message()
                assert answer is not None
                assert answer.domainXML.startswith(b"<domain ")
            assert await asyncio.to_thread(hook.wait) == 0

    asyncio.run(scenario())
    assert os.listdir(sockets) == []


def test_a_large_answer_arrives_whole_though_the_process_is_ending(hook: HookProcess, path: Path) -> None:
    domain = DOMAIN.replace(b"<devices>", b"<!--" + b"x" * 3_000_000 + b"--><devices>")

    async def scenario() -> None:
        async with Client(path) as client, opened(client.channel, callback("OnDefineDomain")) as stream:
            await stream.send_request()
            await client.info()
            hook.process.terminate()
            await asyncio.to_thread(hook.wait_for, "ending; calls under way: 1")
            await stream.send_message(v3.OnDefineDomainParams(domainXML=domain, vmi=VMI), end=True)
            answer = await stream.recv_message()
            assert answer is not None
            assert len(answer.domainXML) > 3_000_000

    asyncio.run(scenario())
    assert hook.wait() == 0


def test_a_second_signal_does_not_wait_for_calls(hook: HookProcess, path: Path) -> None:
    with BareClient(path) as client:
        client.request(DEFINE)
        call(path, lambda other: other.info())
        hook.process.terminate()
        hook.wait_for("ending; calls under way: 1")
        assert hook.end() == 0
    assert "did not finish" not in hook.reported()


def test_however_often_it_is_told_to_end_it_ends_by_itself(hook: HookProcess) -> None:
    while hook.process.poll() is None:
        hook.process.send_signal(signal.SIGTERM)
        time.sleep(0.0005)  # else it does nothing but take signals, and its end takes seconds
    assert hook.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_connection_that_is_idle_does_not_hold_up_the_end(
    hook: HookProcess, path: Path, number: signal.Signals
) -> None:
    with BareClient(path), socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(path))
        call(path, lambda client: client.info())
        assert hook.end(number) == 0
    assert not path.exists()


def test_it_ends_well_though_nobody_reads_its_log_any_more(sockets: Path) -> None:
    process = Process(
        [LAUNCHERKIT, "hook", "serve", "--socket-dir", sockets, "--host", "none"],
        env={"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"note: serving")
        process.stderr.close()
        with pytest.raises(GRPCError):
            call(sockets / "launcherkit.sock", lambda client: client.define(b"<domain>"))
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


# Rude clients


def test_a_request_that_is_too_large_is_refused_by_its_length_alone(path: Path) -> None:
    with BareClient(path) as client:
        stream = client.request(DEFINE)
        client.h2.send_data(stream, b"\x00\xff\xff\xff\xff")
        client.send()
        assert client.headers_until(stream, "grpc-message").startswith(provoked("LK615"))
    assert call(path, lambda other: other.info()).name == "launcherkit"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", Status.INVALID_ARGUMENT),
        (b"\x00\x00", Status.INVALID_ARGUMENT),
        (b"\x00\x00\x00\x00\x09half", Status.INVALID_ARGUMENT),
        (b"\x00\x00\x00\x00\x04\xff\xff\xff\xff", Status.INVALID_ARGUMENT),
        (b"\x01\x00\x00\x00\x00", Status.UNIMPLEMENTED),
    ],
    ids=["none", "half a length", "half a message", "no protobuf", "compressed"],
)
def test_a_broken_request_is_answered_and_nothing_else_is_harmed(
    hook: HookProcess, path: Path, data: bytes, status: Status
) -> None:
    with BareClient(path) as client:
        stream = client.request(DEFINE)
        client.h2.send_data(stream, data, end_stream=True)
        client.send()
        assert client.headers_until(stream, "grpc-status") == str(status.value)
    assert call(path, lambda other: other.info()).name == "launcherkit"
    assert "Traceback" not in hook.reported()


def test_huge_metadata_end_the_connection_that_sent_them_alone(path: Path) -> None:
    with BareClient(path) as client, suppress(ConnectionError):  # it may end before all of that is written
        stream = client.request(DEFINE, *((f"x-{number}", "y" * 1000) for number in range(200)))
        assert not any(getattr(event, "stream_id", 0) == stream for event in client.events())
    assert call(path, lambda other: other.info()).name == "launcherkit"


def test_noise_ends_the_connection_that_sent_it_alone(hook: HookProcess, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as noise:
        noise.connect(str(path))
        noise.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)))
        noise.settimeout(60)
        while noise.recv(4096):
            pass
    assert call(path, lambda other: other.info()).name == "launcherkit"
    assert "Traceback" not in hook.reported()


def test_calls_that_are_cancelled_leave_nothing_behind(hook: HookProcess, path: Path) -> None:
    with BareClient(path) as client:
        for _ in range(300):
            stream = client.request(DEFINE)
            client.h2.reset_stream(stream, ErrorCodes.CANCEL)
        client.send()
        stream = client.request("/kubevirt.hooks.info.Info/Info")
        client.h2.send_data(stream, bytes(5), end_stream=True)
        client.send()
        assert client.headers_until(stream, "grpc-status") == "0"
    hook.process.terminate()
    hook.wait_for("ending; calls under way: 0")
    assert hook.wait() == 0
    assert "Traceback" not in hook.reported()


def test_a_stream_that_is_never_used_is_reset_by_its_client_alone(path: Path) -> None:
    with BareClient(path) as half_open:
        half_open.request(DEFINE)
        assert call(path, lambda other: other.define()) == call(path, lambda other: other.define())
        half_open.socket.settimeout(0.01)
        assert not any(isinstance(event, StreamReset) for event in ready(half_open))


def ready(client: BareClient) -> Iterator[Any]:
    try:
        yield from client.events()
    except TimeoutError:
        return


# What it needs


@pytest.mark.slow
def test_a_thousand_calls_of_eight_devices_stay_in_forty_megabytes(sockets: Path, tmp_path: Path) -> None:
    what = sample(8, 2)
    tree = HostTree(tmp_path / "host", nodes=False)
    for address, function in what.facts.functions.items():
        tree.function(
            str(address),
            class_code=function.class_code,
            device=function.device,
            driver="vfio-pci",
            group=function.iommu_group,
        )
    domain, vmi = from_kubevirt(8), what.vmi_json.encode()

    async def thousand(client: Client) -> int:
        return sum([(await client.define(domain, vmi)).count(b"<hostdev ") for _ in range(1000)])

    with hook_process("--socket-dir", sockets, "--host", tree.root, python=(sys.executable,)) as process:
        assert call(sockets / "hook.sock", thousand) == 16_000
        assert process.resident_peak() < 40


def test_it_never_imports_what_is_heavy(sockets: Path, host: HostTree) -> None:
    flags = ("--socket-dir", sockets, "--plugin-dir", sockets, "--domain-hook", "gpus", "--host", host.root)
    serves = ("the hook sidecar", "the domain hook of gpus")
    with hook_process(*flags, python=(sys.executable, "-X", "importtime"), serves=serves) as process:
        call(sockets / "hook.sock", lambda client: client.define())
        call(sockets / "gpus" / "launcherkit.sock", lambda client: client.mutate())
        with pytest.raises(GRPCError):
            call(sockets / "hook.sock", lambda client: client.define(b"<domain>"))
        assert process.end() == 0
        lines = [line for line in process.reported().splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert {"lxml", "grpclib", "launcherkit"} <= imported
    assert imported & set(NEVER) == set()


def as_nobody() -> dict[str, Any]:
    """How to start a process as an unprivileged user that can write no file at all, as with a read-only root."""
    nobody = pwd.getpwnam("nobody").pw_uid
    no_files = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (0, 0))
    return {"user": nobody, "group": nobody, "extra_groups": [], "preexec_fn": no_files}


def python_of_nobody() -> tuple[str, dict[str, str]]:
    """An interpreter that nobody can run, with what its environment needs; this one may be in root's home."""
    paths = [str(ROOT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    env = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        probe = [python, "-c", "import grpclib, google.protobuf, lxml.etree, launcherkit.cli.main"]
        with suppress(OSError):
            if subprocess.run(probe, cwd="/", env=env, stderr=subprocess.DEVNULL, **as_nobody()).returncode == 0:
                return python, env
    pytest.skip("nobody can't read this checkout, or run a Python with what it needs")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_it_runs_as_nobody_and_writes_no_file() -> None:
    python, env = python_of_nobody()
    with tempfile.TemporaryDirectory(prefix="launcherkit-") as folder:
        base = Path(folder)
        base.chmod(0o755)
        tree = HostTree(base / "host", nodes=False)
        tree.card("0000:e1:00", group=44)
        sockets = base / "sockets"
        sockets.mkdir()
        os.chown(sockets, pwd.getpwnam("nobody").pw_uid, 0)
        flags = ("--socket-dir", sockets, "--host", tree.root)
        with hook_process(*flags, python=(python,), env=env, **as_nobody()) as process:
            assert call(sockets / "hook.sock", lambda client: client.define()).count(b"<hostdev ") == 2
            assert (sockets / "hook.sock").stat().st_uid == pwd.getpwnam("nobody").pw_uid
            assert process.end() == 0
        assert os.listdir(sockets) == []
