"""``launcherkit-plugin page``: the page of a cluster, as a file."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from launcherkit.process.edge import write_stdout

NAMESPACE = "launcherkit"

DESCRIPTION = """\
Print a page of the cluster of KUBECONFIG: a tile for each node, with what is free, held and Unhealthy there, from what
the nodes' device plugins publish (component node-record). With a VM it says on which nodes that would start, as
`launcherkit rehearse` does. It only reads, and needs the right to list configmaps in the device plugin's namespace."""

EPILOG = """\
examples:
  launcherkit-plugin page --cluster > cluster.html
  launcherkit-plugin page --cluster --vm vmi.yaml > cluster.html"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:  # its flags have no variables
    """Declare the command's arguments."""
    parser.add_argument("--cluster", action="store_true", required=True, help="the nodes of the cluster of KUBECONFIG")
    parser.add_argument(
        "--namespace", metavar="NAME", default=NAMESPACE, help=f"the device plugin's (default: {NAMESPACE})"
    )
    parser.add_argument("--vm", metavar="FILE", help="a VirtualMachine or VirtualMachineInstance, as JSON or YAML")


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Read what nodes have published, rehearse the VM, and print.

    Raises:
        NoCluster: it doesn't answer, or refuses.
        NO_NODES: no node has published a record.
    """
    from launcherkit_plugin.cli.cluster_nodes import UnknownNode, published
    from launcherkit_plugin.page.node_tiles import ClusterNode, draw_cluster

    nodes = published(args.namespace, None, env)
    code, rehearsal = (0, None) if args.vm is None else _rehearsed(args.vm, args.namespace, env)
    if code > 1:
        return code
    tiles = [
        ClusterNode(node.name, error=node.error)
        if isinstance(node, UnknownNode)
        else ClusterNode(node.name, node.resources(), node.held)
        for node in nodes
    ]
    write_stdout(draw_cluster(tiles, rehearsal).encode("utf-8", "backslashreplace"))
    return 0


def _rehearsed(vm: str, namespace: str, env: Mapping[str, str]) -> tuple[int, Mapping[str, Any] | None]:
    """The exit code of a rehearsal, whose messages appear as they are, and its document if there is one.

    It is a process of its own: the device plugin has no part of the translator that reads domains.
    """
    command = [sys.executable, "-m", "launcherkit", "rehearse", vm, "--cluster", "--namespace", namespace, "--json"]
    done = subprocess.run(command, env=dict(env), stdout=subprocess.PIPE, check=False)  # noqa: S603  # no shell
    return done.returncode, json.loads(done.stdout) if done.returncode in (0, 1) else None
