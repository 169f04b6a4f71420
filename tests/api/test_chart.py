"""The Helm chart gives what kustomize gives, whichever components are switched on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.chart import CHART, NEEDS, switch
from tests.api.test_manifests import OVERLAYS, kustomized
from tests.support.cluster import Cluster
from tests.test_deploy_plugin import COMPONENTS

helm = pytest.importorskip("helm_python", reason="Helm's library isn't here: `./dev test api` installs it")
pytestmark = pytest.mark.api


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_chart_gives_what_kustomize_builds(api: Cluster, tmp_path: Path, overlay: str) -> None:
    components = OVERLAYS[overlay]
    built = list(yaml.safe_load_all(kustomized(api, tmp_path, components)))
    with helm.Chart.load(str(CHART)) as chart:
        switches = {switch(name): name in components for name in COMPONENTS}
        rendered = chart.render({"components": switches}, name="plugin", namespace="default")
    documents = [document for text in rendered.values() for document in yaml.safe_load_all(text) if document]
    assert in_order(documents) == in_order(built)


@pytest.mark.parametrize(("name", "other"), [(name, other) for name, others in NEEDS.items() for other in others])
def test_a_component_without_one_that_it_changes_is_refused_by_name(name: str, other: str) -> None:
    switches = {switch(each): each == name or (each in NEEDS[name] and each != other) for each in COMPONENTS}
    with (
        helm.Chart.load(str(CHART)) as chart,
        pytest.raises(Exception, match=f"{switch(name)} needs .*{switch(other)}"),
    ):
        chart.render({"components": switches}, name="plugin", namespace="default")


def in_order(value: Any) -> Any:
    """Lists in an order of their own: kustomize puts a patch's items first, the chart last."""
    if isinstance(value, dict):
        return {key: in_order(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((in_order(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return value
