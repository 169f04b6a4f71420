"""The lab's suite of DRA drivers, on this project's, beside the API of Kubernetes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import yaml

from launcherkit_lab.conformance.expectation import Status
from tests.api.applying import applied
from tests.lab.dra_driver import dra_results, two_cards
from tests.support.apiserver import kubeconfig_of
from tests.support.cluster import Cluster

pytestmark = pytest.mark.api

NODE = "node-of-the-lab"


def test_the_driver_of_this_project_is_conformant(api: Cluster) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    with tempfile.TemporaryDirectory(prefix="dra-") as name, applied(api, json.dumps(node)), api.served_to() as url:
        kubeconfig = Path(name, "kubeconfig")
        kubeconfig.write_text(yaml.safe_dump({**kubeconfig_of(url), "users": [{"name": "u", "user": {}}]}))
        results = dra_results(Path(name), kubeconfig, NODE, "default", two_cards(Path(name)))
    assert [f"{one.number}: {one.seen}\n{one.log}" for one in results if one.status is not Status.PASSED] == []
