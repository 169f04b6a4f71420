"""``launcherkit-plugin web``: serves metrics and page over the network."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping

from launcherkit_plugin.cli.options import plugin_options
from launcherkit_plugin.cli.serve import without_ssl
from launcherkit_plugin.model.config import PAGE

DESCRIPTION = """\
Serve the metrics of this node's daemon, and the page of the node, over the network. It has neither rights on the host
nor credentials: it asks the daemon over a unix socket (serve --web-socket), for each at most once a second. It runs
until SIGTERM, and doesn't need the daemon to start."""

EPILOG = """\
examples:
  launcherkit-plugin web --web-socket /run/launcherkit-web/daemon.sock
  launcherkit-plugin web --web-socket /tmp/w.sock --metrics-address 127.0.0.1:8080"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    add = plugin_options(parser, env).add
    add("--web-socket", "SOCKET", "the daemon's, as given to serve")
    add("--metrics-address", "ADDRESS", "HOST:PORT where /metrics is served", ":8080")
    add(
        "--metrics-token-file",
        "FILE",
        "serve metrics only to clients that send the token in this file (default: to everyone)",
    )
    add(
        "--page",
        None,
        "who gets the page of this node: auto: everyone on loopback, nobody elsewhere; token: clients whose token the "
        "cluster accepts; off: nobody",
        "auto",
        choices=PAGE,
    )
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Serve until SIGTERM.

    Raises:
        NO_METRICS_ADDRESS, BAD_METRICS_TOKEN: it can't start.
    """
    if not args.web_socket:
        args.usage_error("give --web-socket SOCKET, the one that is given to `launcherkit-plugin serve`")
    with without_ssl():
        import asyncio

        from launcherkit.process.stopping import serve_until_stopped
        from launcherkit_plugin.telemetry.reporter import Lines
        from launcherkit_plugin.web.server import WebOptions, serving

    options = WebOptions(*(getattr(args, name) for name in WebOptions._fields))
    asyncio.run(serve_until_stopped(serving(options, Lines(env, time.time))))
    return 0
