"""How a guest ended, according to libvirt."""

from __future__ import annotations

from enum import IntEnum

from launcherkit.adapters.libvirt_connection import GuestState

_SHUTOFF, _CRASHED = 5, 6  # virDomainState


class Ending(IntEnum):
    """How a guest ended; the value is the exit code."""

    SHUT_DOWN = 0
    CRASHED = 10
    DESTROYED = 11
    FAILED = 12
    STOPPED_BY_FORCE = 13


IN_WORDS = {
    Ending.SHUT_DOWN: "the guest has shut down",
    Ending.CRASHED: "the guest or its QEMU has crashed",
    Ending.DESTROYED: "the guest was destroyed by someone else",
    Ending.FAILED: "the guest has ended, and libvirt does not know how",
    Ending.STOPPED_BY_FORCE: "the guest did not shut down in time and was destroyed",
}

_REASONS = {
    1: Ending.SHUT_DOWN,
    2: Ending.DESTROYED,
    3: Ending.CRASHED,
    4: Ending.SHUT_DOWN,  # it lives on elsewhere
    5: Ending.SHUT_DOWN,  # saved
}
"""``virDomainShutoffReason``."""


def ending_of(state: GuestState) -> Ending | None:
    """None while it runs; one that is kept after its crash (``on_crash=preserve``) has ended too."""
    if state.state == _CRASHED:
        return Ending.CRASHED
    if state.state != _SHUTOFF:
        return None
    return _REASONS.get(state.reason, Ending.FAILED)
