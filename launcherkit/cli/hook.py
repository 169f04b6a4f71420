"""``launcherkit hook serve``: the hook sidecar and the domain hook, in one process."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from launcherkit.errors import SIDECAR_NOT_INSTALLED
from launcherkit.inputs import HOST_SOURCES, add_policy_arguments, policy_flags
from launcherkit.process.arguments import Options

if TYPE_CHECKING:
    import asyncio

    from launcherkit.hooks.core import HookSettings
    from launcherkit.hooks.server import Endpoint

SOCKET_DIR = "/var/run/kubevirt-hooks"
PLUGIN_DIR = "/var/run/kubevirt-plugin"

DESCRIPTION = """\
Serve a KubeVirt hook over gRPC on a unix socket: it completes the domain's hostdevs from the host's sysfs, because
a sidecar has none of the variables. A failure is returned as a gRPC error with the message and its help, which KubeVirt
shows in the VMI's events."""

EPILOG = """\
examples:
  launcherkit hook serve                                          in a hook sidecar
  launcherkit hook serve --domain-hook gpus                       in the container of a KubeVirt plugin
  launcherkit hook serve --socket-dir /tmp/hooks --host host.json anywhere else

It runs until SIGTERM, or until KubeVirt calls Shutdown, and finishes the calls in progress."""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    serve = actions.add_parser(
        "serve",
        help="serve until SIGTERM or Shutdown",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=parser.formatter_class,
        allow_abbrev=False,
    )
    add = Options(serve, env).add
    add(
        "--socket-dir",
        "DIR",
        f"where the hook sidecar's socket goes, named after $CONTAINER_NAME (default: {SOCKET_DIR}; with "
        "--domain-hook only where that is there)",
    )
    add(
        "--domain-hook",
        "PLUGIN",
        "serve the domain hook of this KubeVirt plugin too, on PLUGIN/launcherkit.sock in --plugin-dir",
    )
    add("--plugin-dir", "DIR", "where the plugin's folder is", PLUGIN_DIR)
    add("--host", HOST_SOURCES, "where host facts come from, read again for each call; default: this machine")
    add_policy_arguments(serve)


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Serve; returns when told to end."""
    import asyncio

    with importing_grpc("hooks over gRPC need it"):
        asyncio.run(_serve(args, env))
    return 0


@contextmanager
def importing_grpc(need: str) -> Iterator[None]:
    """If the block doesn't find the modules for gRPC, say how to install them.

    Args:
        need: who needs them, for the message: ``--pods needs it``.

    Raises:
        SIDECAR_NOT_INSTALLED: they are not installed.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("google", "grpclib"):
            raise
        raise SIDECAR_NOT_INSTALLED(
            f"the module {missing.name} is not installed, and {need}",
            "Install launcherkit with its extra `sidecar`.",
        ) from missing


async def _serve(args: argparse.Namespace, env: Mapping[str, str]) -> None:
    from launcherkit.hooks.core import HookSettings
    from launcherkit.hooks.server import serve
    from launcherkit.process.stopping import Stop

    stop = Stop()
    settings = HookSettings(env, policy_flags(args), args.host, args.policy)
    await serve(_endpoints(args, settings, stop.asked), stop, env)


def _endpoints(args: argparse.Namespace, settings: HookSettings, stop: asyncio.Event) -> list[Endpoint]:
    """The sidecar's socket, if requested or if its folder exists, and the domain hook's, if requested."""
    from launcherkit.hooks.domain_hook import domain_hook
    from launcherkit.hooks.sidecar import sidecar

    endpoints = []
    if args.socket_dir or not args.domain_hook or os.path.isdir(SOCKET_DIR):
        endpoints.append(sidecar(args.socket_dir or SOCKET_DIR, settings, stop))
    if args.domain_hook:
        endpoints.append(domain_hook(args.plugin_dir, args.domain_hook, settings))
    return endpoints
