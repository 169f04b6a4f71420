"""``launcherkit-plugin check-config``: checks a configuration file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from launcherkit.process.edge import print_notes, write_stdout
from launcherkit_plugin.cli.options import plugin_options
from launcherkit_plugin.model.config import AUTO

DESCRIPTION = """\
Read a configuration as `launcherkit-plugin serve` does, and report everything that is wrong with it. It reads
only files; `launcherkit-plugin discover` shows which devices there are."""

EPILOG = """\
examples:
  launcherkit-plugin check-config plugin.yaml
  kubectl get configmap launcherkit-plugin -o jsonpath='{.data.plugin\\.yaml}' | launcherkit-plugin check-config -
exit codes: 0 it is valid, 78 it is not"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    parser.add_argument("config", metavar="FILE", help="the configuration; - reads standard input")
    options = plugin_options(parser, env)
    options.add("--auto", None, "as for serve; overrides the file's", choices=AUTO)
    options.switch("--dra", "as for serve")


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Read the configuration, and print a summary.

    Raises:
        LauncherkitError: see `launcherkit_plugin.config.reading.read_config`.
    """
    from launcherkit_plugin.config.reading import read_config

    reading = read_config(args.config, args.auto, dra=args.dra)
    print_notes(reading.notes, env)
    config = reading.config
    counts = [
        (len(config.pci), "rule for PCI functions", "rules for PCI functions"),
        (len(config.vgpu.mdevs) + len(config.vgpu.vfs), "for vGPUs", "for vGPUs"),
    ]
    if config.usb:
        counts.append((len(config.usb), "for USB devices", "for USB devices"))
    with_instances = sum(bool(entry.gpu_instances) for entry in config.vgpu.layout)
    if with_instances:
        counts.append((with_instances, "for GPU instances", "for GPU instances"))
    by_dra = (
        ""
        if config.dra is None
        else f", {sum(rule.dra for rule in config.rules)} of them by DRA as {config.dra.driver}"
    )
    words = ", ".join(f"{number} {one if number == 1 else many}" for number, one, many in counts)
    aliases = f"{len(config.aliases)} alias" + ("" if len(config.aliases) == 1 else "es")
    write_stdout(f"{args.config}: fine: {words}{by_dra}, {aliases}\n".encode())
    return 0
