"""``launcherkit snapshot``: a host as JSON, to test against and to attach to a bug report."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from launcherkit.process.arguments import Options
from launcherkit.process.edge import stdout_is_terminal, write_stdout

DESCRIPTION = """\
Record this host's PCI functions, IOMMU groups, mediated devices and VFIO device nodes, as sysfs has them.
The file contains everything on which launcherkit's decisions depend, so it can stand in for the host: give it to
`launcherkit translate --host FILE` or `launcherkit explain --host FILE` on any other machine.

It only reads, needs no privileges, and leaves out host name and serial numbers unless --all is given.
Functions are sorted, one a line, so `diff` can compare two snapshots of one host. --diff prints what
changed: functions that are gone, new or moved, drivers, groups that were split, links with fewer
lanes; first as a list, then in a tree of the host.
"""
EPILOG = """\
examples:
  launcherkit snapshot -o host.json               this host
  launcherkit snapshot --root /host -o host.json  the node's root, mounted at /host in a pod
  launcherkit snapshot --root X.umockdev          a recording made by `umockdev-record --all`
  launcherkit snapshot --diff host.json /         what changed since then
"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    options = Options(parser, env)
    options.add(
        "--root",
        "DIR",
        "root of the file system with the host's sys/ and dev/, or a recording *.umockdev; no link leads out of it",
        "/",
    )
    options.add("--output", "FILE", "write there, atomically (default: standard output)", short="-o")
    options.switch(
        "--all",
        "add host name, kernel, DMI names and serial numbers of this machine; review it before you share it",
    )
    parser.add_argument(
        "--diff",
        nargs=2,
        metavar=("OLD", "NEW"),
        help="print what changed from one host to the other instead of a snapshot; each is a root, a snapshot or a "
        "recording. Exits with 0 if nothing changed, with 1 if something did",
    )


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Read the host and write the snapshot, or compare two hosts: 1 if they differ.

    Raises:
        LauncherkitError: as `open_host` and `write_atomically` do.
    """
    from launcherkit.atomic import write_atomically
    from launcherkit.colour import colours_for
    from launcherkit.host.facts import read_machine
    from launcherkit.host.pci_ids import TABLES
    from launcherkit.host.snapshot import dump
    from launcherkit.host.source import open_host, open_tree
    from launcherkit.process.terminal import drawing_columns, write_text
    from launcherkit.show.changes import changes, draw_changes

    output = None if args.output == "-" else args.output
    if args.diff:
        old, new = (open_host(each).scan() for each in args.diff)
        changed = changes(old, new)
        colours = colours_for(stdout_is_terminal() and not output, env)
        text = draw_changes(changed, old, new, TABLES, colours, drawing_columns(env))
        if output:
            write_atomically(output, text.encode("utf-8", "backslashreplace"))
        else:
            write_text(text, env)
        return 1 if changed else 0
    # Links of this host stay on it; a root that was mounted or unpacked may come from someone else.
    confined = os.path.realpath(args.root) != "/"
    facts = open_host(args.root, confined=confined).scan()
    machine = None
    if args.all and os.path.isdir(args.root):
        with open_tree(args.root, confined=confined, strict=False) as tree:
            machine = read_machine(tree)
    text = dump(facts, machine)
    if output:
        write_atomically(output, text.encode())
    else:
        write_stdout(text.encode())
    return 0
