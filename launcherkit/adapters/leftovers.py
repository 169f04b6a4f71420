"""Guests that an earlier `launcherkit run` left behind after kill -9, and how to tell them from others' guests.

A guest carries its owner's name in its metadata. While its launcher lives, that process holds a name in the kernel,
which is released when the process ends, however it ends. So a guest of this owner whose name isn't held has lost its
launcher.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Protocol

from launcherkit.adapters.libvirt_connection import LibvirtFailure
from launcherkit.errors import DomainInTheWay


class OwnedGuest(Protocol):
    """The part of `libvirt_connection.Guest` that is needed."""

    def name(self) -> str: ...
    def owner(self) -> str | None: ...
    def is_active(self) -> bool: ...
    def is_persistent(self) -> bool: ...
    def destroy(self) -> None: ...
    def undefine(self) -> None: ...


def hold(owner: str, name: str) -> socket.socket | None:
    """Hold the name of a guest for as long as the socket is open; None if another process holds it.

    It is an abstract Unix socket, so it belongs to this network namespace, which is the pod's.
    """
    digest = hashlib.sha256(f"{owner}\0{name}".encode()).hexdigest()
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(f"\0launcherkit-run-{digest}")
    except OSError:
        lock.close()
        return None
    return lock


def hold_or_refuse(owner: str, name: str) -> socket.socket:
    """As `hold`.

    Raises:
        DomainInTheWay: another launcher runs the guest.
    """
    lock = hold(owner, name)
    if lock is None:
        raise DomainInTheWay(
            f"the guest {name} is run by another `launcherkit run` here",
            "Stop that one, or give the guest a name of its own.",
            domain=name,
        )
    return lock


def clean(guests: Iterable[OwnedGuest], owner: str, own_name: str, tell: Callable[[str], None]) -> None:
    """Destroy and undefine the guests of an owner that have lost their launcher.

    Args:
        guests: all that libvirt has.
        owner: the owner's name.
        own_name: the guest whose name this process holds.
        tell: called with a sentence for each guest that is removed.

    Raises:
        DomainInTheWay: a guest with this guest's name has another owner, or none.
        LibvirtFailure: libvirt reports an error.
    """
    for guest in guests:
        name, whose = guest.name(), guest.owner()
        if whose == owner:
            with ExitStack() as held:
                lock = None if name == own_name else hold(owner, name)
                if lock is not None:
                    held.enter_context(lock)
                elif name != own_name:
                    continue  # its launcher lives
                tell(f"the guest {name} was left by an earlier launcher of {owner}: destroyed and undefined")
                remove(guest)
        elif name == own_name:
            by = f"belongs to {whose}" if whose else "is not one of `launcherkit run`"
            raise DomainInTheWay(
                f"the domain {name} is there already and {by}",
                f"Undefine it (virsh undefine {name}), give the guest another name, or say --owner {whose or 'NAME'} "
                "if it is yours.",
                domain=name,
            )


def remove(guest: OwnedGuest) -> None:
    """Destroy a guest if it runs, and undefine it; one that is gone is fine.

    Raises:
        LibvirtFailure: libvirt reports an error.
    """
    try:
        if guest.is_active():
            persistent = guest.is_persistent()
            guest.destroy()
            if not persistent:
                return
        guest.undefine()
    except LibvirtFailure as refusal:
        if not refusal.no_domain:
            raise
