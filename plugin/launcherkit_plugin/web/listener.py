"""Where the web process listens."""

from __future__ import annotations

import socket

from launcherkit_plugin.model.errors import NO_METRICS_ADDRESS

_WAITING = 256


def listening(address: str) -> socket.socket:
    """A socket that listens, and doesn't block.

    Args:
        address: ``HOST:PORT``, ``[::1]:PORT``, or ``:PORT`` for every address, including IPv6 if the host has it.

    Raises:
        NO_METRICS_ADDRESS: it isn't an address, or can't be bound.
    """
    host, port = parse_address(address)
    both = not host and socket.has_dualstack_ipv6()
    try:
        if host:
            ((family, *_, where), *_others) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        else:
            family, where = socket.AF_INET6 if both else socket.AF_INET, ("", port)
        listener = socket.create_server(where[:2], family=family, backlog=_WAITING, dualstack_ipv6=both)
    except (OSError, UnicodeError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise NO_METRICS_ADDRESS(
            f"--metrics-address {address}: {reason}",
            "Give an address of this host, and a port that is free.",
            key="--metrics-address",
        ) from problem
    listener.setblocking(False)
    return listener


def parse_address(address: str) -> tuple[str, int]:
    """The host, empty for every address, and the port.

    Raises:
        NO_METRICS_ADDRESS: it doesn't have the form that `listening` describes.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    if not colon or not (port.isascii() and port.isdigit() and int(port) < 65536) or (":" in bare and not bracketed):
        raise NO_METRICS_ADDRESS(
            f"--metrics-address {address!r} is not HOST:PORT",
            "Give :8080, 127.0.0.1:8080 or [::1]:8080.",
            key="--metrics-address",
        )
    return bare, int(port)


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this host, or this pod, can reach it."""
    host = str(bound.getsockname()[0])
    return host == "::1" or host.startswith("127.")


def spelled(bound: socket.socket) -> str:
    """``HOST:PORT``."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
