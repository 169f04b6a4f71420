"""Connections to the gRPC servers of this node."""

from __future__ import annotations

from grpclib.client import Channel


def unix_channel(path: str) -> Channel:
    """A channel to a unix socket; connects when it is first used."""
    return _UnixChannel(path=path)


class _UnixChannel(Channel):
    """grpclib says ``127.0.0.1:50051`` where it dials a socket; Go's own clients say ``localhost``."""

    def _get_authority(self, host: str, port: int) -> str:  # noqa: ARG002  # of grpclib
        return "localhost"
