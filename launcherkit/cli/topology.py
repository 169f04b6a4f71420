"""``launcherkit topology``: what is where on a host, and what a guest could have."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping

from launcherkit.colour import ink_for
from launcherkit.process.edge import write_stdout
from launcherkit.process.options import switch_from, text_from
from launcherkit.render.host import topology_of
from launcherkit.render.topology import draw
from launcherkit.sources.host import open_host
from launcherkit.sources.pci_ids import PATHS
from launcherkit.topology.document import document

DESCRIPTION = """\
Draw a host as a tree: NUMA node, root complex, root port or switch, slot, function. Each IOMMU group is a bracket
around its functions; each function has its driver, whether a guest could have it, or the code of the error that says
why not (`launcherkit explain CODE`). GPUs, accelerators and what is bound to a VFIO driver are shown, with all that
shares their slots and groups. It only reads, and needs no privileges."""

EPILOG = """\
examples:
  launcherkit topology                       this host
  launcherkit topology --host host.json      a snapshot by `launcherkit snapshot`, or a recording *.umockdev
  launcherkit topology --all                 every function
  launcherkit topology --json                the tree as JSON"""

_WIDE = 120
"""Columns where there is no terminal to ask."""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--host",
        metavar="DIR|SNAPSHOT.json|X.umockdev",
        default=text_from("--host", env) or "/",
        help="where host facts come from: the root above sys/ and dev/, a file of `launcherkit snapshot`, or a "
        "umockdev recording (default: this machine)",
    )
    parser.add_argument("--all", action="store_true", default=switch_from("--all", env), help="show every function")
    parser.add_argument(
        "--json", action="store_true", default=switch_from("--json", env), help="print the tree as JSON"
    )


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Read the host and draw it.

    Raises:
        LauncherkitError: as `open_host` does.
    """
    topology = topology_of(open_host(args.host).scan(), PATHS, every=args.all)
    if args.json:
        text = json.dumps(document(topology), indent=2) + "\n"
    else:
        text = draw(topology, ink_for(sys.stdout.isatty(), env), _columns(env))
    write_stdout(text.encode("utf-8", "backslashreplace"))
    return 0


def _columns(env: Mapping[str, str]) -> int:
    said = env.get("COLUMNS", "")
    if said.isascii() and said.isdigit() and 0 < int(said) < 10_000:
        return int(said)
    return shutil.get_terminal_size((_WIDE, 0)).columns if sys.stdout.isatty() else _WIDE
