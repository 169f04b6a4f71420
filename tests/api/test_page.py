"""The component `page`: whose token gets the page of a node, by the API server's own word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from launcherkit_plugin.cluster.token_reviews import AUDIENCE, PAGE_URL
from launcherkit_plugin.model.review import Review
from tests.api.applying import applied
from tests.cluster.test_plugin import NAMESPACE
from tests.plugin.cluster.test_cluster import Daemon, beside, path
from tests.support.apiserver import kubeconfig_of
from tests.support.cluster import Cluster
from tests.support.waiting import until
from tests.test_deploy_plugin import BASE, COMPONENTS

__all__ = ["path"]
pytestmark = pytest.mark.api

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:launcherkit-plugin"
READERS = f"""
apiVersion: v1
kind: ServiceAccount
metadata: {{name: reader, namespace: {NAMESPACE}}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: stranger, namespace: {NAMESPACE}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: page-reader}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: launcherkit-page-reader}}
subjects:
  - {{kind: ServiceAccount, name: reader, namespace: {NAMESPACE}}}
"""


@pytest.fixture(scope="module")
def server(api: Cluster) -> Iterator[Cluster]:
    """The API with the rights of the plugin and of a reader."""
    manifests = [BASE / "namespace.yaml", BASE / "serviceaccount.yaml"]
    manifests += [COMPONENTS["page"] / "rbac.yaml", COMPONENTS["page"] / "reader.yaml"]
    with applied(api, *(path.read_text() for path in manifests), READERS):
        yield api


def token(server: Cluster, account: str, *audience: str) -> str:
    return server.kubectl("create", "token", account, f"--namespace={NAMESPACE}", *audience).strip()


def test_the_readers_token_for_the_page_gets_it_and_no_other(server: Cluster, path: Path) -> None:
    for_the_page = f"--audience={AUDIENCE}"
    tokens = [
        token(server, "reader", for_the_page),
        token(server, "reader"),  # for the API server
        token(server, "stranger", for_the_page),
        token(server, "reader", for_the_page)[:-5] + "AAAAA",
    ]
    found: list[Review] = []

    async def scenario(it: Daemon) -> None:
        found.extend([await it.socket.review_token(each, 60.0) for each in tokens])

    until(
        lambda: server.kubectl("auth", "can-i", "get", PAGE_URL, f"--as=system:serviceaccount:{NAMESPACE}:reader"),
        "the rights hold",
    )
    with server.served_to(f"--as={ACCOUNT}") as url:
        kubeconfig = kubeconfig_of(url)
        kubeconfig["users"] = [{"name": "u", "user": {}}]
        file = path.with_name("kubeconfig")
        file.write_text(yaml.safe_dump(kubeconfig))
        beside(path, file, scenario)
    good, for_the_server, strangers, forged = found
    assert good == Review(True, "")
    assert strangers == Review(False, f"system:serviceaccount:{NAMESPACE}:stranger may not get {PAGE_URL}")
    for refused in (for_the_server, forged):
        assert not refused.allowed
        assert "the token is not good" in refused.why
