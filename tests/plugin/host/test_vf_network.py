"""MAC address, trust and spoof checking of virtual functions are set by route netlink, and read back."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence

import pytest

from launcherkit_plugin.host.vf_network import NetworkRefused, VfNetwork, main, set_networks

MAC = "02:00:00:00:10:01"
SETLINK, GETLINK, ERROR, NEWLINK = 19, 18, 2, 16
"""linux/rtnetlink.h and linux/netlink.h"""


def attribute(kind: int, content: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    return struct.pack("=HH", 4 + len(content), kind) + content + b"\0" * (-len(content) % 4)


def parts(content: bytes) -> dict[int, bytes]:
    """The attributes, by kind without the flag of nested ones."""
    found = {}
    while content:
        length, kind = struct.unpack("=HH", content[:4])
        found[kind & 0x7FFF] = content[4:length]
        content = content[length + (-length % 4) :]
    return found


def info(mac: str, spoofcheck: int, trust: int) -> bytes:
    """What the kernel says of one VF (rtnl_fill_vfinfo): more than is asked for, too."""
    address = bytes.fromhex(mac.replace(":", "")).ljust(32, b"\0")
    said = attribute(1, struct.pack("=I", 0) + address) + attribute(2, struct.pack("=III", 0, 0, 0))
    return attribute(
        1, said + attribute(4, struct.pack("=II", 0, spoofcheck)) + attribute(9, struct.pack("=II", 0, trust))
    )


class Route:
    """A socket of route netlink: remembers what is sent, and answers."""

    def __init__(self, vfs: Sequence[bytes], refuses: dict[int, int] | None = None) -> None:
        self.sent: list[tuple[int, int, bytes]] = []
        """Kind, index of the interface, attributes."""
        self.vfs, self.refuses = vfs, refuses or {}

    def __enter__(self) -> Route:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def settimeout(self, seconds: float) -> None:
        pass

    def send(self, message: bytes) -> None:
        length, kind, _, _, _ = struct.unpack("=IHHII", message[:16])
        assert length == len(message)
        _, _, index, _, _ = struct.unpack("=BxHiII", message[16:32])
        self.sent.append((kind, index, message[32:]))

    def recv(self, size: int) -> bytes:
        kind, index, _ = self.sent[-1]
        if kind == SETLINK:
            number = self.refuses.get(len(self.sent), 0)
            return struct.pack("=IHHIIi", 36, ERROR, 0, 1, 0, -number) + b"\0" * 16
        body = struct.pack("=BxHiII", 0, 1, index, 0, 0) + attribute(3, b"eth0\0") + attribute(22, b"".join(self.vfs))
        return struct.pack("=IHHII", 16 + len(body), NEWLINK, 0, 1, 0) + body

    def settings(self) -> list[tuple[int, bytes]]:
        """What was set: kind and value."""
        found: list[tuple[int, bytes]] = []
        for kind, _, attributes in self.sent:
            if kind == SETLINK:
                ((_, of_vf),) = parts(parts(attributes)[22]).items()
                found += parts(of_vf).items()
        return found


def given(monkeypatch: pytest.MonkeyPatch, route: Route) -> Route:
    monkeypatch.setattr("socket.socket", lambda *_: route)
    monkeypatch.setattr("socket.if_nametoindex", lambda _: 7)
    return route


def wishes(*vfs: VfNetwork) -> str:
    return json.dumps([vf._asdict() for vf in vfs])


def test_of_each_vf_what_is_wanted_is_set_in_one_message_each(monkeypatch: pytest.MonkeyPatch) -> None:
    route = given(monkeypatch, Route([info(MAC, 0, 1), info("02:00:00:00:10:09", 1, 0)]))
    main("eth0", wishes(VfNetwork(MAC, trust=True, spoofcheck=False), VfNetwork(trust=False)))
    assert route.settings() == [
        (1, struct.pack("=I", 0) + bytes.fromhex("020000001001") + b"\0" * 26),
        (4, struct.pack("=II", 0, 0)),
        (9, struct.pack("=II", 0, 1)),
        (9, struct.pack("=II", 1, 0)),
    ]
    kind, index, attributes = route.sent[-1]
    assert (kind, index, parts(attributes)) == (GETLINK, 7, {29: struct.pack("=I", 1)}), "it asks for the VFs"


def test_what_the_driver_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, Route([], {2: 95}))
    with pytest.raises(OSError, match="eth0 refuses trust of VF 0: Operation not supported"):
        main("eth0", wishes(VfNetwork(MAC, trust=True)))


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (info("02:00:00:00:10:02", 0, 1), f"mac of VF 0 is 02:00:00:00:10:02 after {MAC} was set"),
        (info(MAC, 1, 1), "spoofcheck of VF 0 is True after False was set"),
        (info(MAC, 0, 0), "trust of VF 0 is False after True was set"),
    ],
)
def test_what_is_not_as_it_was_set_is_noticed(monkeypatch: pytest.MonkeyPatch, said: bytes, wrong: str) -> None:
    given(monkeypatch, Route([said]))
    with pytest.raises(ValueError, match=wrong):
        main("eth0", wishes(VfNetwork(MAC, trust=True, spoofcheck=False)))


def test_what_a_driver_does_not_say_counts_as_set(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, Route([info(MAC, 0xFFFFFFFF, 0xFFFFFFFF)]))
    main("eth0", wishes(VfNetwork(MAC, trust=True, spoofcheck=False)))
    given(monkeypatch, Route([]))
    main("eth0", wishes(VfNetwork(MAC)))


# With the kernel


def test_the_kernel_understands_the_messages() -> None:
    set_networks("lo", [])
    refused = "Operation not supported" if os.geteuid() == 0 else "Operation not permitted"
    with pytest.raises(NetworkRefused, match=f"^lo refuses mac of VF 0: {refused}$"):
        set_networks("lo", [VfNetwork(MAC)])


def test_an_interface_that_is_not_there_is_an_error() -> None:
    with pytest.raises(NetworkRefused, match=r"[Nn]o (such device|interface with this name)"):
        set_networks("none-such", [])
