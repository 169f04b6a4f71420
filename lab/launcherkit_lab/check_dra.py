"""The command ``launcherkit-lab check-dra``: the suite of DRA drivers on one, beside the API server that it uses."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from launcherkit_lab.api import Api, ApiError
from launcherkit_lab.check import begin, deliver, driver_of, name_of, options_of, tested
from launcherkit_lab.conformance.dra import DRA
from launcherkit_lab.conformance.dra_node import DraNode
from launcherkit_lab.conformance.machine import Machine
from launcherkit_lab.conformance.node import Limits
from launcherkit_lab.conformance.report import Tried
from launcherkit_lab.conformance.trial import numbered, selected, tried
from launcherkit_lab.container.manifest import Identity, Pod

SUITE = "dra-driver"
_TOKEN_SECONDS = 24 * 60 * 60
"""How long a run may take; nobody replaces the token, as a kubelet would."""


def _limits(arguments: argparse.Namespace) -> Limits:
    return Limits(health_seconds=arguments.health_seconds, patience=arguments.patience)


def _again(arguments: argparse.Namespace, program: str) -> Iterator[str]:
    yield from (program, "check-dra", "--kubeconfig", str(arguments.kubeconfig), "--node", arguments.node)
    yield from ("--namespace", arguments.namespace, "--cdi-dir", str(arguments.cdi_dir))
    yield from ("--kubelet-dir", str(arguments.kubelet_dir), *options_of(_limits(arguments)), *tested(arguments))


def in_cluster(pod: Pod, api: Api, node: Mapping[str, Any]) -> Pod:
    """The pod with its node, and with a token of its service account, as a kubelet gets one (TokenRequest).

    It is bound to the node (KEP-4193, stable in 1.33): there is no Pod that it could be bound to.

    Args:
        node: the metadata of its Node.

    Raises:
        ApiError: there is no such service account, or the server isn't one that pods can ask.
    """
    server = urlsplit(api.url)
    if server.scheme != "https" or server.hostname is None:
        raise ApiError(f"{api.url}: programs in a pod ask an API server by https alone")
    account = f"/api/v1/namespaces/{pod.namespace}/serviceaccounts/{pod.spec.service_account_name}"
    bound = {"apiVersion": "v1", "kind": "Node", "name": node["name"], "uid": node["uid"]}
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _TOKEN_SECONDS, "boundObjectRef": bound},
    }
    try:
        token = api.ask("POST", f"{account}/token", body)["status"]["token"]
    except ApiError as error:
        raise ApiError(
            f"{error}: create what the manifest has for the API server, with kubectl apply", error.code
        ) from None
    identity = Identity(server.hostname, server.port or 443, str(token), api.authority)
    return pod._replace(node=node["name"], identity=identity)


def check_dra(arguments: argparse.Namespace, program: str) -> int:
    """Try the expectations, and report; see `launcherkit_lab.check.deliver`.

    Raises:
        UnknownNumber, CannotWrite, CannotStartDriver, CannotServe, ApiError, BadImage, BadManifest: it can't begin.
    """
    suite, skip = selected(DRA, arguments.only), numbered(DRA, arguments.skip)
    api = Api(arguments.kubeconfig)
    about = api.ask("GET", f"/api/v1/nodes/{arguments.node}")["metadata"]
    report = begin(arguments, program)
    driver = driver_of(arguments, lambda pod: in_cluster(pod, api, about))
    places = arguments.kubelet_dir, arguments.cdi_dir, arguments.node, arguments.namespace
    node = DraNode(driver, Machine(), api, *places, _limits(arguments))
    arguments.cdi_dir.mkdir(parents=True, exist_ok=True)
    with node.running():
        driver.start()
        results = tried(suite, node, report, skip)
    return deliver(Tried(SUITE, name_of(arguments), [*_again(arguments, program)], arguments.log, results), arguments)
