"""``launcherkit-plugin claim``: prints a ResourceClaim for cards that are close together."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from launcherkit.process.edge import write_stdout
from launcherkit_plugin.cli.options import number_from, plugin_options
from launcherkit_plugin.cli.resources import as_text
from launcherkit_plugin.dra.claim_manifest import KINDS, LEVELS, MOST, manifests
from launcherkit_plugin.model.config import DRA_DRIVER
from launcherkit_plugin.model.texts import parse_driver

OUTPUTS = ("yaml", "json")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

DESCRIPTION = """\
Print a ResourceClaim for GPUs, network cards and NVMe drives that are close together, and the DeviceClasses that it
names, for `kubectl apply`. The node's driver must be that of `launcherkit-plugin serve` with `dra`. It reads nothing,
and applies nothing."""

EPILOG = """\
examples:
  launcherkit-plugin claim --gpus 4 --nics 4 --near pcieSwitch         each GPU with a NIC below its PCIe switch
  launcherkit-plugin claim --gpus 4 --nics 2 --near pcieSwitch --together numaNode
  launcherkit-plugin claim --gpus 2 --near pcieRoot --template --name train | kubectl apply -f -"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    for kind in KINDS:
        about = f"how many {kind.plural} (DeviceClass {kind.device_class})"
        parser.add_argument(f"--{kind.plural}", metavar="N", type=_count, default=0, help=about)
    about = "what each device has in common with its share of the other kinds; of one kind alone, with all others"
    parser.add_argument("--near", choices=LEVELS, help=about)
    parser.add_argument("--together", choices=LEVELS, help="what all devices have in common")
    parser.add_argument("--name", default="devices", help="the name of the claim (default: devices)")
    parser.add_argument("--template", action="store_true", help="a ResourceClaimTemplate: a claim for each pod")
    parser.add_argument(
        "--driver", type=_driver, default=DRA_DRIVER, help=f"the name of the DRA driver (default: {DRA_DRIVER})"
    )
    plugin_options(parser, env).add("--output", None, "form of the output", OUTPUTS[0], choices=OUTPUTS)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Print the manifests."""
    counts = {kind: getattr(args, kind.plural) for kind in KINDS}
    if not 1 <= sum(counts.values()) <= MOST:
        args.usage_error(f"a claim has 1 to {MOST} devices: give --gpus, --nics or --nvmes")
    if not _NAME.fullmatch(args.name):
        args.usage_error(f"--name {args.name!r} is not a DNS label, such as gpus-of-train")
    documents = manifests(
        args.name, counts, args.driver, near=args.near, together=args.together, template=args.template
    )
    if args.output == "json":
        text = as_text({"apiVersion": "v1", "kind": "List", "items": documents}, "json")
    else:
        text = "---\n".join(as_text(document, "yaml") for document in documents)
    write_stdout(text.encode())
    return 0


def _count(text: str) -> int:
    return number_from(text, 0, MOST)


def _driver(text: str) -> str:
    try:
        return parse_driver(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from problem
