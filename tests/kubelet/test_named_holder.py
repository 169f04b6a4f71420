"""The page of a node with a real kubelet: it names who has a device once the kubelet does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kubelet.conftest import STALE, options
from tests.kubelet.host import DEVICES, StandInHost, configuration
from tests.kubelet.node import Node
from tests.kubelet.plugin import Plugin
from tests.kubelet.pods import Pods, container
from tests.support.waiting import until
from tests.support.webprocess import WebProcess

pytestmark = pytest.mark.kubelet


def test_a_pod_has_its_name_on_the_page_before_the_next_look(
    host: StandInHost, node: Node, pods: Pods, tmp_path: Path
) -> None:
    """That is an hour away: the kubelet's checkpoint says that there is something to ask for."""
    path = tmp_path / "w.sock"
    given = (*options(host, node.kubelet_dir), "--web-socket", str(path))
    plugin = Plugin(configuration(STALE, rescan_seconds=3600), tmp_path, *given)

    before = node.written()
    plugin.start()
    try:
        with WebProcess(path) as site:
            node.wait_healthy({STALE: DEVICES[STALE]}, since=before)
            assert "Nobody holds anything." in site.text()
            name = pods.run("named", container("compute", STALE=1), scheduled=False)
            until(lambda: f"default/{name}" in site.text(), "its name", site.text)
    finally:
        assert plugin.end() == 0
