"""MAC address, trust and spoof checking of a NIC's virtual functions, by route netlink (rtnetlink(7)).

They are set at the physical function's interface, in the network namespace in which it is. Run as a file with
``-I -S``, this imports nothing of ours and ends at once: `set_networks` starts it so.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_SECONDS = 30.0

# linux/rtnetlink.h, linux/if_link.h
_GETLINK, _SETLINK, _ERROR = 18, 19, 2
_REQUEST, _ACK = 1, 4
_EXT_MASK, _MASK_VF = 29, 1
_VFINFO_LIST, _VF_INFO = 22, 1
_VF_MAC, _VF_SPOOFCHK, _VF_TRUST = 1, 4, 9
_NESTED = 0x8000
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HH")
_SETTINGS = {"spoofcheck": _VF_SPOOFCHK, "trust": _VF_TRUST}


class VfNetwork(NamedTuple):
    """What is set of one virtual function; None: it stays as it is."""

    mac: str | None = None
    trust: bool | None = None
    spoofcheck: bool | None = None


class NetworkRefused(Exception):
    """The kernel, or the driver of the physical function, refuses a setting. The message says which."""


def set_networks(interface: str, vfs: Sequence[VfNetwork]) -> None:
    """Set this of the first, second ... virtual function of an interface, and read it back; blocks.

    Raises:
        NetworkRefused: something is refused, or is not as it was set.
    """
    wishes = json.dumps([vf._asdict() for vf in vfs])
    try:
        done = subprocess.run(  # noqa: S603  # this interpreter, with this file
            [sys.executable, "-I", "-S", __file__, interface, wishes],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NetworkRefused(f"{interface}: it has not ended within {_SECONDS:g} s") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise NetworkRefused(lines[-1] if lines else f"it ended with exit code {done.returncode}")


def main(interface: str, wishes: str) -> None:
    """Set all of it.

    Raises:
        OSError, ValueError: something is refused, or is not as it was set.
    """
    index = socket.if_nametoindex(interface)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as route:
        route.settimeout(_SECONDS)
        for number, wish in enumerate(json.loads(wishes)):
            for name, setting in _settings(number, wish):
                try:
                    _ask(route, _SETLINK, index, _nested(_VFINFO_LIST, _nested(_VF_INFO, setting)))
                except OSError as problem:
                    raise OSError(
                        problem.errno, f"{interface} refuses {name} of VF {number}: {problem.strerror}"
                    ) from None
        answer = _ask(route, _GETLINK, index, _attribute(_EXT_MASK, struct.pack("=I", _MASK_VF)))
        settings = list(_settings_in(answer))
        for number, wish in enumerate(json.loads(wishes)):
            now = settings[number] if number < len(settings) else {}
            for name, value in wish.items():
                if value is not None and now.get(name, value) != value:
                    raise ValueError(f"{interface}: {name} of VF {number} is {now[name]} after {value} was set")


def _settings(number: int, wish: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """The attributes for one virtual function. The MAC address comes first: some drivers want it before trust."""
    if wish["mac"] is not None:
        address = bytes.fromhex(wish["mac"].replace(":", ""))
        yield "mac", _attribute(_VF_MAC, struct.pack("=I32s", number, address))
    for name, kind in _SETTINGS.items():
        if wish[name] is not None:
            yield name, _attribute(kind, struct.pack("=II", number, wish[name]))


def _ask(route: socket.socket, kind: int, index: int, attributes: bytes) -> bytes:
    """The answer to a request about an interface: its attributes, or nothing.

    Raises:
        OSError: it is refused.
    """
    body = _LINK.pack(socket.AF_UNSPEC, 0, index, 0, 0) + attributes
    flags = _REQUEST | (_ACK if kind == _SETLINK else 0)
    route.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body)
    answer = route.recv(1 << 20)
    _, answered, _, _, _ = _HEADER.unpack_from(answer)
    if answered == _ERROR:
        (number,) = struct.unpack_from("=i", answer, _HEADER.size)
        if number:
            raise OSError(-number, os.strerror(-number))
        return b""
    return answer[_HEADER.size + _LINK.size :]


def _settings_in(attributes: bytes) -> Iterator[dict[str, Any]]:
    """What an interface says of each of its virtual functions, as far as it says it."""
    names = {kind: name for name, kind in _SETTINGS.items()}
    for kind, listed in _parts(attributes):
        if kind != _VFINFO_LIST:
            continue
        for _, info in _parts(listed):
            of_vf: dict[str, Any] = {}
            for part, value in _parts(info):
                if part == _VF_MAC:
                    of_vf["mac"] = value[4:10].hex(":")
                elif part in names:
                    (state,) = struct.unpack_from("=I", value, 4)
                    if state in (0, 1):  # else the driver doesn't say
                        of_vf[names[part]] = bool(state)
            yield of_vf


def _parts(attributes: bytes) -> Iterator[tuple[int, bytes]]:
    while len(attributes) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(attributes)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, attributes[_ATTRIBUTE.size : length]
        attributes = attributes[(length + 3) & ~3 :]


def _nested(kind: int, content: bytes) -> bytes:
    return _attribute(kind | _NESTED, content)


def _attribute(kind: int, content: bytes) -> bytes:
    return (_ATTRIBUTE.pack(_ATTRIBUTE.size + len(content), kind) + content).ljust(
        (_ATTRIBUTE.size + len(content) + 3) & ~3, b"\0"
    )


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (OSError, ValueError) as problem:
        sys.exit(problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem))
