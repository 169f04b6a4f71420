"""Server-side apply, as an admin's `kubectl apply --server-side` does it, with fields that nobody knows refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import yaml

from tests.support.cluster import Cluster


def apply(server: Cluster, documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Apply documents; what the server has stored of them.

    Raises:
        tests.support.cluster.Refused: one is not taken, or has a field that the server doesn't know.
    """
    answer = server.kubectl(
        "apply", "--server-side", "--validate=strict", "--output=json", "-f", "-", given=_together(documents)
    )
    stored: dict[str, Any] = json.loads(answer)
    return list(stored["items"]) if stored["kind"] == "List" else [stored]


def delete(server: Cluster, documents: Sequence[dict[str, Any]]) -> None:
    """Delete what is there of documents."""
    server.kubectl("delete", "--ignore-not-found", "--wait=true", "-f", "-", given=_together(documents))


@contextmanager
def applied(server: Cluster, *manifests: str) -> Iterator[list[dict[str, Any]]]:
    """Manifests that are applied in the block, and gone after it."""
    documents = [document for text in manifests for document in yaml.safe_load_all(text)]
    try:
        yield apply(server, documents)
    finally:
        delete(server, documents)


def _together(documents: Sequence[dict[str, Any]]) -> str:
    return "\n---\n".join(map(json.dumps, documents))
