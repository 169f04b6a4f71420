"""A plugin on the real kubelet, with a host of stand-ins: one for all tests of the tier."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kubelet.daemonset import DaemonSet
from tests.kubelet.host import DEVICES, StandInHost, build_host, configuration
from tests.kubelet.node import Node
from tests.kubelet.pods import Pods
from tests.support.cluster import Cluster, cluster
from tests.support.waiting import until

__all__ = ["cluster"]

STALE, BY_CDI, SAME = "gpus.test/STALE", "gpus.test/BY_CDI", "gpus.test/SAME"
"""Served by plugins of single tests."""
SERVED = [resource for resource in DEVICES if resource not in (STALE, BY_CDI, SAME)]


class Serving(NamedTuple):
    """A plugin that serves the resources of `SERVED`."""

    plugin: DaemonSet
    host: StandInHost
    metrics: str
    """Where its metrics are: HOST:PORT."""


@pytest.fixture(scope="session")
def node(cluster: Cluster) -> Node:
    return Node(cluster)


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> StandInHost:
    return build_host(tmp_path_factory.mktemp("host"))


@pytest.fixture(scope="session")
def serving(
    cluster: Cluster, node: Node, host: StandInHost, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    """The plugin, with all of its devices known to the scheduler."""
    port = free_port()
    folder = tmp_path_factory.mktemp("plugin")
    plugin = DaemonSet(cluster, configuration(*SERVED, rescan_seconds=1), host.root, folder, port)
    try:
        plugin.start()
        everything = {resource: (len(DEVICES[resource]), len(DEVICES[resource])) for resource in SERVED}
        until(
            lambda: node.counts(*SERVED) == everything, "all devices allocatable", lambda: [plugin.pod(), plugin.logs()]
        )
        yield Serving(plugin, host, f"127.0.0.1:{port}")
    finally:
        plugin.delete()


def options(host: StandInHost, kubelet_dir: Path) -> list[str]:
    """A plugin's, for a host of stand-ins."""
    return ["--host", str(host.root), "--dev-root", str(host.root), "--kubelet-dir", str(kubelet_dir)]


@pytest.fixture
def pods(cluster: Cluster, node: Node) -> Iterator[Pods]:
    """Makes pods, which end with the test."""
    made = Pods(cluster, node.name)
    try:
        yield made
    finally:
        made.delete_all()


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
