"""Finds, starts, restarts and stops libvirt's daemons in a launcher pod."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from launcherkit.errors import LIBVIRT_NOT_THERE
from launcherkit.run.children import Children
from launcherkit.run.connection import SYSTEM

_SBIN = ("/usr/sbin", "/usr/local/sbin", "/sbin")
_STOP_SECONDS = 10.0
_PAUSE = 0.2

RUN = "/run/libvirt"
"""Where the sockets of the system's daemons are."""


class Daemons:
    """The daemons behind ``qemu:///system``; for any other URI none is started.

    virtqemud is preferred to libvirtd; virtlogd, which takes QEMU's output, is started with either. A daemon that
    already answers at its socket belongs to someone else, and is not started.
    """

    def __init__(
        self,
        uri: str,
        children: Children,
        *,
        allowed: bool = True,
        run: str = RUN,
        find: Callable[[str], str | None] = lambda name: _find(name),
    ) -> None:
        self._children = children
        self._run = run
        self._find = find
        self._pids: dict[str, int] = {}
        self.wanted = allowed and uri == SYSTEM
        """Whether to start libvirt if nobody else has."""

    def start(self) -> list[str]:
        """Start the missing daemons; returns the programs that were started.

        Raises:
            LibvirtNotThere: a program can't be started.
        """
        if not self.wanted:
            return []
        started = []
        for names, sockets in (
            (("virtlogd",), ("virtlogd-sock",)),
            (("virtqemud", "libvirtd"), ("virtqemud-sock", "libvirt-sock")),
        ):
            name = next((name for name in names if self._find(name)), None)
            own = self._pids.get(names[0])
            if name is None or (own is not None and self._children.is_running(own)):
                continue
            if own is None and any(_answers(os.path.join(self._run, name)) for name in sockets):
                continue
            path = self._find(name) or name
            try:
                self._pids[names[0]] = self._children.start([path])
            except OSError as problem:
                raise LIBVIRT_NOT_THERE(
                    f"{path} can't be started: {problem.strerror}", "Check that it may be executed.", file=path
                ) from problem
            started.append(path)
        return started

    def stop(self, wait: Callable[[float], None], clock: Callable[[], float]) -> None:
        """Stop the daemons that were started, the last one first: by SIGTERM, and after ten seconds by SIGKILL."""
        for pid in reversed(self._pids.values()):
            self._children.signal(pid, signal.SIGTERM)
            end = clock() + _STOP_SECONDS
            while self._children.is_running(pid) and clock() < end:
                wait(_PAUSE)
            self._children.signal(pid, signal.SIGKILL)
            while self._children.is_running(pid):
                wait(_PAUSE)
        self._pids.clear()


def _answers(path: str) -> bool:
    """Whether a process listens at a socket; the file alone may be left over from an earlier container."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _find(name: str) -> str | None:
    """The path of a daemon; a user's PATH may lack its directory."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_SBIN]))


# Whether this machine's host name resolves: libvirt asks for it when it starts its first guest, and waits.


SLOW_SECONDS = 3.0
"""Seconds after which a resolver is slow: it asks again, or the next name server, after five."""


def report_slow_host_name(
    name: str,
    report: Callable[[str], None],
    *,
    resolve: Callable[[str], object] = lambda name: socket.getaddrinfo(name, None, flags=socket.AI_CANONNAME),
    patience: float = SLOW_SECONDS,
) -> threading.Thread | None:
    """Resolve a host name in the background, and report once if that takes long; the thread ends when it is known.

    A name that is known not to resolve costs libvirt nothing, and isn't reported.

    Args:
        name: the host name.
        report: called with a sentence, from another thread.
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
            report(
                f"the host name {name} has not been resolved in {patience:g} seconds; libvirt asks for it when it "
                "starts the guest, and waits as long as that takes: add the name to /etc/hosts"
            )

    thread = threading.Thread(target=watch, name="host name", daemon=True)
    thread.start()
    return thread
