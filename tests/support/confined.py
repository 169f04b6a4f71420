"""A program under the seccomp profile that is shipped: ``confined.py PROGRAM ARGUMENT...`` becomes that program.

The filter is the one that runc makes, with the same library. It is for this machine's architecture alone, and the
program gets no new privileges. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROFILE = Path(__file__).resolve().parents[2] / "deploy" / "seccomp" / "launcherkit-plugin.json"
LIBRARY = "libseccomp.so.2"
"""Debian's apt needs it, and so does runc."""

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # and an error's number; seccomp.h
_EPERM = 1
_UNKNOWN = -1
_OPERATORS = {"SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}


class _Condition(ctypes.Structure):
    """``scmp_arg_cmp``: which argument, how it is compared, and with what."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("value", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def is_there() -> bool:
    """Whether this machine has what makes the filter."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def command(program: Sequence[str]) -> list[str]:
    """The command that becomes another under the profile; its process is the same."""
    return [sys.executable, __file__, *program]


def confine(profile: Mapping[str, Any]) -> None:
    """Have a profile's filter from now on, as all that this process starts.

    Raises:
        OSError: the library or the kernel doesn't take it.
    """
    library = ctypes.CDLL(LIBRARY)
    library.seccomp_init.restype = ctypes.c_void_p
    filtered = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_action(profile["defaultAction"], {}))))
    for rule in profile["syscalls"]:
        arguments = rule.get("args", ())
        conditions = (_Condition * len(arguments))(*map(_condition, arguments))
        for name in rule["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number != _UNKNOWN:  # to this version of the library
                action = ctypes.c_uint32(_action(rule["action"], rule))
                _check(library.seccomp_rule_add_array(filtered, action, number, len(conditions), conditions), name)
    _check(library.seccomp_load(filtered), "the filter")


def _action(name: str, rule: Mapping[str, Any]) -> int:
    return {"SCMP_ACT_ALLOW": _ALLOW, "SCMP_ACT_ERRNO": _ERRNO | int(rule.get("errnoRet", _EPERM))}[name]


def _condition(argument: Mapping[str, Any]) -> _Condition:
    return _Condition(argument["index"], _OPERATORS[argument["op"]], argument["value"], argument.get("valueTwo", 0))


def _check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")


if __name__ == "__main__":
    confine(json.loads(PROFILE.read_text()))
    os.execvp(sys.argv[1], sys.argv[1:])
