"""What is measured, and how it is handed out over HTTP."""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from launcherkit_plugin.model.device import Device, Problem, Reason, Resource
from launcherkit_plugin.model.errors import BadMetricsToken, NoMetricsAddress
from launcherkit_plugin.telemetry.http import Page, ProbeState, Response, answer, parse_address, probe_pages, serving
from launcherkit_plugin.telemetry.metrics import Metrics
from launcherkit_plugin.telemetry.prometheus import PREFIX, PrometheusMetrics, metrics_pages
from tests.support.provoked import provoked

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "plugin-metrics.md"


def resource(name: str, *reasons: Reason | None) -> Resource:
    """A resource with a device for each reason, None for a healthy one."""
    devices = {
        str(number): Device(str(number), problem=Problem(reason, "as said") if reason else None)
        for number, reason in enumerate(reasons)
    }
    return Resource(name, "PCI_RESOURCE_X", devices)


def asked_for(request: bytes, pages: Mapping[str, Page]) -> Response:
    return asyncio.run(answer(request, pages))


def page_of(metrics: PrometheusMetrics) -> str:
    given = asked_for(b"GET /metrics HTTP/1.1\r\n\r\n", metrics_pages(metrics.registry, None))
    assert given.status == "200 OK"
    return given.body.decode()


def families(metrics: PrometheusMetrics) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(page_of(metrics))}


def value(metrics: PrometheusMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"{PREFIX}_{name}", labels)


# The metrics


def tell_all(metrics: Metrics) -> None:
    metrics.allocated("nvidia.com/A", 0.002, "done")
    metrics.claim("prepare", 0.01, "done")
    metrics.registered("nvidia.com/A", "done")
    metrics.scanned(0.03)
    metrics.devices([resource("nvidia.com/A", None, None, "driver")])
    metrics.bound("bind", "refused")
    metrics.vgpu("create", "failed")
    metrics.held_groups(3)
    metrics.reloaded("done")


def test_what_was_told_can_be_read() -> None:
    metrics = PrometheusMetrics()
    tell_all(metrics)
    assert value(metrics, "allocations_total", resource="nvidia.com/A", outcome="done") == 1
    assert value(metrics, "allocate_duration_seconds_sum", resource="nvidia.com/A") == pytest.approx(0.002)
    assert value(metrics, "registrations_total", resource="nvidia.com/A", outcome="done") == 1
    assert value(metrics, "scan_duration_seconds_count") == 1
    assert value(metrics, "bindings_total", action="bind", outcome="refused") == 1
    assert value(metrics, "vgpu_changes_total", action="create", outcome="failed") == 1
    assert value(metrics, "held_iommu_groups") == 3
    assert value(metrics, "config_reloads_total", outcome="done") == 1


def test_devices_are_counted_by_health_and_the_unhealthy_by_reason() -> None:
    metrics = PrometheusMetrics()
    metrics.devices([resource("nvidia.com/A", None, "driver", "driver", "gone"), resource("amd.com/B", None)])
    assert value(metrics, "devices", resource="nvidia.com/A", health="healthy") == 1
    assert value(metrics, "devices", resource="nvidia.com/A", health="unhealthy") == 3
    assert value(metrics, "unhealthy_devices", resource="nvidia.com/A", reason="driver") == 2
    assert value(metrics, "unhealthy_devices", resource="nvidia.com/A", reason="gone") == 1
    assert value(metrics, "devices", resource="amd.com/B", health="unhealthy") == 0


def test_a_resource_that_is_gone_leaves_no_series() -> None:
    metrics = PrometheusMetrics()
    metrics.devices([resource("nvidia.com/A", "gone")])
    metrics.devices([])
    assert value(metrics, "devices", resource="nvidia.com/A", health="healthy") is None
    assert value(metrics, "unhealthy_devices", resource="nvidia.com/A", reason="gone") is None


def test_two_daemons_in_one_process_share_nothing() -> None:
    one, other = PrometheusMetrics(), PrometheusMetrics()
    one.scanned(1.0)
    assert value(other, "scan_duration_seconds_count") == 0


def test_a_command_counts_nothing_and_needs_no_more_code_for_it() -> None:
    tell_all(Metrics())


def test_every_metric_is_on_its_page_with_its_labels_and_no_other_is() -> None:
    metrics = PrometheusMetrics()
    tell_all(metrics)
    own = {name: family for name, family in families(metrics).items() if name.startswith(PREFIX)}
    labels = {
        f"{name}_total" if family.type == "counter" else name: {
            label for sample in family.samples for label in sample.labels if label != "le"
        }
        for name, family in own.items()
        if not name.endswith("_created")
    }
    rows = re.findall(rf"^\| `({PREFIX}_\w+)` \| \w+ \| (.*?) \|", PAGE.read_text(), re.M)
    assert {name: set(re.findall(r"`(\w+)`", cell)) for name, cell in rows} == labels


def test_every_reason_of_a_device_is_on_the_page_and_no_other_is() -> None:
    part = PAGE.read_text().partition("## Reasons")[2].partition("## Alerts")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", part, re.M)[1:] == list(get_args(Reason))


def test_names_have_base_units_and_label_values_are_few() -> None:
    metrics = PrometheusMetrics()
    tell_all(metrics)
    for name, family in families(metrics).items():
        assert not re.search(r"_(ms|milliseconds|us|kb|mb|percent)(_|$)", name)
        assert len(family.samples) < 50, f"{name} has many series for one resource"


# Health


def test_a_daemon_that_comes_round_is_well_and_one_that_does_not_is_ill() -> None:
    now = iter([0.0, 5.0, 20.0, 21.0])
    health = ProbeState(lambda: next(now), patience=10)
    assert health.why_restart() == ""
    assert health.why_restart() == "the daemon's loop has not turned for 20 s"
    health.turned()


def test_it_is_not_ready_before_it_says_so_and_then_until_it_waits_again() -> None:
    health = ProbeState(lambda: 0.0, 10)
    assert health.why_not_ready()
    health.waiting("")
    assert not health.why_not_ready()
    health.waiting("the kubelet's socket is not there")
    assert health.why_not_ready() == "the kubelet's socket is not there"


# The pages


def every_page() -> dict[str, Page]:
    """Those of both servers."""
    return probe_pages(ProbeState(lambda: 0.0, 1.0)) | metrics_pages(PrometheusMetrics().registry, None)


def status(request: bytes) -> str:
    return asked_for(request, every_page()).status


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [
        (b"GET /healthz HTTP/1.1", "200 OK"),
        (b"GET /healthz?verbose HTTP/1.0", "200 OK"),
        (b"GET /readyz HTTP/1.1", "503 Service Unavailable"),
        (b"GET / HTTP/1.1", "404 Not Found"),
        (b"GET /metrics/../etc HTTP/1.1", "404 Not Found"),
        (b"POST /metrics HTTP/1.1", "405 Method Not Allowed"),
        (b"GET /metrics HTTP/2.0", "400 Bad Request"),
        (b"GET  /metrics HTTP/1.1", "400 Bad Request"),
        (b"\x16\x03\x01\x02", "400 Bad Request"),
        (b"", "400 Bad Request"),
    ],
)
def test_a_request_is_answered_as_it_deserves(request_line: bytes, expected: str) -> None:
    assert status(request_line + b"\r\nHost: a\r\n\r\n") == expected


@given(st.binary(max_size=300))
def test_no_request_is_too_odd_to_be_answered(request: bytes) -> None:
    assert status(request)[:3] in {"200", "400", "404", "405", "503"}


@given(st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=100))
def test_no_accept_is_too_odd_to_be_answered(accept: str) -> None:
    request = f"GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n".encode("latin-1")
    assert status(request)[:3] in {"200", "406"}


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", "200"),
        ("*/*", "200"),
        ("text/html, */*;q=0.1", "200"),
        ("text/plain;version=1.0.0", "200"),
        ("image/png", "406"),
        ("application/openmetrics-text; version=one", "406"),
        (",", "406"),
    ],
)
def test_who_reads_neither_format_is_reported_so(accept: str, expected: str) -> None:
    assert status(f"GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n".encode())[:3] == expected


def test_a_scraper_gets_the_format_that_it_reads() -> None:
    request = b"GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text; version=1.0.0\r\n\r\n"
    given = asked_for(request, every_page())
    assert given.content_type.startswith("application/openmetrics-text")
    assert given.body.endswith(b"# EOF\n")


def test_with_a_token_the_metrics_are_for_who_has_it_and_a_new_one_counts_at_once(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    pages = metrics_pages(PrometheusMetrics().registry, str(file))

    def asked(*lines: str) -> Response:
        return asked_for("\r\n".join(["GET /metrics HTTP/1.1", *lines, "", ""]).encode("latin-1"), pages)

    assert asked("Authorization: Bearer first").status == "200 OK"
    for lines in ([], ["Authorization: Bearer"], ["Authorization: Bearer first2"], ["Authorization: Basic first"]):
        refused = asked(*lines)
        assert (refused.status, refused.headers) == ("401 Unauthorized", (("WWW-Authenticate", "Bearer"),))
    assert asked("Authorization: Bearer \xff").status == "401 Unauthorized"
    file.write_text("second")
    assert asked("Authorization: Bearer first").status == "401 Unauthorized"
    assert asked("authorization: bearer second").status == "200 OK"
    file.write_text("")
    assert asked("Authorization: Bearer ").status == "401 Unauthorized"


@pytest.mark.parametrize("content", ["", "\n", "two words"])
def test_a_file_without_a_token_is_reported_at_the_start(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(BadMetricsToken) as caught:
        metrics_pages(PrometheusMetrics().registry, str(file))
    (reported,) = provoked("cluster", "LK744")
    assert f"LK744: {caught.value.message}" == reported.replace("/etc/launcherkit-metrics/token", str(file))
    with pytest.raises(BadMetricsToken, match="No such file"):
        metrics_pages(PrometheusMetrics().registry, str(tmp_path / "none"))


# The server

WELL = ProbeState(lambda: 0.0, 10)


@asynccontextmanager
async def server() -> AsyncIterator[tuple[str, int]]:
    health = ProbeState(lambda: 0.0, 10)
    async with serving("127.0.0.1:0", probe_pages(health)) as bound:
        yield parse_address(bound.where)


async def fetched(host: str, port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request)
    read = await reader.read()
    writer.close()
    return read


def test_a_page_comes_over_http_and_the_connection_ends() -> None:
    async def scenario() -> None:
        async with server() as (host, port):
            read = await fetched(host, port, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            head, _, body = read.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"Connection: close" in head
            assert body == b"ok\n"

    asyncio.run(scenario())


def test_a_request_without_end_is_hung_up_on() -> None:
    async def scenario() -> None:
        async with server() as (host, port):
            assert await fetched(host, port, b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000) == b""

    asyncio.run(scenario())


def test_clients_that_say_nothing_keep_no_probe_out() -> None:
    async def scenario() -> None:
        async with server() as (host, port):
            silent = [await asyncio.open_connection(host, port) for _ in range(40)]
            assert b"200 OK" in await fetched(host, port, b"GET /healthz HTTP/1.1\r\n\r\n")
            for _, writer in silent:
                writer.close()

    asyncio.run(scenario())


async def counting(headers: Mapping[str, str]) -> Response:
    """A stream that doesn't end."""

    async def parts() -> AsyncGenerator[bytes, None]:
        for number in itertools.count():
            yield f"{number}\n".encode()
            await asyncio.sleep(0.01)

    return Response("200 OK", b"", stream=parts())


def test_a_stream_comes_as_it_is_made_and_keeps_no_others_out() -> None:
    async def scenario() -> None:
        async with serving("127.0.0.1:0", {"/numbers": counting, "/once": probe_pages(WELL)["/healthz"]}) as bound:
            host, port = parse_address(bound.where)
            followers = []
            for _ in range(40):
                reader, writer = await asyncio.open_connection(host, port)
                followers.append((reader, writer))
                writer.write(b"GET /numbers HTTP/1.1\r\n\r\n")
                assert await reader.readuntil(b"\r\n\r\n0\n1\n")
            assert b"200" in await fetched(host, port, b"GET /once HTTP/1.1\r\n\r\n")
            assert await followers[-1][0].readuntil(b"\n9\n")
            with suppress(ConnectionResetError):  # the first had to go: there were too many
                assert b"\n" in await followers[0][0].read()
            for _, writer in followers:
                writer.close()

    asyncio.run(scenario())


def _is_known(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, 0))
    except OSError:
        return False


UNKNOWN = pytest.mark.skipif(not _is_known("localhost"), reason="no localhost here")
NAMED = pytest.param("localhost:0", True, marks=UNKNOWN)


@pytest.mark.parametrize(("address", "alone"), [("127.0.0.1:0", True), NAMED, (":0", False)])
def test_a_server_knows_whether_others_than_this_host_reach_it(address: str, alone: bool) -> None:
    async def scenario() -> bool:
        async with serving(address, {}) as bound:
            return bound.loopback

    assert asyncio.run(scenario()) == alone


def test_it_ends_although_a_client_is_still_there() -> None:
    async def scenario() -> None:
        async with server() as (host, port):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /hea")
            await writer.drain()
        assert await reader.read() == b""
        writer.close()

    with pytest.raises(ConnectionResetError):  # an abort: nothing was answered
        asyncio.run(scenario())


def test_an_address_that_somebody_has_is_refused_with_its_name() -> None:
    async def scenario() -> None:
        async with server() as (host, port), serving(f"{host}:{port}", {}):
            pass

    with pytest.raises(NoMetricsAddress, match=r"--metrics-address 127\.0\.0\.1:\d+: "):
        asyncio.run(scenario())


@pytest.mark.parametrize(
    ("address", "expected"),
    [(":8080", ("", 8080)), ("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:9", ("::1", 9)), ("node:1", ("node", 1))],
)
def test_an_address_is_a_host_and_a_port(address: str, expected: tuple[str, int]) -> None:
    assert parse_address(address) == expected


@pytest.mark.parametrize("address", ["", "8080", ":", ":http", ":65536", "::1:80", ":-1", ":\u0663"])
def test_what_is_no_address_is_refused_with_examples(address: str) -> None:
    with pytest.raises(NoMetricsAddress) as caught:
        parse_address(address)
    (reported,) = provoked("cluster", "LK742")
    assert f"LK742: {caught.value.message}" == reported.replace("'8080'", repr(address))
    assert ":8080" in caught.value.remedy
