"""All that deploy/ has, and what the pages show, on the API of a Kubernetes of today: nothing is refused or dropped.

What the pages show is not stored, for it names what is somebody else's.
"""

from __future__ import annotations

import json
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
from tests.support.pages import Block, all_pages, blocks, name_of
from tests.test_deploy_plugin import BASE, COMPONENTS
from tests.test_docs_unrun import documents

pytestmark = pytest.mark.api

_THERE_FOR = {**NEEDS, "node-hook": ("vgpu",), "node-events": ("cluster",)}
"""Components without which others have nothing to do."""
OVERLAYS = {
    "base": [],
    **{name: [*_THERE_FOR.get(name, ()), name] for name in COMPONENTS},
    "all": sorted(COMPONENTS, key="vf-network".__eq__),  # its list of capabilities replaces those of others
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


def kustomized(server: Cluster, folder: Path, components: list[str], **more: Any) -> str:
    """The base with some components, and what else a kustomization has, as kubectl builds them."""
    kustomization = more | {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(BASE, folder)],
        "components": [os.path.relpath(COMPONENTS[name], folder) for name in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return server.kubectl("kustomize", str(folder))


FILES = {"Kustomization", "AdmissionConfiguration", "Config"}
"""What the pages show that looks like an object and is a program's file."""
IN_PAGES = [(page, block) for page in all_pages() for block in blocks(page)]
OBJECTS = [
    pytest.param(document, id=f"{name_of(page)}:{block.line}")
    for page, block in IN_PAGES
    for document in documents(block)
    if document["kind"] not in FILES
]
PATCHES = [
    pytest.param(block, id=f"{name_of(page)}:{block.line}")
    for page, block in IN_PAGES
    if block.reported.get("is") == "patches"
]


@pytest.fixture
def spaced(server: Cluster) -> Iterator[Cluster]:
    """The server with the namespaces that the pages name."""
    kubevirt = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kubevirt"}}
    with applied(server, yaml.safe_dump_all([NAMESPACE, kubevirt])):
        yield server


@pytest.mark.parametrize("document", OBJECTS)
def test_an_object_that_a_page_shows_would_be_taken_whole(spaced: Cluster, document: dict[str, Any]) -> None:
    would_be_taken_whole(spaced, [document])


@pytest.mark.parametrize("block", PATCHES)
def test_the_device_plugin_with_the_patches_that_a_page_shows_would_be_taken_whole(
    spaced: Cluster, tmp_path: Path, block: Block
) -> None:
    (tmp_path / "token").write_text("what a Secret is made of\n")
    plain = kustomized(spaced, tmp_path, list(COMPONENTS))
    patched = kustomized(spaced, tmp_path, list(COMPONENTS), **yaml.safe_load(block.text))
    assert patched != plain
    kinds = served(spaced)
    would_be_taken_whole(spaced, [each for each in yaml.safe_load_all(patched) if each["kind"] in kinds])


def would_be_taken_whole(server: Cluster, wanted: list[dict[str, Any]]) -> None:
    """Have the server say what it would store, and compare."""
    given = "\n---\n".join(map(json.dumps, wanted))
    answer = json.loads(
        server.kubectl("apply", "--dry-run=server", "--validate=strict", "--output=json", "-f", "-", given=given)
    )
    stored = {name(each): each for each in answer.get("items", [answer])}
    assert stored.keys() == {name(each) for each in wanted}
    assert [path for each in wanted for path in dropped(each, stored[name(each)])] == []


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
