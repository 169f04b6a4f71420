"""This project's DRA driver, as the lab's suite has it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcherkit_lab.api import Api
from launcherkit_lab.conformance.dra import DRA
from launcherkit_lab.conformance.dra_node import DraNode
from launcherkit_lab.conformance.driver import Driver
from launcherkit_lab.conformance.expectation import Result
from launcherkit_lab.conformance.machine import Machine
from launcherkit_lab.conformance.node import Limits
from launcherkit_lab.conformance.trial import tried
from tests.dra.node import ENV, RULE
from tests.lab.bench import BuiltMachine
from tests.support.clusterprocess import ClusterProcess
from tests.support.forked import PLUGIN, Process
from tests.support.hosttree import HostTree
from tests.support.waiting import PATIENCE


class ForkedDriver(Driver):
    """A driver that is an entry point of this project."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        super().__init__(command, log)
        self._env = dict(env)

    def start(self) -> None:
        if not self.running:
            with open(self.log, "ab") as file:
                self._process = Process(
                    self.command, env=self._env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd="/"
                )

    def kill(self) -> None:
        if self._process is not None:  # it has no process group of its own
            self._process.kill()
            self._process.wait()


def two_cards(folder: Path) -> BuiltMachine:
    """A built host with two cards that `RULE` is about."""
    tree = HostTree(folder / "host")
    for number in (1, 2):
        tree.card(f"0000:0{number}:00", group=number)
    return BuiltMachine(tree)


def dra_results(
    folder: Path, kubeconfig: Path, name: str, namespace: str, machine: Machine, rule: Mapping[str, Any] = RULE
) -> list[Result]:
    """The suite of DRA drivers on this project's, on a node of an API server.

    Args:
        folder: for the kubelet's files and the driver's.
        kubeconfig: of the API server.
        name: the node's.
        namespace: for claims.
        machine: has the devices.
        rule: of the configuration, by which they are published.
    """
    (folder / "cdi").mkdir()
    config = {"cdi": {"folder": str(folder / "cdi")}, "rescanSeconds": 1, "dra": {}, "resources": [rule]}
    (folder / "plugin.yaml").write_text(json.dumps(config))
    places = {
        "--config": "plugin.yaml",
        "--kubelet-dir": "kubelet",
        "--cluster-socket": "cluster.sock",
        "--ledger": "ledger",
        "--state": "state",
        "--features-dir": "features.d",
    }
    words = [word for option, place in places.items() for word in (option, str(folder / place))]
    if machine.root != Path("/"):
        words += ["--host", str(machine.root), "--dev-root", str(machine.root)]
    driver = ForkedDriver([PLUGIN, "serve", *words], ENV | {"NODE_NAME": name}, folder / "driver.log")
    limits = Limits(health_seconds=PATIENCE, patience=PATIENCE)
    kubelet, cdi, api = folder / "kubelet", folder / "cdi", Api(kubeconfig)
    node = DraNode(driver, machine, api, kubelet, cdi, name, namespace, limits)
    with ClusterProcess(folder / "cluster.sock", name, kubeconfig), node.running():
        return tried(DRA, node)
