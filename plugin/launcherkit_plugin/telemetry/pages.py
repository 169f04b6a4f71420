"""``/metrics`` for scrapers, ``/healthz`` and ``/readyz`` for the kubelet."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from launcherkit.errors import UnreadableFile
from launcherkit.sources.files import read_file
from launcherkit_plugin.model.errors import BadMetricsToken
from launcherkit_plugin.telemetry.health import Health
from launcherkit_plugin.telemetry.http import Answer, Page

_TOKEN_BYTES = 4096
_READ = ("*/*", "text/*", "text/plain", "application/*", "application/openmetrics-text")
"""What a scraper may say that it reads; it gets one of the two formats of Prometheus."""
_NOT_ACCEPTABLE = Answer("406 Not Acceptable", b"there is text/plain and application/openmetrics-text\n")


def metrics_pages(registry: CollectorRegistry, token_file: str | None) -> dict[str, Page]:
    """The metrics, where there is a file with a token only for who has it.

    The file is read for each request: a Secret that is mounted changes.

    Raises:
        BadMetricsToken: the file has none now.
    """
    if token_file is not None:
        read_token(token_file)

    def page(headers: Mapping[str, str]) -> Answer:
        if token_file is not None and not _has_token(headers.get("authorization", ""), token_file):
            return Answer("401 Unauthorized", b"a token is needed\n", headers=(("WWW-Authenticate", "Bearer"),))
        return _metrics(headers.get("accept", ""), registry)

    return {"/metrics": page}


def _metrics(accept: str, registry: CollectorRegistry) -> Answer:
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    if accept and not any(kind in _READ for kind in kinds):
        return _NOT_ACCEPTABLE
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is none
        return _NOT_ACCEPTABLE
    return Answer("200 OK", encode(registry), content_type)


def read_token(path: str) -> bytes:
    """The token in a file.

    Raises:
        BadMetricsToken: it can't be read, or has none.
    """
    try:
        token = read_file(path, _TOKEN_BYTES).strip()
    except UnreadableFile as problem:
        raise _bad_token(problem.message) from problem
    if not token or len(token.split()) != 1:
        raise _bad_token(f"{path}: no token, or more than a word")
    return token


def _bad_token(why: str) -> BadMetricsToken:
    return BadMetricsToken(
        f"--metrics-token-file: {why}", "Put a token of one word into the file; `openssl rand -hex 32` makes one."
    )


def _has_token(authorization: str, path: str) -> bool:
    try:
        token = read_token(path)
    except BadMetricsToken:  # being replaced, perhaps: nobody gets in meanwhile
        return False
    scheme, _, given = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), token)


def probe_pages(health: Health) -> dict[str, Page]:
    """Whether the daemon lives and is ready."""
    return {"/healthz": _probe(health.illness), "/readyz": _probe(health.unreadiness)}


def _probe(problem: Callable[[], str]) -> Page:
    def page(_: Mapping[str, str]) -> Answer:
        why = problem()
        return Answer("503 Service Unavailable", f"{why}\n".encode()) if why else Answer("200 OK", b"ok\n")

    return page
