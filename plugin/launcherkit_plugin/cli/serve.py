"""``launcherkit-plugin serve``: the daemon."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from launcherkit_plugin.cli.options import add_place_arguments, pod_resources_of, proc_of, switch_from, text_from
from launcherkit_plugin.model.config import AUTO

FEATURES = "/etc/kubernetes/node-feature-discovery/features.d"

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
    parser.add_argument(
        "--config", metavar="FILE", default=text_from("--config", env), help="what is advertised, and how; see the docs"
    )
    parser.add_argument(
        "--auto",
        choices=AUTO,
        default=text_from("--auto", env),
        help="advertise, without a configuration or in addition to it, what is bound to a VFIO driver: NVIDIA's GPUs, "
        "every GPU and accelerator, or everything",
    )
    parser.add_argument(
        "--check-config",
        action="store_true",
        default=switch_from("--check-config", env),
        help="report what is wrong with the configuration, and exit",
    )
    parser.add_argument(
        "--dev-root",
        metavar="DIR",
        default=text_from("--dev-root", env) or "",
        help="what the kubelet finds before the paths of device nodes on its side (default: nothing)",
    )
    _add_endpoint_arguments(parser, env)
    parser.add_argument(
        "--features-dir",
        metavar="DIR",
        default=text_from("--features-dir", env) or FEATURES,
        help=f"where Node Feature Discovery looks for labels, if it is there (default: {FEATURES})",
    )
    add_place_arguments(parser, env)
    parser.set_defaults(usage_error=parser.error)


def _add_endpoint_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    parser.add_argument(
        "--metrics-address",
        metavar="ADDRESS",
        default=text_from("--metrics-address", env),
        help="HOST:PORT where /metrics is served (default: nowhere)",
    )
    parser.add_argument(
        "--metrics-token-file",
        metavar="FILE",
        default=text_from("--metrics-token-file", env),
        help="serve metrics only to clients that send the token in this file (default: to everyone)",
    )
    parser.add_argument(
        "--probe-socket",
        metavar="SOCKET",
        default=text_from("--probe-socket", env),
        help="where `launcherkit-plugin probe` asks (default: nowhere)",
    )
    parser.add_argument(
        "--node-hook",
        metavar="SOCKET",
        default=text_from("--node-hook", env),
        help="where KubeVirt's virt-handler calls the node hook of a plugin, for vGPUs (default: nowhere)",
    )
    parser.add_argument(
        "--cluster-socket",
        metavar="SOCKET",
        default=text_from("--cluster-socket", env),
        help="where `launcherkit-plugin cluster` connects, for Events and KubeVirt's configuration (default: nowhere)",
    )


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Serve; returns when it is to end."""
    if args.config is None and args.auto is None:
        args.usage_error(
            "nothing to advertise was named: give --config FILE, or --auto nvidia, gpu or all to do without one; "
            "`launcherkit-plugin discover --auto all` shows what there is"
        )
    if args.check_config:
        return _check_config(args, env)
    import asyncio

    asyncio.run(_serve(args, env))
    return 0


async def _serve(args: argparse.Namespace, env: Mapping[str, str]) -> None:
    """The process that reads the configuration is started first: the rest is imported while it reads."""
    import asyncio

    first = None
    if args.config is not None:
        from launcherkit_plugin.config.child import read_config_in_child

        first = asyncio.create_task(read_config_in_child(args.config, args.auto))
        await asyncio.sleep(0)

    from launcherkit_plugin.daemon.serve import Options, serve

    kubelet_dir = args.kubelet_dir.rstrip("/")
    options = Options(
        config=args.config,
        auto=args.auto,
        kubelet_dir=kubelet_dir,
        pod_resources=pod_resources_of(args),
        host=args.host,
        dev_root=args.dev_root.rstrip("/"),
        metrics_address=args.metrics_address,
        metrics_token_file=args.metrics_token_file,
        probe_socket=args.probe_socket,
        node_hook=args.node_hook,
        cluster_socket=args.cluster_socket,
        ledger=args.ledger,
        proc=proc_of(args),
        features_dir=args.features_dir,
    )
    try:
        await serve(options, env, first)
    finally:
        if first is not None:
            # asyncio can't abandon a process that is just being started: its end is waited for for ever then.
            await asyncio.wait({first})
            first.cancelled() or first.exception()  # reported already, or no longer of interest


def _check_config(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    if args.config is None:
        args.usage_error("--check-config needs --config FILE")
    from launcherkit_plugin.cli import check_config

    return check_config.run(args, env)
