"""What the daemon serves on its unix sockets, by path: probes, and what the web process passes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from launcherkit_plugin.cluster.socket import ClusterSocket
from launcherkit_plugin.http.response import METRICS, REVIEW, Page, Response
from launcherkit_plugin.model.errors import TokenNotReviewed
from launcherkit_plugin.telemetry.probe_state import ProbeState

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
        why = problem()
        return Response(503, f"{why}\n".encode()) if why else Response(200, b"ok\n")

    return page


def web_pages(metrics: PrometheusMetrics, page: NodePage, cluster: ClusterSocket) -> dict[str, Page]:
    """Metrics, the page of the node, and reviews of tokens. Who may see what is decided by the web process."""
    from launcherkit_plugin.telemetry.prometheus import exposition

    async def scrape(headers: Mapping[str, str]) -> Response:
        content_type, text = exposition(metrics.registry, headers.get("accept", ""))
        return Response(200, text, content_type)

    async def review(headers: Mapping[str, str]) -> Response:
        try:
            why = await cluster.review_token(headers.get("authorization", "").removeprefix("Bearer "), REVIEW_SECONDS)
        except TokenNotReviewed as problem:
            return Response(503, f"{problem.code}: {problem.message}\n".encode())
        return Response(204, b"") if why is None else Response(401, f"{why}\n".encode())

    return {METRICS: scrape, REVIEW: review, **page.pages()}
