"""``launcherkit-plugin serve``: the daemon."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from launcherkit_plugin.cli.options import (
    add_place_arguments,
    add_state_argument,
    plugin_options,
    pod_resources_of,
    proc_of,
)
from launcherkit_plugin.model.config import AUTO

if TYPE_CHECKING:
    from launcherkit_plugin.host.open_files import OpenFilesHelper

FEATURES = "/etc/kubernetes/node-feature-discovery/features.d"

FIRST_SECONDS = 2.0
"""Garbage collection starts after this time: by then the first scan is done, most of whose objects stay."""

DESCRIPTION = """\
Advertise this node's devices to the kubelet, keep that list up to date, and allocate devices to containers. It runs
until SIGTERM, and waits for a kubelet that is not there yet."""

EPILOG = """\
examples:
  launcherkit-plugin serve --auto nvidia                     every NVIDIA GPU that is bound to vfio-pci
  launcherkit-plugin serve --config plugin.yaml
  launcherkit-plugin serve --config plugin.yaml --check-config
  launcherkit-plugin serve --auto all --host /tmp/host --kubelet-dir /tmp/kubelet --dev-root /tmp/host

With --host and --kubelet-dir it runs anywhere, without root."""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    options = plugin_options(parser, env)
    options.add("--config", "FILE", "what to advertise, and how; see `launcherkit explain plugin-configuration`")
    options.add(
        "--auto",
        None,
        "advertise, without a configuration or in addition to it, what is bound to a VFIO driver: NVIDIA's GPUs, every "
        "GPU and accelerator, or everything",
        choices=AUTO,
    )
    options.switch("--dra", "serve every device by Dynamic Resource Allocation, not by the device plugin")
    options.switch("--check-config", "report what is wrong with the configuration, and exit")
    options.add(
        "--dev-root",
        "DIR",
        "what precedes the paths of device nodes where the kubelet sees them (default: nothing)",
        "",
    )
    options.add(
        "--web-socket",
        "SOCKET",
        "where `launcherkit-plugin web` connects, which serves metrics and the page of this node (default: nowhere)",
    )
    options.add("--probe-socket", "SOCKET", "where `launcherkit-plugin probe` connects (default: nowhere)")
    options.add(
        "--node-hook",
        "SOCKET",
        "where KubeVirt's virt-handler calls the node hook of a plugin, for vGPUs (default: nowhere)",
    )
    options.add(
        "--cluster-socket",
        "SOCKET",
        "where `launcherkit-plugin cluster` connects, for Events, KubeVirt's configuration and DRA (default: nowhere)",
    )
    about = "publish a record of this node's devices, for `launcherkit rehearse --cluster`; needs --cluster-socket"
    options.switch("--publish-node", about)
    about = "metrics name the pods, VMs and claims that have devices, for whoever can read metrics"
    options.switch("--name-holders", about)
    options.add("--features-dir", "DIR", "where Node Feature Discovery looks for labels, if it is installed", FEATURES)
    add_place_arguments(parser, env)
    add_state_argument(parser, env)
    for flag in ("--metrics-address", "--metrics-token-file", "--page"):
        parser.add_argument(flag, action=_OfWeb, help=argparse.SUPPRESS)
    parser.set_defaults(usage_error=parser.error)


class _OfWeb(argparse.Action):
    """Says who has an option that is no longer here."""

    def __call__(self, parser: argparse.ArgumentParser, _: object, __: object, flag: str | None = None) -> None:
        """See argparse."""
        parser.error(
            f"{flag} is an option of `launcherkit-plugin web`, which serves metrics and page: no process with rights "
            "on the host has a port; give this one --web-socket SOCKET"
        )


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Serve until SIGTERM."""
    if args.config is None and args.auto is None:
        args.usage_error(
            "there is nothing to advertise: give --config FILE, or --auto nvidia, gpu or all; "
            "`launcherkit-plugin discover --auto all` shows what could be advertised"
        )
    if args.check_config:
        return _check_config(args, env)
    gc.disable()  # it would take a seventh of the start, most of which is imports
    from launcherkit_plugin.host.open_files import start_helper

    args.proc = proc_of(args)
    helper = start_helper(args.proc)  # before there are threads, and before most imports: it stays small
    with without_ssl():
        import asyncio

    asyncio.run(_serve(args, env, helper))
    return 0


async def _serve(args: argparse.Namespace, env: Mapping[str, str], helper: OpenFilesHelper | None) -> None:
    """Start the process that reads the configuration, import the rest while it reads, and serve."""
    import asyncio

    first = None
    if args.config is not None:
        from launcherkit_plugin.config.child import read_config_in_child

        first = asyncio.create_task(read_config_in_child(args.config, args.auto, dra=args.dra))
        await asyncio.sleep(0)

    with without_ssl():
        from launcherkit_plugin.daemon.serve import DaemonOptions, Early, serve

    gc.freeze()  # later collections skip the imported modules, which stay anyway
    asyncio.get_running_loop().call_later(FIRST_SECONDS, gc.enable)
    args.kubelet_dir, args.dev_root = args.kubelet_dir.rstrip("/"), args.dev_root.rstrip("/")
    args.pod_resources = pod_resources_of(args)
    options = DaemonOptions(*(getattr(args, name) for name in DaemonOptions._fields))
    try:
        await serve(options, env, Early(first, helper))
    finally:
        if first is not None:
            # If asyncio abandons a process that is just being started, it waits forever for its end.
            await asyncio.wait({first})
            first.cancelled() or first.exception()  # reported already, or no longer of interest


@contextmanager
def without_ssl() -> Iterator[None]:
    """Until the block ends, importing ``ssl`` fails; modules to which it is optional do without.

    asyncio and grpclib are such modules. Importing it takes a twentieth of the start, and the daemon uses unix sockets.
    """
    if "ssl" in sys.modules:
        yield
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]  # None makes importing it fail
    try:
        yield
    finally:
        del sys.modules["ssl"]


def _check_config(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    if args.config is None:
        args.usage_error("--check-config needs --config FILE")
    from launcherkit_plugin.cli import check_config

    return check_config.run(args, env)
