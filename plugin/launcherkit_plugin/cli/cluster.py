"""``launcherkit-plugin cluster``: talks to the API server for the daemon."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Mapping
from functools import partial

from launcherkit_plugin.cli.options import plugin_options
from launcherkit_plugin.model.config import NODE

NAMESPACE = "POD_NAMESPACE"
"""The variable with the pod's namespace, from the downward API; the node's record is written there."""

DESCRIPTION = """\
Talk to the API server for this node's daemon: post its Events, and pass it KubeVirt's configuration and the node's
labels; for DRA write the node's ResourceSlices, and read ResourceClaims; review the tokens of requests for the node's
page. It has credentials but no access to the host; the daemon has the devices but no credentials. They communicate over
the daemon's socket (serve --cluster-socket). It runs until SIGTERM, and waits for the daemon."""

EPILOG = """\
examples:
  launcherkit-plugin cluster --cluster-socket /run/launcherkit-cluster/daemon.sock --node "$NODE_NAME"
  KUBECONFIG=~/.kube/config launcherkit-plugin cluster --cluster-socket /tmp/c.sock --node node-1

It uses the credentials of KUBECONFIG if that is set, else the pod's."""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    options = plugin_options(parser, env)
    options.add("--cluster-socket", "SOCKET", "where the daemon listens")
    parser.add_argument(
        "--node", metavar="NAME", default=env.get(NODE), help=f"the node's name (default: the variable {NODE})"
    )
    options.switch(
        "--watch-pods",
        "report to the daemon when pods end, so that their vGPUs are removed sooner; needs the right to list pods",
    )
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Serve the daemon until SIGTERM.

    Raises:
        NoCluster: there are no credentials.
    """
    if not args.cluster_socket or not args.node:
        args.usage_error(f"give --cluster-socket SOCKET, and --node NAME or the variable {NODE}")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))  # there is nothing to finish; PID 1 has no default handlers

    from launcherkit_plugin.cluster.api import Api, configured
    from launcherkit_plugin.cluster.events import EventPoster
    from launcherkit_plugin.cluster.requests import (
        CLAIMS_AT_ONCE,
        TOKENS_AT_ONCE,
        ClaimStatusWriter,
        NodeRecordWriter,
        Questions,
    )
    from launcherkit_plugin.cluster.serve import ClusterProcess, DaemonConnection, serve
    from launcherkit_plugin.telemetry.reporter import Lines, Reporter

    reporter = Reporter(Lines(env, time.time))
    api = Api(configured(env))
    events = EventPoster(api, args.node, f"{time.time_ns():x}", time.time, reporter)
    daemon = DaemonConnection()
    claims = Questions(CLAIMS_AT_ONCE, partial(daemon.send, "claim"), reporter)
    tokens = Questions(TOKENS_AT_ONCE, partial(daemon.send, "token"), reporter)
    statuses = ClaimStatusWriter(api, reporter)
    records = NodeRecordWriter(api, args.node, env.get(NAMESPACE) or "default", reporter)
    process = ClusterProcess(
        api, args.node, daemon, events, claims, tokens, statuses, {}, records, reporter, env, set()
    )
    serve(process, args.cluster_socket, pods=args.watch_pods)
