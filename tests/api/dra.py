"""The component `dra` on an API server: its rights and policies, a node, and a claim of that node's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from launcherkit_plugin.model.config import DRA_DRIVER
from tests.api.applying import applied
from tests.cluster.test_plugin import NAMESPACE
from tests.support.cluster import Cluster, Refused
from tests.support.waiting import until
from tests.test_deploy_plugin import BASE, COMPONENTS

DRIVER = DRA_DRIVER
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:launcherkit-plugin"
NODE = "node-1.of-a-cluster-whose-names-are-long-enough-that-the-server-cuts-the-slices"
NODE_NAME = "authentication.kubernetes.io/node-name"
AS_PLUGIN = (f"--as={ACCOUNT}", f"--as-user-extra={NODE_NAME}={NODE}")
REFUSAL = "the plugin publishes devices of its own node alone"


CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "gpu", "namespace": "default"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.launcherkit.io"}}]}},
}
"""For one GPU."""


@pytest.fixture(scope="module")
def server(api: Cluster) -> Iterator[Cluster]:
    """The API with the plugin's rights, policies and classes, once they act; with a node, and a claim of it."""
    manifests = [BASE / "namespace.yaml", BASE / "serviceaccount.yaml", COMPONENTS["cluster"] / "rbac.yaml"]
    manifests += [COMPONENTS["dra"] / f"{name}.yaml" for name in ("rbac", "policy", "deviceclasses")]
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    with applied(api, json.dumps(node), *(path.read_text() for path in manifests)):
        until(lambda: REFUSAL in refusal(api, slice_of("elsewhere")), "the policy act")
        yield api
        api.kubectl("delete", "resourceslices", "--all")


@pytest.fixture
def claim(server: Cluster) -> Iterator[dict[str, Any]]:
    """A claim that has a device of the node."""
    with applied(server, json.dumps(CLAIM)):
        yield allocated(server, "gpu", NODE)


def allocated(server: Cluster, name: str, pool: str, **more: Any) -> dict[str, Any]:
    """A claim with an allocation, as the scheduler writes it."""
    results = [{"request": "gpu", "driver": DRIVER, "pool": pool, "device": "pci-0000-e1-00-0", **more}]
    change = json.dumps({"status": {"allocation": {"devices": {"results": results}}}})
    server.kubectl("patch", "resourceclaim", name, "--subresource=status", "--type=merge", "-p", change)
    return server.get("resourceclaim", name)


def slice_of(node: str, driver: str = DRIVER, name: str = "0-made-by-hand") -> dict[str, Any]:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "a"}]},
    }


def refusal(server: Cluster, body: dict[str, Any], *as_whom: str) -> str:
    """What the server says against a new slice; nothing where it takes it."""
    try:
        # kubectl would ask for the schemas first, which the account may not read here.
        server.kubectl("create", "--validate=false", "-f", "-", *(as_whom or AS_PLUGIN), given=json.dumps(body))
    except Refused as problem:
        return str(problem)
    server.kubectl("delete", "resourceslice", body["metadata"]["name"])
    return ""
