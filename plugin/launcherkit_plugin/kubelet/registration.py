"""Tells the kubelet of a resource (v1beta1 Registration)."""

from __future__ import annotations

from grpclib import GRPCError
from grpclib.exceptions import ProtocolError, StreamTerminatedError

from launcherkit_plugin.kubelet import messages
from launcherkit_plugin.kubelet.channel import unix_channel
from launcherkit_plugin.kubelet.proto import deviceplugin_v1beta1_pb2 as wire
from launcherkit_plugin.kubelet.proto.deviceplugin_v1beta1_grpc import RegistrationStub
from launcherkit_plugin.model.errors import NoKubelet, RegistrationRefused

KUBELET_SOCKET = "kubelet.sock"
ANSWER_SECONDS = 10.0


async def register(folder: str, resource: str, endpoint: str) -> None:
    """Register a resource. Its socket must listen: the kubelet dials it at once.

    Args:
        folder: of the device plugins' sockets.
        resource: its name.
        endpoint: file name of its socket in the folder.

    Raises:
        NoKubelet: nobody answers.
        RegistrationRefused: the kubelet says why.
    """
    path = f"{folder}/{KUBELET_SOCKET}"
    channel = unix_channel(path)
    request = wire.RegisterRequest(
        version=messages.VERSION, endpoint=endpoint, resource_name=resource, options=messages.options()
    )
    try:
        await RegistrationStub(channel).Register(request, timeout=ANSWER_SECONDS)
    except GRPCError as refusal:
        raise RegistrationRefused(
            f"{path}: the kubelet does not take {resource}: {refusal.message or refusal.status.name}",
            "The kubelet's log says more. It takes v1beta1 from Kubernetes 1.10 on.",
        ) from refusal
    except TimeoutError as late:
        raise no_kubelet(path, f"no answer within {ANSWER_SECONDS:.0f} s") from late
    except (OSError, StreamTerminatedError, ProtocolError) as gone:
        reason = gone.strerror if isinstance(gone, OSError) else None
        raise no_kubelet(path, reason or "the connection was closed") from gone
    finally:
        channel.close()


def no_kubelet(path: str, why: str) -> NoKubelet:
    """The error where nobody answers at the kubelet's socket."""
    return NoKubelet(
        f"{path}: no kubelet answers there: {why}",
        "It is waited for. If it runs: mount its folder device-plugins, and name the parent with --kubelet-dir.",
    )
