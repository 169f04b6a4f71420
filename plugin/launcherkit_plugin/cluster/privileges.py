"""Gives up what the cluster's process has from the daemon and needs not: root, capabilities, the way back to them."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_NOBODY = 65534
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION_3 = 0x20080522


def drop_privileges() -> None:
    """Become nobody, and have no capability. Where root may not change users, as in our pod, it stays a bare root."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.geteuid() == 0:
        with suppress(PermissionError):
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    # Effective, permitted and inheritable, in two times 32 bits, of this thread: the others are not there yet.
    libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)())


def readable_by_all(path: str) -> bool:
    """Whether nobody can read a file, too."""
    try:
        return bool(os.stat(path).st_mode & 0o004)
    except OSError:
        return False
