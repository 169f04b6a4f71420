"""The Helm chart is made of the manifests, and so is the overlay that installs all."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from deploy.chart import CHART, chart, components
from deploy.chart_values import schema_of
from deploy.render import DEPLOY
from launcherkit import __version__
from tests.test_deploy import objects

FILES = chart(components())
VALUES: dict[str, Any] = yaml.safe_load(FILES["values.yaml"])
SCHEMA: dict[str, Any] = json.loads(FILES["values.schema.json"])


def test_the_chart_is_what_the_manifests_give() -> None:
    found = {str(path.relative_to(CHART)): path.read_text() for path in CHART.rglob("*") if path.is_file()}
    assert found == FILES, "run `.venv/bin/python -m deploy.chart`"


def test_the_chart_switches_on_what_the_overlay_has() -> None:
    overlay = yaml.safe_load((DEPLOY / "all" / "kustomization.yaml").read_text())
    assert sorted(path.rpartition("/")[2] for path in overlay["components"]) == [
        "cluster",
        "metrics",
        "node-events",
    ]
    assert [name for name, on in VALUES["components"].items() if on] == ["cluster", "metrics", "nodeEvents"]


def test_the_overlay_sets_the_image_in_one_place() -> None:
    (image,) = yaml.safe_load((DEPLOY / "all" / "kustomization.yaml").read_text())["images"]
    assert image == {
        "name": "registry.example/launcherkit-plugin",
        "newName": "registry.example/launcherkit-plugin",
        "newTag": __version__,
    }


def paths(values: dict[str, Any], schema: dict[str, Any], above: str = "") -> Iterator[str]:
    """The values of the chart, down to those that are given whole."""
    for name, value in values.items():
        inner = schema["properties"][name]
        if "default" in inner or not isinstance(value, dict):
            yield f"{above}{name}"
        else:
            yield from paths(value, inner, f"{above}{name}.")


def test_every_value_is_used_and_every_value_that_is_used_is_there() -> None:
    text = "".join(text for name, text in FILES.items() if name.startswith("templates/"))
    used = set(re.findall(r"\.Values\.([\w.]+)", text))
    there = set(paths(VALUES, SCHEMA))
    assert {path for path in there if not any(f"{each}.".startswith(f"{path}.") for each in used)} == set()
    assert {path for path in used if not any(f"{path}.".startswith(f"{each}.") for each in there)} == set()


def test_every_value_is_in_the_readme_with_its_default() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| .* \| (.+) \|$", FILES["README.md"], flags=re.MULTILINE)
    assert [path for path, _ in rows] == list(paths(VALUES, SCHEMA))
    assert dict(rows)["components.metrics"] == "`true`"


def test_no_object_takes_a_key_that_it_does_not_know() -> None:
    schemas = [each for each in objects(SCHEMA) if "object" in each.get("type", ())]
    assert [each for each in schemas if each.get("properties") and each["additionalProperties"]] == []
    assert SCHEMA["additionalProperties"] is False


def test_a_reference_is_what_it_refers_to_with_what_stands_beside_it() -> None:
    declaration = {
        "properties": {"components": {}, "a": {"$ref": "#/definitions/b", "description": "A b."}},
        "definitions": {"b": {"properties": {"c": {"type": "string"}}}},
    }
    schema = schema_of(declaration, {}, {"a": {"c": "d"}})
    assert schema["properties"]["a"] == {
        "type": "object",
        "additionalProperties": False,
        "properties": {"c": {"type": "string"}},
        "description": "A b.",
        "default": {"c": "d"},
    }


def test_what_a_component_is_for_is_said_where_its_manifests_say_it() -> None:
    described = SCHEMA["properties"]["components"]["properties"]
    assert described["cdi"]["description"] == (
        "CDI files beside the device nodes; the configuration has to say `cdi:` too."
    )
    assert all(each["description"] for each in described.values())


def test_what_helm_shows_of_the_chart_is_all_there() -> None:
    about = yaml.safe_load(FILES["Chart.yaml"])
    assert (about["version"], about["appVersion"]) == (__version__, __version__)
    assert {
        "apiVersion",
        "annotations",
        "description",
        "icon",
        "keywords",
        "kubeVersion",
        "name",
        "type",
    } < about.keys()
    kind, _, data = about["icon"].partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert ElementTree.fromstring(base64.b64decode(data)).tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize("word", ["namespace: launcherkit", '"launcherkit"', "serviceaccount:launcherkit"])
def test_no_template_has_a_namespace_of_its_own(word: str) -> None:
    assert [name for name, text in FILES.items() if name.startswith("templates/") and word in text] == []
