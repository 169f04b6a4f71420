"""launcherkit's own plugin in the lab as its DaemonSet has it: from its image, with its mounts and its rights."""

from __future__ import annotations

import sys

import pytest
import yaml

from launcherkit_lab.conformance.device_plugin import DEVICE_PLUGIN
from launcherkit_lab.session import Session
from tests.kernel.lab.asked import run
from tests.kernel.pod.manifests import plugin
from tests.support.images import archived
from tests.tiers import IMAGES

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(IMAGES.missing()), reason=f"images can't be built here: {IMAGES.how_to_get()}"),
]

CONFIG = """\
resources:
  - name: example.com/GPU
    select: [{models: ["10de:2204", "1b36:0005"]}]
"""


def test_launcherkits_own_plugin_is_conformant_from_its_image(session: Session) -> None:
    place = session.folder
    documents, daemon_set = plugin()
    for document in documents:
        if document["kind"] == "ConfigMap" and "plugin.yaml" in document["data"]:
            document["data"]["plugin.yaml"] = CONFIG
    (place / "plugin.yaml").write_text(yaml.safe_dump_all([*documents, daemon_set]))
    image = archived("plugin", place)
    words = ["--resource", "example.com/GPU", "--select", "10de:2204", "--patience", "300", "--health-seconds", "120"]
    words += ["--select", "1b36:0005", "--pods", "6", "--kills", "1"]
    driver = ["--manifest", "/run/machine/plugin.yaml", "--image", f"/run/machine/{image.name}"]
    lab = [sys.executable, "-m", "launcherkit_lab"]
    code, out, errors = run(session, *lab, "check", *words, *driver)
    assert code == 0, out + errors
    assert [line.split()[0] for line in out.splitlines() if " passed " in line] == [
        one.number for one in DEVICE_PLUGIN
    ], out
