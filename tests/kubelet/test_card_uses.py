"""One card for containers, VMs and Kata in turn (K10): kubelet and pods are real, the card and its drivers emulated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubelet.conftest import options
from tests.kubelet.host import CONTAINER_NODE, GROUP_MAJOR, HOST_DRIVER, SWITCHED, SWITCHED_GROUP, StandInHost
from tests.kubelet.node import Node
from tests.kubelet.plugin import Plugin
from tests.kubelet.pods import Pods, container
from tests.support.cluster import Cluster

pytestmark = pytest.mark.kubelet

NAMES = {"vm": "gpus.test/SWITCHED", "container": "gpus.test/SWITCHED-container", "kata": "gpus.test/SWITCHED-kata"}


@pytest.fixture
def plugin(cluster: Cluster, host: StandInHost, node: Node, pods: Pods, tmp_path: Path) -> Iterator[Plugin]:
    rule = {"select": [{"addresses": [SWITCHED]}], "use": "any", "names": NAMES, "bind": "on-demand"}
    cdi = {"folder": cluster.environment().get("CLUSTER_CDI_DIR") or str(tmp_path)}
    known = {"rescanSeconds": 1, "resources": [rule], "cdi": cdi}
    plugin = Plugin(known, tmp_path, *options(host, node.kubelet_dir), module="tests.kubelet.emulated")
    plugin.start(env=pods.own_pod())
    try:
        yield plugin
    finally:
        assert plugin.end() == 0


def test_a_container_a_vm_and_kata_get_one_card_in_turn(
    plugin: Plugin, host: StandInHost, node: Node, pods: Pods
) -> None:
    group = f"/dev/vfio/{SWITCHED_GROUP}"
    passed = {"/dev/vfio/vfio": CONTAINER_NODE, group: (GROUP_MAJOR, SWITCHED_GROUP)}
    for number, use in enumerate(("container", "vm", "kata", "container")):
        node.wait_healthy({name: {SWITCHED} for name in NAMES.values()})
        resource = NAMES[use].partition("/")[2]
        name = pods.run(f"{use}-{number}", container("compute", **{resource: 1}), scheduled=False)

        seen, screen = pods.look(name, "compute"), pods.shell(name, "compute", "ls /dev/dri")

        driver = (host.path(SWITCHED) / "driver").resolve().name
        if use == "container":
            assert (driver, seen.nodes, screen.split()) == (HOST_DRIVER, {}, ["card1"])
        else:
            assert (driver, seen.nodes) == ("vfio-pci", passed)
        assert list(seen.env.values()) == ([SWITCHED] if use == "vm" else [])
        node.wait_healthy({name: {SWITCHED} if other == use else set() for other, name in NAMES.items()})
        pods.delete(name)
