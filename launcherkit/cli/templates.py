"""``launcherkit templates``: the domain templates that come with launcherkit."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from launcherkit.process.edge import write_stdout
from launcherkit.request.template import find_template, list_templates

DESCRIPTION = """\
List the domain templates that come with launcherkit, or print one, to read it or to start your own from it."""

EPILOG = """\
examples:
  launcherkit templates list
  launcherkit templates show q35
  launcherkit templates show q35 > mine.xml.j2; launcherkit define --template ./mine.xml.j2 --set name=vm"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="one line per template: name, tab, description", allow_abbrev=False)
    show = actions.add_parser("show", help="print one", allow_abbrev=False)
    show.add_argument("name", metavar="NAME", help="a name from the list, or a file")


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Print the list or a template."""
    if args.action == "list":
        text = "".join(f"{template.name}\t{template.description}\n" for template in list_templates())
    else:
        text = find_template(args.name).text
    write_stdout(text.encode())
    return 0
