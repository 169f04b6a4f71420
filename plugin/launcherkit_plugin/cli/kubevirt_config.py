"""``launcherkit-plugin kubevirt-config``: prints what KubeVirt must permit for devices of nodes, as a patch (K7)."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from launcherkit.errors import counted
from launcherkit.process.edge import print_message, write_stdout
from launcherkit_plugin.cli.options import plugin_options
from launcherkit_plugin.cli.resources import add_config_arguments, as_text, config_of, look, notes

if TYPE_CHECKING:
    from launcherkit_plugin.config.kubevirt import Permit

OUTPUTS = ("yaml", "json")

DESCRIPTION = """\
Print what permittedHostDevices of the KubeVirt resource must have for VMs to get what `launcherkit-plugin serve`
advertises with the same configuration, as a merge patch. It only reads, and applies nothing."""

EPILOG = """\
examples:
  launcherkit-plugin kubevirt-config --config plugin.yaml                  for this node
  launcherkit-plugin kubevirt-config --config plugin.yaml --snapshot gpu-1.json gpu-2.json
  kubectl get kubevirt -A -o yaml > now.yaml
  launcherkit-plugin kubevirt-config --config plugin.yaml --current now.yaml > patch.yaml
  kubectl patch kubevirt -n kubevirt kubevirt --type merge --patch-file patch.yaml"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    add_config_arguments(parser, env)
    hosts = parser.add_mutually_exclusive_group()
    plugin_options(hosts, env).add("--host", "DIR", "the root above the node's sys/ and dev/", "/")
    about = "files of `launcherkit snapshot`, one for each node, to read instead of this node"
    hosts.add_argument("--snapshot", metavar="FILE", nargs="+", help=about)
    about = "the KubeVirt resource, as `kubectl get kubevirt -A -o yaml` prints it; its entries are kept"
    parser.add_argument("--current", metavar="FILE", help=f"{about}; - reads standard input")
    plugin_options(parser, env).add("--output", None, "form of the output", OUTPUTS[0], choices=OUTPUTS)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Scan each node once, and print.

    Raises:
        LauncherkitError: the configuration or the KubeVirt resource is wrong, a host can't be read, or two resources
            have one name.
    """
    from launcherkit_plugin.config.kubevirt import permits, permitting_patch
    from launcherkit_plugin.config.reading import read_permitted

    if args.config == args.current == "-":
        args.usage_error("only one of --config and --current can read standard input")
    current = None if args.current is None else read_permitted(args.current)
    config = config_of(args, env)
    wanted_permits: list[Permit] = []
    for place in args.snapshot or [args.host]:
        before = f"{place}: " if args.snapshot else ""
        offer = look(config, place, env, before)
        offer.check()
        wanted_permits += permits(offer.resources, offer.facts)
        for note in notes(offer.facts, offer.left, offer.resources):
            print_message("note", before + note, env)
        if by_dra := sum(resource.dra for resource in offer.resources):
            reason = "KubeVirt asks no permission for claims, but for the extendedResourceName of a DeviceClass"
            print_message("note", f"{before}{counted(by_dra, 'resource')} for DRA left out: {reason}", env)
        if others := sum(not resource.dra and resource.use != "vm" for resource in offer.resources):
            reason = "KubeVirt's VMs don't request them"
            text = f"{counted(others, 'resource')} for containers or Kata left out: {reason}"
            print_message("note", before + text, env)
    patch, more = permitting_patch(wanted_permits, current)
    for note in more:
        print_message("note", note, env)
    if patch and current is None:
        print_message(
            "note", "the patch replaces whole lists; --current FILE keeps what KubeVirt's resource has in them", env
        )
    write_stdout(as_text(patch, args.output).encode())
    return 0
