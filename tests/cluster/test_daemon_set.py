"""Which nodes the device plugin's DaemonSet runs on: a cluster's own controller says so. No image of it is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.support.cluster import Cluster
from tests.support.waiting import until
from tests.test_deploy_plugin import BASE

pytestmark = pytest.mark.cluster

LABEL = "nvidia.com/gpu.workload.config"


@pytest.fixture
def daemon_set(cluster: Cluster) -> Iterator[dict[str, Any]]:
    """The DaemonSet of the base, in a namespace of its own."""
    documents = [yaml.safe_load((BASE / f"{name}.yaml").read_text()) for name in ("namespace", "serviceaccount")]
    made = yaml.safe_load((BASE / "daemonset.yaml").read_text())
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*documents, made]})
    try:
        cluster.kubectl("apply", "-f", "-", given=given)
        yield made
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", given=given)


@pytest.fixture
def node(cluster: Cluster) -> Iterator[str]:
    """The name of a node, without the labels of this test."""
    (name, *_) = [each["metadata"]["name"] for each in cluster.get("nodes")["items"]]
    try:
        yield name
    finally:
        cluster.kubectl("label", "node", name, f"{LABEL}-")


def test_it_runs_on_a_node_that_nothing_has_labelled_and_not_where_gpus_are_for_containers(
    cluster: Cluster, daemon_set: dict[str, Any], node: str
) -> None:
    labels = cluster.get("node", node)["metadata"]["labels"]
    assert not [label for label in labels if label.startswith(("feature.node.kubernetes.io/", LABEL))]
    count = len(cluster.get("nodes")["items"])
    until(lambda: desired(cluster, daemon_set) == count, "a pod for every node")
    cluster.kubectl("label", "node", node, f"{LABEL}=container")
    until(lambda: desired(cluster, daemon_set) == count - 1, "no pod for this node")


def desired(cluster: Cluster, daemon_set: dict[str, Any]) -> int:
    """How many nodes the controller has found for the DaemonSet; -1 as long as it hasn't looked."""
    metadata = daemon_set["metadata"]
    status = cluster.get("daemonset", metadata["name"], f"--namespace={metadata['namespace']}")["status"]
    return int(status["desiredNumberScheduled"]) if "observedGeneration" in status else -1
