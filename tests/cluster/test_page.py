"""The component `page`: whose token gets the page of a node, by the API server's own word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcherkit_plugin.cluster.requests import AUDIENCE, PAGE_URL
from tests.cluster.test_plugin import NAMESPACE
from tests.plugin.cluster.test_cluster import Daemon, beside, path
from tests.support.cluster import Cluster
from tests.support.waiting import until
from tests.test_deploy_plugin import BASE, COMPONENTS

__all__ = ["path"]
pytestmark = pytest.mark.cluster

ACCOUNTS = f"system:serviceaccount:{NAMESPACE}"
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
def server(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with the rights of the plugin and of a reader, once they hold."""
    manifests = [BASE / "namespace.yaml", BASE / "serviceaccount.yaml"]
    manifests += [COMPONENTS["page"] / "rbac.yaml", COMPONENTS["page"] / "reader.yaml"]
    given = "\n---\n".join([*(each.read_text() for each in manifests), READERS])
    asks = {"group": "authorization.k8s.io", "resource": "subjectaccessreviews", "verb": "create"}
    reads = {"path": PAGE_URL, "verb": "get"}
    try:
        cluster.kubectl("apply", "-f", "-", given=given)
        until(lambda: may(cluster, "launcherkit-plugin", resourceAttributes=asks), "the plugin's rights")
        until(lambda: may(cluster, "reader", nonResourceAttributes=reads), "the reader's rights")
        yield cluster
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "--wait=true", "-f", "-", given=given)


def may(server: Cluster, account: str, **asked: dict[str, str]) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": f"{ACCOUNTS}:{account}", **asked},
    }
    answer = json.loads(server.kubectl("create", "-o", "json", "-f", "-", given=json.dumps(review)))
    return answer["status"]["allowed"] is True


def token(server: Cluster, account: str, *audiences: str) -> str:
    """A token for these audiences, or for the API server; kubectl has a command for it since 1.24 only."""
    request: dict[str, Any] = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    request["spec"] = {"audiences": audiences}
    url = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    answer = json.loads(server.kubectl("create", f"--raw={url}", "-f", "-", given=json.dumps(request)))
    return str(answer["status"]["token"])


def kubeconfig(server: Cluster, folder: Path) -> Path:
    """The credentials of the plugin's account."""
    config = json.loads(server.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    user = {"token": token(server, "launcherkit-plugin")}
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": user}]
    file = folder / "kubeconfig"
    file.touch(0o600)
    file.write_text(json.dumps(config))
    return file


def test_the_readers_token_for_the_page_gets_it_and_no_other(server: Cluster, path: Path) -> None:
    tokens = [
        token(server, "reader", AUDIENCE),
        token(server, "reader"),  # for the API server
        token(server, "stranger", AUDIENCE),
        token(server, "reader", AUDIENCE)[:-5] + "AAAAA",
    ]
    found: list[str | None] = []

    async def scenario(it: Daemon) -> None:
        found.extend([await it.socket.review_token(each, 60.0) for each in tokens])

    beside(path, kubeconfig(server, path.parent), scenario)
    good, for_the_server, strangers, forged = found
    assert good is None
    assert strangers == f"{ACCOUNTS}:stranger may not get {PAGE_URL}"
    for refused in (for_the_server, forged):
        assert refused is not None
        assert "the token is invalid" in refused
