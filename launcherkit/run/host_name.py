"""Whether this machine's host name resolves: libvirt asks for it when it starts its first guest, and waits."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

SLOW_SECONDS = 3.0
"""Seconds after which a resolver is slow: it asks again, or the next name server, after five."""


def tell_if_slow(
    name: str,
    tell: Callable[[str], None],
    *,
    resolve: Callable[[str], object] = lambda name: socket.getaddrinfo(name, None, flags=socket.AI_CANONNAME),
    patience: float = SLOW_SECONDS,
) -> threading.Thread | None:
    """Resolve a host name in the background, and report once if that takes long; the thread ends when it is known.

    A name that is known not to resolve costs libvirt nothing, and isn't reported.

    Args:
        name: the host name.
        tell: called with a sentence, from another thread.
        resolve: takes as long as libvirt would; OSError is an answer.
        patience: seconds.
    """
    if "." in name or name.startswith("localhost"):
        return None
    answered = threading.Event()

    def ask() -> None:
        with suppress(OSError, UnicodeError):
            resolve(name)
        answered.set()

    def watch() -> None:
        threading.Thread(target=ask, name="resolver", daemon=True).start()
        if not answered.wait(patience):
            tell(
                f"the host name {name} has not been resolved in {patience:g} seconds; libvirt asks for it when it "
                "starts the guest, and waits as long as that takes: add the name to /etc/hosts"
            )

    thread = threading.Thread(target=watch, name="host name", daemon=True)
    thread.start()
    return thread
