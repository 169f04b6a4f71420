"""What a DRA driver's pod gets to ask the API server with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcherkit_lab.api import Api, ApiError
from launcherkit_lab.check_dra import in_cluster
from launcherkit_lab.container.manifest import Identity, pod_of
from tests.support.apiserver import NODES, TOKEN, ApiServer, kubeconfig_of

NODE = {"name": "node-1", "uid": "uid-of-node-1"}
POD = {"kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [{"name": "c"}]}}


def api_of(folder: Path, url: str) -> Api:
    authority = folder / "ca.pem"
    authority.write_text("certificate")
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig_of(url, authority)))
    return Api(path)


class Secured(Api):
    """The API of a server without TLS, which says that it has it."""

    def __init__(self, kubeconfig: Path) -> None:
        super().__init__(kubeconfig)
        self._plain, self.url = self.url, "https://[fd00::1]"
        self.authority = b"certificate"

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self.url, secured = self._plain, self.url
        try:
            return super().ask(method, path, body)
        finally:
            self.url = secured


def test_a_pod_has_a_token_of_its_account_that_is_bound_to_its_node(tmp_path: Path) -> None:
    server = ApiServer()
    server.put(NODES, {"metadata": NODE})
    server.accounts.add(("n", "default"))
    with server.running(tmp_path) as kubeconfig:
        pod = in_cluster(pod_of([POD]), Secured(kubeconfig), NODE)
    assert (pod.node, pod.identity) == ("node-1", Identity("fd00::1", 443, TOKEN, b"certificate"))


def test_without_its_account_it_is_said_what_creates_it(tmp_path: Path) -> None:
    server = ApiServer()
    server.put(NODES, {"metadata": NODE})
    server.accounts.add(("other", "default"))
    with server.running(tmp_path) as kubeconfig, pytest.raises(ApiError) as refused:
        in_cluster(pod_of([POD]), Secured(kubeconfig), NODE)
    assert 'serviceaccounts "default" not found: create what' in str(refused.value)
    assert refused.value.code == 404


def test_a_server_without_tls_is_none_for_pods(tmp_path: Path) -> None:
    with pytest.raises(ApiError, match=r"http://127\.0\.0\.1:1: programs in a pod ask an API server by https alone"):
        in_cluster(pod_of([POD]), api_of(tmp_path, "http://127.0.0.1:1"), NODE)


def test_the_authority_is_in_the_kubeconfig_or_in_a_file_beside_it(tmp_path: Path) -> None:
    assert api_of(tmp_path, "http://127.0.0.1:1").authority == b"certificate"
    path = tmp_path / "kubeconfig"
    written = yaml.safe_load(path.read_text())
    cluster = written["clusters"][0]["cluster"]
    for own, authority in (({"certificate-authority-data": "aW5saW5l"}, b"inline"), ({}, b"")):
        written["clusters"][0]["cluster"] = {"server": cluster["server"], **own}
        path.write_text(yaml.safe_dump(written))
        assert Api(path).authority == authority
    written["clusters"][0]["cluster"]["certificate-authority"] = "none.pem"
    path.write_text(yaml.safe_dump(written))
    with pytest.raises(ApiError, match=r"certificate-authority: .*none\.pem"):
        Api(path)
