"""A DRA driver's sockets, as the kubelet has them: found in plugins_registry, asked for its name, called for claims."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from launcherkit_lab.endpoint import OWN_POOL, serialized
from launcherkit_lab.proto import dra_v1_pb2 as wire
from launcherkit_lab.proto import pluginregistration_v1_pb2 as registration

KNOWN = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""The services that kubelets call: the first of a driver's that they know."""
SECONDS = 45.0
"""The kubelet's own deadline of a call."""
Answer = TypeVar("Answer", bound=Message)


_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class CallFailed(Exception):
    """The driver has answered with a status, or not at all."""

    def __init__(self, method: str, refusal: grpc.RpcError) -> None:
        status: grpc.StatusCode = refusal.code()
        self.is_an_answer = status not in _NO_ANSWER
        super().__init__(f"{method}: {status.name}: {refusal.details()}")


@dataclass(frozen=True)
class ClaimRef:
    """What the kubelet says of a claim."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class Prepared:
    """A device as the driver's answer has it."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi: tuple[str, ...]


@dataclass(frozen=True)
class DriverSocket:
    """What serves on a socket in plugins_registry, as it says of itself."""

    path: Path
    kind: str
    name: str
    endpoint: str
    versions: tuple[str, ...]

    def prepare(self, version: str, *claims: ClaimRef) -> dict[str, tuple[tuple[Prepared, ...], str]]:
        """By the UID of each claim its devices, or an error.

        Raises:
            CallFailed: see there.
        """
        request = wire.PrepareRequest(claims=map(_message, claims))
        answer = self._call(version, "NodePrepareResources", request, wire.PrepareResponse)
        return {uid: (tuple(map(_prepared, one.devices)), one.error) for uid, one in answer.claims.items()}

    def unprepare(self, version: str, *claims: ClaimRef) -> dict[str, str]:
        """By the UID of each claim an error, or nothing.

        Raises:
            CallFailed: see there.
        """
        request = wire.UnprepareRequest(claims=map(_message, claims))
        answer = self._call(version, "NodeUnprepareResources", request, wire.UnprepareResponse)
        return {uid: one.error for uid, one in answer.claims.items()}

    def _call(self, version: str, method: str, request: Message, answer: type[Answer]) -> Answer:
        with _channel(self.endpoint) as channel:
            return _ask(channel, f"k8s.io.kubelet.pkg.apis.dra.{version}/{method}", request, answer)


NO_SOCKET = DriverSocket(Path(), "", "", "", ())


def sockets(folder: Path) -> list[Path]:
    """Those in plugins_registry, at any depth, whoever serves on them."""
    return sorted(path for path in folder.rglob("[!.]*") if path.is_socket())


def register(path: Path) -> DriverSocket:
    """Ask what serves on a socket, and tell it that it is registered.

    Raises:
        CallFailed: it doesn't answer.
    """
    with _channel(str(path)) as channel:
        service = "pluginregistration.Registration"
        info = _ask(channel, f"{service}/GetInfo", registration.InfoRequest(), registration.PluginInfo)
        status = registration.RegistrationStatus(plugin_registered=True)
        _ask(channel, f"{service}/NotifyRegistrationStatus", status, registration.RegistrationStatusResponse)
    return DriverSocket(path, info.type, info.name, info.endpoint, tuple(info.supported_versions))


def _channel(path: str) -> Any:
    return grpc.insecure_channel(f"unix:{path}", OWN_POOL)


def _ask(channel: Any, method: str, request: Message, answer: type[Answer]) -> Answer:
    stub = channel.unary_unary(f"/{method}", request_serializer=serialized, response_deserializer=answer.FromString)
    try:
        result: Answer = stub(request, timeout=SECONDS)
    except grpc.RpcError as refusal:
        raise CallFailed(method, refusal) from refusal
    return result


def _message(claim: ClaimRef) -> wire.Claim:
    return wire.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid)


def _prepared(device: wire.Device) -> Prepared:
    return Prepared(tuple(device.request_names), device.pool_name, device.device_name, tuple(device.cdi_device_ids))
