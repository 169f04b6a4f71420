"""Device nodes by CDI and in no other way: the container runtime reads the file and puts them in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubelet.conftest import BY_CDI, options
from tests.kubelet.host import CARDS, DEVICES, StandInHost, configuration, nodes_of
from tests.kubelet.node import Node
from tests.kubelet.plugin import Plugin
from tests.kubelet.pods import Pods, Seen, container
from tests.kubelet.test_group_members import allocate
from tests.support.cluster import Cluster

pytestmark = pytest.mark.kubelet


@pytest.fixture
def cdi_folder(cluster: Cluster) -> Path:
    """Where this cluster's runtime looks for CDI files."""
    folder = cluster.environment().get("CLUSTER_CDI_DIR")
    if not folder:
        pytest.skip("this cluster has no runtime with CDI: `cluster env` tells no CLUSTER_CDI_DIR")
    return Path(folder)


@pytest.fixture
def by_cdi(cdi_folder: Path, host: StandInHost, node: Node, tmp_path: Path) -> Iterator[Plugin]:
    """A plugin that gives no device nodes itself; the annotation is for kubelets before 1.28."""
    cdi = {"folder": str(cdi_folder), "only": True, "annotations": True}
    known = configuration(BY_CDI, rescan_seconds=1) | {"cdi": cdi}
    plugin = Plugin(known, tmp_path, *options(host, node.kubelet_dir))
    before = node.written()
    plugin.start()
    try:
        node.wait_healthy({BY_CDI: DEVICES[BY_CDI]}, since=before)
        yield plugin
    finally:
        assert plugin.end() == 0


def test_a_container_gets_its_nodes_by_cdi_alone_and_can_open_them(
    by_cdi: Plugin, cdi_folder: Path, node: Node, pods: Pods
) -> None:
    cards = {card.gpu: card for card in CARDS[BY_CDI]}
    name = pods.run("by-cdi", container("compute", BY_CDI=1), scheduled=False)

    seen = pods.look(name, "compute")

    (given,) = seen.env.values()
    assert seen == Seen({"PCI_RESOURCE_GPUS_TEST_BY_CDI": given}, nodes_of(cards[given].group))
    opened = pods.shell(name, "compute", f": > /dev/vfio/{cards[given].group}")
    assert "No such device or address" in opened, "the stand-in has no driver, but may be opened"
    (spec,) = cdi_folder.glob("launcherkit.io-vfio-*.json")
    assert given in {device["name"] for device in json.loads(spec.read_text())["devices"]}
    (other,) = cards.keys() - {given}
    (answer,) = allocate(node, BY_CDI, other).container_responses
    assert list(answer.devices) == []
    assert [device.name for device in answer.cdi_devices] == [f"launcherkit.io/vfio={other}"]
