"""The quotas of docs/how-to/quota.md: what a real API server counts, and what it refuses.

Claims are counted by Kubernetes 1.34 and later, which no cluster here is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.support.cluster import Cluster, Refused
from tests.support.pages import ROOT, blocks
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

PAGE = ROOT / "docs/how-to/quota.md"
QUOTA = next(yaml.safe_load(each.text) for each in blocks(PAGE) if each.reported.get("file") == "quota.yaml")
COUNTED = "requests.nvidia.com/GA102_GEFORCE_RTX_3090"
TEAM = "quota-team"


@pytest.fixture
def team(cluster: Cluster) -> Iterator[Cluster]:
    """A namespace with the page's quota, once the server counts."""
    try:
        cluster.kubectl("create", "namespace", TEAM)
        until(lambda: "default" in cluster.kubectl("get", "serviceaccounts", "-n", TEAM), "pods be let in")
        cluster.kubectl("-n", TEAM, "apply", "-f", "-", given=json.dumps(QUOTA))
        until(lambda: "used" in counted(cluster), "the quota be counted")
        yield cluster
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "--wait=false", "namespace", TEAM)


def counted(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.get("resourcequota", QUOTA["metadata"]["name"], "-n", TEAM)["status"]
    return found


def create(cluster: Cluster, name: str, resource: str, count: int) -> None:
    """A pod that asks for devices which no node has: it waits."""
    wants = {"name": "it", "image": "registry.example/it:1", "resources": {"limits": {resource: str(count)}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [wants]}}
    cluster.kubectl("-n", TEAM, "create", "-f", "-", given=json.dumps(pod))


def test_a_pod_beyond_the_quota_is_refused_and_one_of_another_name_is_not(team: Cluster) -> None:
    create(team, "one", "nvidia.com/GA102_GEFORCE_RTX_3090", 1)
    with pytest.raises(
        Refused, match=f"exceeded quota: gpus, requested: {COUNTED}=2, used: {COUNTED}=1, limited: {COUNTED}=2"
    ):
        create(team, "two", "nvidia.com/GA102_GEFORCE_RTX_3090", 2)
    create(team, "other", "nvidia.com/gpu", 8)
    create(team, "last", "nvidia.com/GA102_GEFORCE_RTX_3090", 1)
    assert counted(team)["used"] == {COUNTED: "2"}
    team.kubectl("-n", TEAM, "delete", "pod", "one", "--grace-period=0", "--force")
    until(lambda: counted(team)["used"] == {COUNTED: "1"}, "a pod that is gone not be counted")
