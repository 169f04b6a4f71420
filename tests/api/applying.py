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


def crd(group: str, kind: str, short: str, scope: str) -> dict[str, Any]:
    """A kind that this server doesn't have, of which any object is one.

    Args:
        scope: ``Namespaced`` or ``Cluster``.
    """
    plural = f"{kind.lower()}s" if not kind.endswith("y") else f"{kind.lower()[:-1]}ies"
    whatever = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "shortNames": [short] if short else []}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": whatever}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            # A group of Kubernetes' own is not to be had without.
            "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in in a test"},
        },
        "spec": {"group": group, "scope": scope, "names": names, "versions": [version]},
    }


STAND_INS = [
    crd("networking.k8s.io", "NetworkPolicy", "", "Namespaced"),
    crd("monitoring.coreos.com", "PrometheusRule", "", "Namespaced"),
]
"""Kinds of the manifests that this API server doesn't have, and of which nothing is checked."""


def _together(documents: Sequence[dict[str, Any]]) -> str:
    return "\n---\n".join(map(json.dumps, documents))
