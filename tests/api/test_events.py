"""The component `node-events`: a token of the device plugin posts Events on its own node alone."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.api.applying import applied
from tests.cluster.test_plugin import NAMESPACE
from tests.support.cluster import Cluster, Refused
from tests.support.waiting import until
from tests.test_deploy_plugin import BASE, COMPONENTS

pytestmark = pytest.mark.api

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:launcherkit-plugin"
NODE_NAME = "authentication.kubernetes.io/node-name"
"""What Kubernetes 1.32 and later says of a pod's token."""
REFUSAL = "the device plugin tells of its own node alone"


def event(node: str, kind: str = "Node") -> str:
    about = {"apiVersion": "v1", "kind": kind, "name": node, "uid": node}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": "device-", "namespace": "default"},
            "involvedObject": about if kind == "Node" else about | {"namespace": "default"},
            "type": "Warning",
            "reason": "DeviceUnhealthy",
            "message": "it fell off the bus",
        }
    )


def tell(server: Cluster, what: str, *as_whom: str) -> str:
    """Post an Event, as the plugin's account where nobody else is named."""
    who = as_whom or (f"--as={ACCOUNT}", f"--as-user-extra={NODE_NAME}=node-1")
    # kubectl would ask for the schemas first, which the account may not read here.
    return server.kubectl("create", "--validate=false", "--output=name", "-f", "-", *who, given=what)


@pytest.fixture(scope="module")
def server(api: Cluster) -> Iterator[Cluster]:
    """The API with the plugin's rights and the policy, once it acts."""
    manifests = [BASE / "namespace.yaml", BASE / "serviceaccount.yaml", COMPONENTS["cluster"] / "rbac.yaml"]
    with applied(api, *(path.read_text() for path in [*manifests, COMPONENTS["node-events"] / "policy.yaml"])):
        until(lambda: REFUSAL in refusal(api, event("node-2")), "the policy act")
        yield api
        api.kubectl("delete", "events", "--all", "--namespace=default")


def refusal(server: Cluster, what: str, *as_whom: str) -> str:
    """What the server says against an Event; nothing where it takes it."""
    try:
        tell(server, what, *as_whom)
    except Refused as problem:
        return str(problem)
    return ""


def test_a_token_of_a_node_tells_of_that_node(server: Cluster) -> None:
    assert tell(server, event("node-1")).startswith("event/device-")


def test_it_tells_of_no_other_node(server: Cluster) -> None:
    assert REFUSAL in refusal(server, event("node-2"))


def test_it_tells_of_nothing_but_nodes(server: Cluster) -> None:
    assert REFUSAL in refusal(server, event("node-1", "Pod"))


def test_a_token_that_names_no_node_tells_of_none(server: Cluster) -> None:
    assert REFUSAL in refusal(server, event("node-1"), f"--as={ACCOUNT}")


def test_an_event_on_its_node_is_not_made_one_on_another(server: Cluster) -> None:
    reported = json.loads(event("node-1"))
    reported["metadata"] = {"name": "device-turned", "namespace": "default"}
    change = ("apply", "--server-side", "--force-conflicts", "--validate=false", "-f", "-")
    who = (f"--as={ACCOUNT}", f"--as-user-extra={NODE_NAME}=node-1")
    server.kubectl(*change, *who, given=json.dumps(reported))
    reported["involvedObject"]["name"] = "node-2"
    with pytest.raises(Refused, match=REFUSAL):
        server.kubectl(*change, *who, given=json.dumps(reported))


def test_others_tell_of_what_they_like(server: Cluster) -> None:
    assert tell(server, event("node-2"), "--as=admin", "--as-group=system:masters").startswith("event/device-")
