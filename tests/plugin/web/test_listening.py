"""Where the web process listens."""

from __future__ import annotations

import socket

import pytest

from launcherkit_plugin.model.errors import NO_METRICS_ADDRESS
from launcherkit_plugin.web.server import is_loopback, listening, parse_address, spelled
from tests.support.errors import raises_code
from tests.support.provoked import provoked


def _is_known(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, 0))
    except OSError:
        return False


UNKNOWN = pytest.mark.skipif(not _is_known("localhost"), reason="no localhost here")
NAMED = pytest.param("localhost:0", True, marks=UNKNOWN)


@pytest.mark.parametrize(("address", "alone"), [("127.0.0.1:0", True), NAMED, (":0", False), ("0.0.0.0:0", False)])
def test_it_is_known_whether_others_than_this_host_reach_it(address: str, alone: bool) -> None:
    with listening(address) as bound:
        assert is_loopback(bound) == alone
        assert parse_address(spelled(bound))[1] == bound.getsockname()[1]


def test_an_address_that_somebody_has_is_refused_with_its_name() -> None:
    with listening("127.0.0.1:0") as bound:
        where = spelled(bound)
        with raises_code(NO_METRICS_ADDRESS) as caught:
            listening(where)
    assert caught.value.message.startswith(f"--metrics-address {where}: Address already in use")


def test_a_host_that_nobody_knows_is_refused_with_its_name() -> None:
    with raises_code(NO_METRICS_ADDRESS, match=r"--metrics-address no\.invalid:80: "):
        listening("no.invalid:80")


@pytest.mark.parametrize(
    ("address", "expected"),
    [(":8080", ("", 8080)), ("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:9", ("::1", 9)), ("node:1", ("node", 1))],
)
def test_an_address_is_a_host_and_a_port(address: str, expected: tuple[str, int]) -> None:
    assert parse_address(address) == expected


@pytest.mark.parametrize("address", ["", "8080", ":", ":http", ":65536", "::1:80", ":-1", ":\u0663"])
def test_what_is_no_address_is_refused_with_examples(address: str) -> None:
    with raises_code(NO_METRICS_ADDRESS) as caught:
        parse_address(address)
    (reported,) = provoked("cluster", "LK742")
    assert f"LK742: {caught.value.message}" == reported.replace("'8080'", repr(address))
    assert ":8080" in caught.value.remedy
