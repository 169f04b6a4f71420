"""The page of a node with a real kubelet: it names who has a device once the kubelet does."""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.kubelet.conftest import STALE, free_port, options
from tests.kubelet.host import DEVICES, StandInHost, configuration
from tests.kubelet.node import Node
from tests.kubelet.plugin import Plugin
from tests.kubelet.pods import Pods, container
from tests.support.waiting import until

pytestmark = pytest.mark.kubelet


def test_a_pod_has_its_name_on_the_page_before_the_next_look(
    host: StandInHost, node: Node, pods: Pods, tmp_path: Path
) -> None:
    """That is an hour away: the kubelet's checkpoint says that there is something to ask for."""
    where = f"127.0.0.1:{free_port()}"
    given = (*options(host, node.kubelet_dir), "--metrics-address", where)
    plugin = Plugin(configuration(STALE, rescan_seconds=3600), tmp_path, *given)

    def page() -> str:
        with urlopen(f"http://{where}/") as answer:
            text: str = answer.read().decode()
        return text

    before = node.written()
    plugin.start()
    try:
        node.wait_healthy({STALE: DEVICES[STALE]}, since=before)
        assert "Nobody holds anything." in page()
        name = pods.run("named", container("compute", STALE=1), scheduled=False)
        until(lambda: f"default/{name}" in page(), "its name", page)
    finally:
        assert plugin.end() == 0
