"""``launcherkit-plugin discover``: what would be advertised, without a kubelet."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping

from launcherkit.process.edge import tell, tell_notes, write_stdout
from launcherkit.sources.host import open_host
from launcherkit_plugin.cli.listing import document, left_out, notes, table
from launcherkit_plugin.cli.options import text_from
from launcherkit_plugin.daemon.wiring import ProviderParts, assemble
from launcherkit_plugin.devices.selectors import compile_rules, with_auto
from launcherkit_plugin.host.guarded import Guarded
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.model.config import AUTO, Config
from launcherkit_plugin.model.usage import Usage
from launcherkit_plugin.telemetry.events import LogRecorder
from launcherkit_plugin.telemetry.log import silent
from launcherkit_plugin.telemetry.metrics import NoMetrics
from launcherkit_plugin.vgpu.lifecycle import Stopped

OUTPUTS = ("table", "wide", "json")

DESCRIPTION = """\
Show what `launcherkit-plugin serve` would advertise with the same configuration: one line for each device, with its
resource, NUMA node, IOMMU groups and health. It only reads, and needs neither a kubelet nor privileges."""

EPILOG = """\
examples:
  launcherkit-plugin discover                             whatever is bound to a VFIO driver
  launcherkit-plugin discover --config plugin.yaml -o wide
  launcherkit-plugin discover --auto nvidia -o json
  launcherkit-plugin discover --host host.json            a snapshot by `launcherkit snapshot`, or a *.umockdev"""

NOBODY = Usage("pod-resources", {})
"""As if no pod had anything."""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--config", metavar="FILE", default=text_from("--config", env), help="the configuration; - reads standard input"
    )
    parser.add_argument(
        "--auto",
        choices=AUTO,
        default=text_from("--auto", env),
        help="as for serve: NVIDIA's GPUs, every GPU and accelerator, or everything that is bound to a VFIO driver "
        "(default: all, where there is no --config)",
    )
    parser.add_argument(
        "--host",
        metavar="DIR|SNAPSHOT.json|X.umockdev",
        default=text_from("--host", env) or "/",
        help="where host facts come from: the root above sys/ and dev/ (default: /), a file of `launcherkit snapshot`, "
        "or a umockdev recording",
    )
    parser.add_argument(
        "-o", "--output", choices=OUTPUTS, default=text_from("--output", env) or OUTPUTS[0], help="format"
    )


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Look once, and print.

    Raises:
        LauncherkitError: the configuration is wrong, the host can't be read, or two resources have one name.
    """
    # Looking leaves no CDI files behind.
    config = _config(args, env)._replace(cdi=None)
    host = open_host(args.host)
    parts = ProviderParts(
        host,
        root=args.host,
        dev_root="",
        clock=time.monotonic,
        sleep=time.sleep,
        log=lambda level, text, **_: tell("note" if level == "warning" else level, text, env),
        metrics=NoMetrics(),
        events=LogRecorder(silent),
        stopped=Stopped(),
        guarded=Guarded(),
        ledger=os.devnull,
        proc="/proc",
    )
    setup = assemble(config, parts)
    facts = read_node(host, setup.wants, vgpu=True)
    setup.learn(facts)
    offered = [each for provider in setup.providers for each in provider.resources(facts, NOBODY, parts.clock())]
    resources = sorted((each for each in offered if each.devices), key=lambda resource: resource.name)
    left = left_out(facts, compile_rules(config.pci), resources)
    if args.output == "json":
        text = json.dumps(document(args.host, resources, left), indent=2) + "\n"
    else:
        text = table(resources, wide=args.output == "wide")
        for note in notes(facts, left, resources):
            tell("note", note, env)
    write_stdout(text.encode("utf-8", "backslashreplace"))
    setup.check(resources)
    return 0


def _config(args: argparse.Namespace, env: Mapping[str, str]) -> Config:
    if args.config is None:
        return with_auto(Config(auto=args.auto or "all"))
    from launcherkit_plugin.config.reading import read_config

    reading = read_config(args.config, args.auto)
    tell_notes(reading.notes, env)
    if reading.cluster:
        tell("note", "KubeVirt's settings in the cluster are not looked at here", env)
    return reading.config
