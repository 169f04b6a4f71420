"""What the component `dra` keeps the plugin's tokens from, though RBAC would let them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.applying import applied
from tests.api.dra import ACCOUNT, AS_PLUGIN, DRIVER, NODE, REFUSAL, allocated, claim, refusal, server, slice_of
from tests.support.cluster import Cluster, Refused

__all__ = ["claim", "server"]

pytestmark = pytest.mark.api


def test_a_token_publishes_slices_of_its_node_and_driver_alone(server: Cluster) -> None:
    assert refusal(server, slice_of(NODE)) == ""
    assert REFUSAL in refusal(server, slice_of("node-2"))
    assert "of its own driver alone" in refusal(server, slice_of(NODE, "gpu.nvidia.com"))
    assert REFUSAL in refusal(server, slice_of(NODE), f"--as={ACCOUNT}"), "a token that names no node"
    assert refusal(server, slice_of("node-2"), "--as=admin", "--as-group=system:masters") == "", "others may"


def test_a_token_takes_away_no_slice_of_another_node(server: Cluster) -> None:
    with applied(server, json.dumps(slice_of("node-2"))), pytest.raises(Refused, match=REFUSAL):
        server.kubectl("delete", "resourceslice", "0-made-by-hand", *AS_PLUGIN)


def said(server: Cluster, status: dict[str, Any], manager: str = "launcherkit-plugin") -> str:
    """What the server says against a change of the claim's status by the plugin's token; nothing where it takes it."""
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    body = {**head, "metadata": {"name": "gpu", "namespace": "default"}, "status": status}
    change = ("apply", "--server-side", "--force-conflicts", f"--field-manager={manager}", "--subresource=status")
    try:
        server.kubectl(*change, "--validate=false", "-f", "-", *AS_PLUGIN, given=json.dumps(body))
    except Refused as problem:
        return str(problem)
    return ""


def test_a_token_says_of_a_claim_what_has_become_of_its_own_devices_and_allocates_none(
    server: Cluster, claim: dict[str, Any]
) -> None:
    server.kubectl("apply", "-f", "-", given=GETTER)  # kubectl gets what it changes; the plugin does not
    ours = {"driver": DRIVER, "pool": NODE, "device": "pci-0000-e1-00-0"}
    assert said(server, {"devices": [ours]}) == ""
    assert "of its own driver alone" in said(server, {"devices": [{**ours, "driver": "gpu.nvidia.com"}]})
    reserved = [{"resource": "pods", "name": "a", "uid": "b"}]
    assert "allocates none" in said(server, {"reservedFor": reserved})
    server.kubectl("delete", "resourceclaim", "gpu")
    server.kubectl("create", "-f", "-", given=json.dumps({**claim, "metadata": {"name": "gpu"}, "status": {}}))
    allocated(server, "gpu", "node-2")
    assert "of its own node alone" in said(server, {"devices": [{**ours, "pool": "node-2"}]})
    server.kubectl("delete", "-f", "-", given=GETTER)


GETTER = json.dumps(
    {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {"name": "kubectl-gets-claims"},
                "rules": [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["get"]}],
            },
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "kubectl-gets-claims"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "kubectl-gets-claims",
                },
                "subjects": [{"kind": "User", "name": ACCOUNT, "apiGroup": "rbac.authorization.k8s.io"}],
            },
        ],
    }
)
