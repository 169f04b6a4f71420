"""launcherkit's own plugin in the lab as its DaemonSet has it: from its image, with its mounts and its rights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcherkit_lab.conformance.device_plugin import DEVICE_PLUGIN
from launcherkit_lab.conformance.dra import DRA
from launcherkit_lab.session import Session
from tests.kernel.lab.asked import run
from tests.kernel.lab.beside_api import NODE
from tests.kernel.pod.manifests import component, merged, plugin
from tests.support.images import archived
from tests.support.pages import ROOT
from tests.tiers import IMAGES

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(IMAGES.missing()), reason=f"images can't be built here: {IMAGES.how_to_get()}"),
]

RULE = {"select": [{"models": ["10de:2204", "1b36:0005"]}]}
LAB = [sys.executable, "-m", "launcherkit_lab"]
SLOW = ["--patience", "300", "--health-seconds", "120"]


def written(place: Path, config: dict[str, Any], *components: str) -> list[str]:
    """The options for the plugin's manifests and its image, which are put where the machine sees them."""
    documents, daemon_set = plugin()
    for document in documents:
        if document["kind"] == "ConfigMap" and "plugin.yaml" in document["data"]:
            document["data"]["plugin.yaml"] = json.dumps(config)
    for name in components:
        daemon_set = merged(daemon_set, component(name))
    (place / "plugin.yaml").write_text(yaml.safe_dump_all([*documents, daemon_set]))
    image = archived("plugin", place)
    return ["--manifest", "/run/machine/plugin.yaml", "--image", f"/run/machine/{image.name}"]


def passed(out: str) -> list[str]:
    """The numbers of the expectations that are met."""
    return [line.split()[0] for line in out.splitlines() if " passed " in line]


def test_launcherkits_own_plugin_is_conformant_from_its_image(session: Session) -> None:
    words = ["--resource", "example.com/GPU", "--select", "10de:2204", "--select", "1b36:0005"]
    words += ["--pods", "6", "--kills", "1", *SLOW]
    driver = written(session.folder, {"resources": [{"name": "example.com/GPU", **RULE}]})
    code, out, errors = run(session, *LAB, "check", *words, *driver)
    assert code == 0, out + errors
    assert passed(out) == [one.number for one in DEVICE_PLUGIN], out


def test_launcherkits_own_dra_driver_is_conformant_from_its_image_in_two_containers(session: Session) -> None:
    """The one with devices has no token; the other one asks the API server."""
    rule = {"name": "example.com/GPU", **RULE, "dra": True}
    driver = written(session.folder, {"resources": [rule], "dra": {}, "rescanSeconds": 1}, "cluster", "dra")
    place = [
        "--kubeconfig",
        "/run/machine/kubeconfig",
        "--node",
        NODE,
        "--namespace",
        "vms",
        "--cdi-dir",
        "/var/run/cdi",
    ]
    api = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.kernel.lab.beside_api", "/run/machine"]
    code, out, errors = run(session, *api, *LAB, "check-dra", *place, *SLOW, *driver)
    assert code == 0, out + errors
    assert passed(out) == [one.number for one in DRA], out
