"""The component `node-record`: a token of the device plugin writes the record of its own node alone."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from launcherkit_plugin.cluster.requests import RECORD_NAME
from tests.api.applying import applied
from tests.api.test_events import ACCOUNT, NODE_NAME
from tests.cluster.test_plugin import NAMESPACE
from tests.support.cluster import Cluster, Refused
from tests.support.waiting import until
from tests.test_deploy_plugin import BASE, COMPONENTS

pytestmark = pytest.mark.api

REFUSAL = "the plugin publishes the record of its own node alone"


def write(server: Cluster, name: str, text: str = "a", *, node: str = "node-1") -> str:
    """By server-side apply, as the cluster's process does; what the server says against it, or nothing."""
    metadata = {"name": name, "namespace": NAMESPACE}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"record": text}}
    who = (f"--as={ACCOUNT}", *([f"--as-user-extra={NODE_NAME}={node}"] if node else []))
    try:
        server.kubectl("apply", "--server-side", "--validate=false", "-f", "-", *who, given=json.dumps(body))
    except Refused as problem:
        return str(problem)
    return ""


@pytest.fixture(scope="module")
def server(api: Cluster) -> Iterator[Cluster]:
    """The API with the plugin's rights and the policy, once it acts."""
    manifests = [BASE / "namespace.yaml", BASE / "serviceaccount.yaml"]
    manifests += [COMPONENTS["node-record"] / name for name in ("rbac.yaml", "policy.yaml")]
    with applied(api, *(path.read_text() for path in manifests)):
        until(lambda: REFUSAL in write(api, "other"), "the policy act")
        yield api


def test_a_token_writes_the_record_of_its_node_and_writes_it_again(server: Cluster) -> None:
    assert write(server, f"{RECORD_NAME}node-1") == ""
    assert write(server, f"{RECORD_NAME}node-1", "b") == ""
    found = json.loads(server.kubectl("get", "configmap", f"{RECORD_NAME}node-1", "-n", NAMESPACE, "-o", "json"))
    assert found["data"] == {"record": "b"}


def test_it_writes_that_of_no_other_node_and_no_other_configmap(server: Cluster) -> None:
    assert REFUSAL in write(server, f"{RECORD_NAME}node-2")
    assert REFUSAL in write(server, "launcherkit-plugin")
    assert REFUSAL in write(server, f"{RECORD_NAME}node-1", node="")


def test_it_can_neither_read_nor_delete_configmaps(server: Cluster) -> None:
    who = (f"--as={ACCOUNT}", f"--as-user-extra={NODE_NAME}=node-1")
    for command in (("get",), ("delete",)):
        with pytest.raises(Refused, match="forbidden"):
            server.kubectl(*command, "configmap", f"{RECORD_NAME}node-1", "-n", NAMESPACE, *who)
