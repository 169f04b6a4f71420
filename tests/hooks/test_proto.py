"""The stubs are what the tools make of the ``.proto`` files, and these say what KubeVirt says on the wire."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit.hooks.proto import hooks_info_pb2, hooks_v1alpha3_pb2, plugins_v1alpha1_pb2
from tests.support.protos import ROOT, generate, generated


def test_making_the_stubs_again_changes_nothing(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed; ./dev test has it")
    generate(tmp_path)
    assert generated(tmp_path) == generated(ROOT)


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (
            hooks_info_pb2.InfoResult(
                name="n", hookPoints=[hooks_info_pb2.HookPoint(name="h", priority=3)], versions=["v"]
            ),
            b"\n\x01n\x1a\x05\n\x01h\x10\x03\x22\x01v",
        ),
        (hooks_v1alpha3_pb2.OnDefineDomainParams(domainXML=b"d", vmi=b"v"), b"\n\x01d\x12\x01v"),
        (
            hooks_v1alpha3_pb2.PreCloudInitIsoParams(cloudInitNoCloudSource=b"s", vmi=b"v", cloudInitData=b"d"),
            b"\n\x01s\x12\x01v\x1a\x01d",
        ),
        (
            hooks_v1alpha3_pb2.PreCloudInitIsoResult(cloudInitNoCloudSource=b"s", cloudInitData=b"d"),
            b"\n\x01s\x1a\x01d",
        ),
        (
            plugins_v1alpha1_pb2.MutateDomainRequest(
                domain_type="t",
                domain=b"d",
                vmi=b"v",
                sidecar_context=plugins_v1alpha1_pb2.SidecarContext(invocation_context="Boot"),
            ),
            b'\n\x01t\x12\x01d\x1a\x01v"\x06\n\x04Boot',
        ),
        (plugins_v1alpha1_pb2.MutateDomainResponse(domain=b"d"), b"\n\x01d"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, bytes) else "",
)
def test_a_message_is_these_bytes_on_the_wire(message: object, wire: bytes) -> None:
    assert message.SerializeToString(deterministic=True) == wire  # type: ignore[attr-defined]
