"""The command ``launcherkit-lab check-dra``: the suite of DRA drivers on one, beside the API server that it uses."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from launcherkit_lab.api import Api
from launcherkit_lab.check import begin, deliver, options_of
from launcherkit_lab.conformance.dra import DRA
from launcherkit_lab.conformance.dra_node import DraNode
from launcherkit_lab.conformance.driver import Driver
from launcherkit_lab.conformance.machine import Machine
from launcherkit_lab.conformance.node import Limits
from launcherkit_lab.conformance.report import Tried
from launcherkit_lab.conformance.trial import numbered, selected, tried

SUITE = "dra-driver"


def _limits(arguments: argparse.Namespace) -> Limits:
    return Limits(health_seconds=arguments.health_seconds, patience=arguments.patience)


def _again(arguments: argparse.Namespace, program: str) -> Iterator[str]:
    yield from (program, "check-dra", "--kubeconfig", str(arguments.kubeconfig), "--node", arguments.node)
    yield from ("--namespace", arguments.namespace, "--cdi-dir", str(arguments.cdi_dir))
    yield from ("--kubelet-dir", str(arguments.kubelet_dir), *options_of(_limits(arguments)), "--", *arguments.words)


def check_dra(arguments: argparse.Namespace, program: str) -> int:
    """Try the expectations, and report; see `launcherkit_lab.check.deliver`.

    Raises:
        UnknownNumber, CannotWrite, CannotStartDriver, CannotServe, ApiError: it can't begin.
    """
    suite, skip = selected(DRA, arguments.only), numbered(DRA, arguments.skip)
    api = Api(arguments.kubeconfig)
    api.ask("GET", f"/api/v1/nodes/{arguments.node}")
    report = begin(arguments, program)
    driver = Driver(arguments.words, arguments.log)
    places = arguments.kubelet_dir, arguments.cdi_dir, arguments.node, arguments.namespace
    node = DraNode(driver, Machine(), api, *places, _limits(arguments))
    arguments.cdi_dir.mkdir(parents=True, exist_ok=True)
    with node.running():
        results = tried(suite, node, report, skip)
    return deliver(Tried(SUITE, arguments.words, [*_again(arguments, program)], arguments.log, results), arguments)
