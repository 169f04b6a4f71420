"""``launcherkit templates``: the domain templates that come with launcherkit."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from launcherkit.errors import BAD_TEMPLATE_VALUE
from launcherkit.inputs import Inputs, add_input_arguments, read_inputs
from launcherkit.process.arguments import Options
from launcherkit.process.edge import write_stdout
from launcherkit.request.template import find_template, list_templates
from launcherkit.run.connection import SYSTEM

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


# The domain document of a command that takes a file or a template.


def add_domain_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the inputs of a translation, ``--template`` and ``--set``, and ``--connect``."""
    add_input_arguments(parser, env, domain_required=False)
    group = parser.add_argument_group("template", "Instead of --domain.")
    text = "a template from `launcherkit templates list`, or the path of a file, with a / or a . in it"
    options = Options(group, env)
    options.add("--template", "NAME|FILE", text)
    group.add_argument(
        "--set",
        metavar="KEY=VALUE",
        dest="settings",
        action="append",
        default=[],
        help="a value for the template; may be repeated",
    )
    group = parser.add_argument_group("libvirt")
    options.add("--connect", "URI", "libvirt's connection URI", SYSTEM)


def has_one_domain(args: argparse.Namespace) -> bool:
    """Whether the arguments name a domain or a template, and not both."""
    return bool(args.domain) != bool(args.template)


def read_domain_inputs(args: argparse.Namespace, env: Mapping[str, str]) -> Inputs:
    """Read every file that the arguments name; the document is the file's or the template's.

    Raises:
        LauncherkitError: whatever the sources find wrong.
    """
    if args.template:
        from launcherkit.request.template import find_template, read_values

        document = find_template(args.template).render(read_values(args.settings))
        return read_inputs(args, env, (document, f"the template {args.template}"))
    if args.settings:
        raise BAD_TEMPLATE_VALUE(
            "--set was given without --template", "Give --template too, or leave out --set.", key="--set"
        )
    return read_inputs(args, env)


NO_DOMAIN = "Give either --domain FILE or --template NAME."
