"""Device nodes by CDI and in no other way: the container runtime reads the file and puts them in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.kubelet.conftest import BY_CDI, options
from tests.kubelet.host import CARDS, DEVICES, VENDORS, VENDORS_UUID, StandInHost, configuration, nodes_of
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


NAME, KIND = "gpus.test/VENDORS", "gpus.test/vendor"


def giving(host: StandInHost, node: Node, cdi_folder: Path, folder: Path, **container: str) -> Plugin:
    """A plugin that gives the card with NVIDIA's driver to containers."""
    rule = {"name": NAME, "select": [{"addresses": [VENDORS]}], "use": "container", "container": container}
    cdi = {"folder": str(cdi_folder), "annotations": True}
    folder.mkdir()
    return Plugin({"rescanSeconds": 1, "resources": [rule], "cdi": cdi}, folder, *options(host, node.kubelet_dir))


def test_a_container_keeps_the_card_of_the_vendors_cdi_file_when_cards_are_given_by_nodes(
    host: StandInHost, node: Node, pods: Pods, cdi_folder: Path, tmp_path: Path
) -> None:
    """K10: the card's ID was its UUID, and is its address then."""
    nodes = [{"path": "/dev/vendor0", "hostPath": str(host.root / "dev/nvidia0")}]
    device = {"name": VENDORS_UUID, "containerEdits": {"deviceNodes": nodes, "env": ["VENDOR=here"]}}
    spec = cdi_folder / "vendor.json"
    spec.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": KIND, "devices": [device]}))
    first = giving(host, node, cdi_folder, tmp_path / "first", by="cdi", cdiKind=KIND)
    second = giving(host, node, cdi_folder, tmp_path / "second", by="nodes")
    try:
        own_pod = pods.own_pod()
        first.start(env=own_pod)
        node.wait_healthy({NAME: {VENDORS_UUID}})
        pods.run("vendors", container("compute", VENDORS=1), scheduled=False)
        assert pods.shell("vendors", "compute", "ls /dev/vendor0; echo $VENDOR").split() == ["/dev/vendor0", "here"]

        assert first.end() == 0
        second.start(env=own_pod)
        node.wait_healthy({NAME: set()})
        with pytest.raises(grpc.RpcError, match=f"{VENDORS} .*a pod has it as {NAME}"):
            allocate(node, NAME, VENDORS)

        pods.delete("vendors")
        node.wait_healthy({NAME: {VENDORS}})
        pods.run("by-nodes", container("compute", VENDORS=1), scheduled=False)
        assert "nvidia0" in (there := pods.shell("by-nodes", "compute", "ls /dev").split())
        assert "vendor0" not in there
    finally:
        spec.unlink()
        for plugin in (first, second):
            assert not plugin.running or plugin.end() == 0
