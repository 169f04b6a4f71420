"""The Helm chart is made of the manifests, and so is the overlay that installs all."""

from __future__ import annotations

import yaml

from deploy.chart import CHART, chart, components
from deploy.render import DEPLOY
from launcherkit import __version__


def test_the_chart_is_what_the_manifests_give() -> None:
    found = {str(path.relative_to(CHART)): path.read_text() for path in CHART.rglob("*") if path.is_file()}
    assert found == chart(components()), "run `.venv/bin/python -m deploy.chart`"


def test_the_chart_switches_on_what_the_overlay_has() -> None:
    overlay = yaml.safe_load((DEPLOY / "all" / "kustomization.yaml").read_text())
    switched = yaml.safe_load(chart(components())["values.yaml"])["components"]
    assert sorted(path.rpartition("/")[2] for path in overlay["components"]) == [
        "cluster",
        "metrics",
        "node-events",
    ]
    assert [name for name, on in switched.items() if on] == ["cluster", "metrics", "nodeEvents"]


def test_the_overlay_sets_the_image_in_one_place() -> None:
    (image,) = yaml.safe_load((DEPLOY / "all" / "kustomization.yaml").read_text())["images"]
    assert image == {
        "name": "registry.example/launcherkit-plugin",
        "newName": "registry.example/launcherkit-plugin",
        "newTag": __version__,
    }
