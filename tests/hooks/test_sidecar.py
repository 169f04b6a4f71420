"""The hook sidecar and the domain hook over a real socket: what KubeVirt's launcher asks, and what it gets."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grpclib import GRPCError, Status

from launcherkit import Host, translate
from launcherkit.hooks.proto import hooks_v1alpha2_pb2, hooks_v1alpha3_pb2
from tests.support.hooks import DOMAIN, PATIENCE, VERSIONS, VMI, Client, HookProcess, call, hook_process, provoked
from tests.support.hosttree import HostTree

every_version = pytest.mark.parametrize("version", sorted(VERSIONS))


@pytest.fixture
def hook(sockets: Path, host: HostTree) -> Iterator[HookProcess]:
    """A hook sidecar that sees the host."""
    with hook_process("--socket-dir", sockets, "--host", host.root) as process:
        yield process


@pytest.fixture
def path(sockets: Path, hook: HookProcess) -> Path:
    """Its socket."""
    return sockets / "hook.sock"


def test_the_launcher_learns_name_versions_and_hook_points(path: Path) -> None:
    info = call(path, lambda client: client.info())
    assert info.name == "launcherkit"
    assert list(info.versions) == ["v1alpha1", "v1alpha2", "v1alpha3"]
    assert [point.name for point in info.hookPoints] == ["OnDefineDomain", "Shutdown"]


@every_version
def test_every_version_completes_the_hostdevs_that_are_there(path: Path, host: HostTree, version: str) -> None:
    domain = call(path, lambda client: client.define(version=version))
    assert domain.count(b"<hostdev ") == 2
    assert b'<alias name="ua-gpu-gpu1-fn1"/>' in domain
    assert domain.count(b'multifunction="on"') == 1
    assert domain == translate(DOMAIN, env={}, host=Host.from_sysfs(host.root), vmi=VMI).domain_xml


def test_the_policy_is_a_file(sockets: Path, host: HostTree, tmp_path: Path) -> None:
    """`launcherkit hook serve --policy`"""
    policy = tmp_path / "policy.yaml"
    policy.write_text("siblings: none\n")
    with hook_process("--socket-dir", sockets, "--host", host.root, "--policy", policy):
        assert call(sockets / "hook.sock", lambda client: client.define()).count(b"<hostdev ") == 1


def test_a_second_and_third_call_change_nothing(path: Path) -> None:
    async def thrice(client: Client) -> tuple[bytes, bytes, bytes]:
        first = await client.define()
        second = await client.define(first)
        return first, second, await client.define(second)

    first, second, third = call(path, thrice)
    assert first == second == third


def test_a_vmi_that_asks_for_nothing_gets_its_domain_with_the_mode_that_kubevirt_demands(path: Path) -> None:
    """Q3: byte for byte otherwise."""
    completed = re.sub(rb"(<hostdev (?![^>]*mode=)[^>]*)>", rb"\1 mode=QsubsystemQ>", DOMAIN)
    quote = b'"' if b'="' in DOMAIN else b"'"
    answer = call(path, lambda client: client.define(vmi=b'{"spec":{"domain":{"devices":{}}}}'))
    assert answer == completed.replace(b"Q", quote)


@pytest.mark.parametrize("version", ["v1alpha2", "v1alpha3"])
def test_cloud_init_passes_through_untouched(path: Path, version: str) -> None:
    params = {"v1alpha2": hooks_v1alpha2_pb2, "v1alpha3": hooks_v1alpha3_pb2}[version].PreCloudInitIsoParams
    asked = params(cloudInitNoCloudSource=b'{"userData": "\xc3\xa9"}', cloudInitData=b"\x00\xffany bytes", vmi=VMI)
    answer = call(path, lambda client: client.callback("PreCloudInitIso", asked, version))
    assert answer.cloudInitNoCloudSource == asked.cloudInitNoCloudSource
    assert answer.cloudInitData == asked.cloudInitData


def test_shutdown_is_answered_and_ends_the_process(path: Path, hook: HookProcess) -> None:
    call(path, lambda client: client.callback("Shutdown", hooks_v1alpha3_pb2.ShutdownParams()))
    assert hook.wait() == 0
    assert not path.exists()


def test_a_failure_is_a_grpc_error_with_the_line_and_the_help_and_the_next_call_works(
    path: Path, hook: HookProcess, host: HostTree
) -> None:
    uevent = host.path("0000:e1:00.1") / "uevent"
    bound = uevent.read_text()
    good = call(path, lambda client: client.define())
    host.driver("snd_hda_intel")
    uevent.write_text(bound.replace("vfio-pci", "snd_hda_intel"))
    with pytest.raises(GRPCError) as failure:
        call(path, lambda client: client.define())
    assert failure.value.status is Status.FAILED_PRECONDITION
    message = failure.value.message or ""
    assert message.startswith("error[LK204]: IOMMU group 44 is not viable: 0000:e1:00.1")
    assert "help: Free it on the node" in message
    assert "\n" not in message
    assert hook.wait_for("error[LK204]: render/gpu-vm: IOMMU group 44 is not viable")
    uevent.write_text(bound)
    assert call(path, lambda client: client.define()) == good


@pytest.mark.parametrize(
    ("domain", "vmi", "reported"),
    [
        (DOMAIN, b"{", "error[LK111]: the VMI is not JSON"),
        (b"<domain>", VMI, "error[LK121]"),
        (b"<!DOCTYPE x []>" + DOMAIN, VMI, "error[LK122]"),
        (b"<domain>" + b" " * (8 << 20) + b"</domain>", VMI, "error[LK123]"),
        (b"", VMI, "error[LK1"),
    ],
)
def test_bad_input_is_an_invalid_argument(path: Path, domain: bytes, vmi: bytes, reported: str) -> None:
    with pytest.raises(GRPCError) as failure:
        call(path, lambda client: client.define(domain, vmi))
    assert failure.value.status is Status.INVALID_ARGUMENT
    assert reported in (failure.value.message or "")


def test_notes_are_reported_with_the_name_of_the_vmi(path: Path, hook: HookProcess, host: HostTree) -> None:
    host.function("0000:e1:00.2", device=0x1AEC, class_code=0x0C0330, driver="vfio-pci", group=45)
    assert call(path, lambda client: client.define()).count(b"<hostdev ") == 2
    assert "0000:e1:00.2" in hook.wait_for("note: render/gpu-vm: ")


def test_messages_can_be_json_lines(sockets: Path) -> None:
    env = {"LAUNCHERKIT_LOG_FORMAT": "json"}
    with hook_process("--socket-dir", sockets, "--host", "none", env=env) as process:
        with pytest.raises(GRPCError):
            call(sockets / "hook.sock", lambda client: client.define(b"<domain>"))
        entry = json.loads(process.wait_for("LK121"))
    assert entry["level"] == "error"
    assert entry["code"] == "LK121"
    assert entry["message"].startswith("render/gpu-vm: ")
    assert entry["help"]


def test_flags_decide_as_in_translate(sockets: Path, host: HostTree) -> None:
    with hook_process("--socket-dir", sockets, "--host", host.root, "--siblings", "none"):
        assert call(sockets / "hook.sock", lambda client: client.define()).count(b"<hostdev ") == 1


def test_the_annotation_of_a_vmi_decides_for_its_own_call(path: Path) -> None:
    vmi = json.loads(VMI)
    vmi["metadata"]["annotations"] = {"launcherkit.io/policy": "siblings: none"}
    asked = json.dumps(vmi).encode()
    assert call(path, lambda client: client.define(vmi=asked)).count(b"<hostdev ") == 1
    assert call(path, lambda client: client.define()).count(b"<hostdev ") == 2


def test_a_hundred_calls_at_once_all_get_their_answer(path: Path) -> None:
    async def many(client: Client) -> list[bytes]:
        return await asyncio.gather(*(client.define(version=version) for version in sorted(VERSIONS) * 34))

    answers = call(path, many)
    assert len(answers) == 102
    assert len(set(answers)) == 1


def test_the_domain_hook_gives_what_the_sidecar_gives_and_one_process_serves_both(
    sockets: Path, host: HostTree
) -> None:
    flags = ("--socket-dir", sockets, "--plugin-dir", sockets, "--domain-hook", "gpus", "--host", host.root)
    with hook_process(*flags, serves=("the hook sidecar", "the domain hook of gpus")):
        mutated = call(sockets / "gpus" / "launcherkit.sock", lambda client: client.mutate())
        assert mutated == call(sockets / "hook.sock", lambda client: client.define())
        assert mutated.count(b"<hostdev ") == 2


def test_the_domain_hook_refuses_what_is_not_libvirts(sockets: Path) -> None:
    flags = ("--plugin-dir", sockets, "--domain-hook", "gpus", "--host", "none")
    with (
        hook_process(*flags, serves=("the domain hook of gpus",)),
        pytest.raises(GRPCError) as failure,
    ):
        call(sockets / "gpus" / "launcherkit.sock", lambda client: client.mutate(domain_type="cloud-hypervisor"))
    assert failure.value.status is Status.INVALID_ARGUMENT
    assert (failure.value.message or "").startswith(provoked("LK616"))


def test_a_method_that_is_not_there_is_unimplemented(path: Path) -> None:
    with pytest.raises(GRPCError) as failure:  # the domain hook is on a socket of its own
        call(path, lambda client: client.mutate())
    assert failure.value.status is Status.UNIMPLEMENTED
    assert "DomainHookService/MutateDomain" in (failure.value.message or "")


def test_another_implementation_of_grpc_understands_it(path: Path, hook: HookProcess) -> None:
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed; ./dev test has it")

    def plainly(channel: Any, method: str, request: bytes) -> bytes:
        return bytes(channel.unary_unary(method)(request, timeout=PATIENCE))

    v3, define = hooks_v1alpha3_pb2, "/kubevirt.hooks.v1alpha3.Callbacks/OnDefineDomain"
    with grpc.insecure_channel(f"unix:{path}", options=[("grpc.default_authority", "localhost")]) as channel:
        assert b"v1alpha3" in plainly(channel, "/kubevirt.hooks.info.Info/Info", b"")
        asked = v3.OnDefineDomainParams(domainXML=DOMAIN, vmi=VMI).SerializeToString()
        assert v3.OnDefineDomainResult.FromString(plainly(channel, define, asked)).domainXML.count(b"<hostdev ") == 2
        asked = v3.OnDefineDomainParams(domainXML="<dömäin>".encode(), vmi=VMI).SerializeToString()
        with pytest.raises(grpc.RpcError) as failure:
            plainly(channel, define, asked)
        assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert failure.value.details().startswith("error[LK121]: ")
        assert "dömäin" in failure.value.details()
        with pytest.raises(grpc.RpcError) as failure:
            plainly(channel, "/no.Such/Method", b"")
        assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert plainly(channel, "/kubevirt.hooks.v1alpha3.Callbacks/Shutdown", b"") == b""
    assert hook.wait() == 0
