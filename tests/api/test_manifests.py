"""All that deploy/ has, applied to the API of a Kubernetes of today: nothing is refused, and nothing is dropped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.chart import NEEDS
from deploy.render import DEPLOY
from tests.api.applying import applied, apply, delete
from tests.cluster.test_manifests import CRDS, FOREIGN, MANIFESTS, NAMESPACE, dropped
from tests.support.cluster import Cluster
from tests.test_deploy_plugin import BASE, COMPONENTS

pytestmark = pytest.mark.api

_THERE_FOR = {**NEEDS, "node-hook": ("vgpu",), "node-events": ("cluster",)}
"""Components without which others have nothing to do."""
OVERLAYS = {
    "base": [],
    **{name: [*_THERE_FOR.get(name, ()), name] for name in COMPONENTS},
    "all": list(COMPONENTS),
}


@pytest.fixture(scope="module")
def server(api: Cluster) -> Iterator[Cluster]:
    """The API with KubeVirt's kinds and the Prometheus operator's."""
    with applied(api, CRDS.read_text()):
        api.kubectl("wait", "--for=condition=established", "--timeout=60s", "-f", "-", given=CRDS.read_text())
        apply(api, [NAMESPACE])
        yield api


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_is_applied_whole(server: Cluster, path: Path) -> None:
    taken_whole(server, path.read_text(), fail_unless_foreign)


def fail_unless_foreign(kind: str) -> None:
    assert kind in {*FOREIGN, "NetworkPolicy"}, f"this API server doesn't know {kind}"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_kustomize_builds_of_the_device_plugin_is_applied_whole(
    server: Cluster, tmp_path: Path, overlay: str, record_property: Callable[[str, object], None]
) -> None:
    built = kustomized(server, tmp_path, OVERLAYS[overlay])
    taken_whole(server, built, lambda kind: record_property("instead", f"{kind} -> not applied"))


def test_the_overlay_that_installs_all_is_applied_whole(
    server: Cluster, record_property: Callable[[str, object], None]
) -> None:
    built = server.kubectl("kustomize", str(DEPLOY / "all"))
    taken_whole(server, built, lambda kind: record_property("instead", f"{kind} -> not applied"))


def kustomized(server: Cluster, folder: Path, components: list[str]) -> str:
    """The base with some components, as kubectl builds them."""
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(BASE, folder)],
        "components": [os.path.relpath(COMPONENTS[name], folder) for name in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return server.kubectl("kustomize", str(folder))


def taken_whole(server: Cluster, manifest: str, missing: Callable[[str], object]) -> None:
    """Apply documents and compare what is stored.

    Args:
        missing: called with a kind that the server doesn't have; its documents are left out.
    """
    kinds = served(server)
    documents = list(yaml.safe_load_all(manifest))
    for document in documents:
        if document["kind"] not in kinds:
            missing(document["kind"])
    known = [document for document in documents if document["kind"] in kinds]
    try:
        stored = apply(server, known)
        assert {name(each) for each in stored} == {name(each) for each in known}
        by_name = {name(each): each for each in stored}
        assert [path for each in known for path in dropped(each, by_name[name(each)])] == []
    finally:
        delete(server, known)


def served(server: Cluster) -> set[str]:
    """The kinds that the server has."""
    return {line.split()[-1] for line in server.kubectl("api-resources", "--no-headers").splitlines()}


def name(document: dict[str, Any]) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]
