"""What the daemon serves on its unix sockets: probes, and what the web process passes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from launcherkit.errors import CannotServe
from launcherkit.model.host import HostFacts
from launcherkit_plugin.cluster.socket import ClusterSocket
from launcherkit_plugin.http.response import METRICS, REVIEW, Page, Response
from launcherkit_plugin.model.device import Resource, Usage
from launcherkit_plugin.model.errors import NO_PROBE_SOCKET, NO_WEB_SOCKET, NoCluster
from launcherkit_plugin.telemetry.probe_state import ProbeState
from launcherkit_plugin.telemetry.reporter import Log, Reporter

if TYPE_CHECKING:
    from launcherkit_plugin.page.live import NodePage
    from launcherkit_plugin.telemetry.prometheus import PrometheusMetrics

REVIEW_SECONDS = 5.0
"""How long to wait for the cluster's review of a token."""


def probe_pages(health: ProbeState) -> dict[str, Page]:
    """Whether the daemon is alive and ready."""
    return {"/healthz": _probe(health.why_restart), "/readyz": _probe(health.why_not_ready)}


def _probe(problem: Callable[[], str]) -> Page:
    async def page(_: Mapping[str, str]) -> Response:
        problem_text = problem()
        return Response(503, f"{problem_text}\n".encode()) if problem_text else Response(200, b"ok\n")

    return page


class Web(NamedTuple):
    """Who counts and reports, and what the web process is served."""

    reporter: Reporter
    show: Callable[[HostFacts, Sequence[Resource], Usage], object] = lambda facts, resources, usage: None  # noqa: ARG005
    """Is shown the facts of each turn."""
    pages: Mapping[str, Page] = {}
    """By path."""


def web_of_node(node: str, host: str, cluster: ClusterSocket, log: Log, *, names: bool = False) -> Web:
    """Metrics, and the page of a node.

    Args:
        node: its name.
        host: the directory that contains its ``sys``.
        cluster: reviews tokens, and is told of changes.
        log: receives everything.
        names: whether the metrics say who has a device.
    """
    from launcherkit_plugin.page.live import NodePage
    from launcherkit_plugin.page.view import RecentChanges
    from launcherkit_plugin.telemetry.device_series import DeviceSeries
    from launcherkit_plugin.telemetry.prometheus import PrometheusMetrics

    metrics, recent = PrometheusMetrics(), RecentChanges(cluster, time.time)
    page, series = NodePage(node, host, recent, time.time), DeviceSeries(node, time.time, names=names)
    metrics.registry.register(series)

    def show(facts: HostFacts, resources: Sequence[Resource], usage: Usage) -> None:
        page.observe(facts, resources, usage)
        series.observe(facts, resources, usage)

    return Web(Reporter(log, metrics, recent), show, web_pages(metrics, page, cluster))


def web_pages(metrics: PrometheusMetrics, page: NodePage, cluster: ClusterSocket) -> dict[str, Page]:
    """Metrics, the page of the node, and reviews of tokens. Who may see what is decided by the web process."""
    from launcherkit_plugin.telemetry.prometheus import exposition

    async def scrape(headers: Mapping[str, str]) -> Response:
        content_type, text = exposition(metrics.registry, headers.get("accept", ""))
        return Response(200, text, content_type)

    async def review(headers: Mapping[str, str]) -> Response:
        try:
            refusal = await cluster.review_token(
                headers.get("authorization", "").removeprefix("Bearer "), REVIEW_SECONDS
            )
        except NoCluster as problem:
            return Response(503, f"{problem.code}: {problem.message}\n".encode())
        return Response(204, b"") if refusal is None else Response(401, f"{refusal}\n".encode())

    return {METRICS: scrape, REVIEW: review, **page.pages()}


def no_web_socket(path: str, reason: str) -> CannotServe:
    """The error if there can't be a socket for the web process."""
    return NO_WEB_SOCKET(
        f"{path}: the socket for the web process can't be created: {reason}",
        "Mount a folder into both containers, writable for this user, and give a socket in it with --web-socket.",
        file=path,
        key="--web-socket",
    )


def no_probe_socket(path: str, reason: str) -> CannotServe:
    """The error if there can't be a socket for probes."""
    return NO_PROBE_SOCKET(
        f"--probe-socket {path}: {reason}",
        "Give a socket in a folder that exists and is writable.",
        file=path,
        key="--probe-socket",
    )
