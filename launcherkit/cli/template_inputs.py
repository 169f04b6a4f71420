"""The domain document of a command that takes a file or a template."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from launcherkit.errors import BadTemplateValue
from launcherkit.inputs.arguments import Inputs, add_input_arguments, read_inputs
from launcherkit.process.options import text_from
from launcherkit.run.connection import SYSTEM


def add_domain_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the inputs of a translation, ``--template`` and ``--set``, and ``--connect``."""
    add_input_arguments(parser, env, domain_required=False)
    group = parser.add_argument_group("template", "Instead of --domain.")
    group.add_argument(
        "--template",
        metavar="NAME|FILE",
        default=text_from("--template", env),
        help="a template from `launcherkit templates list`, or the path of a file, with a / or a . in it",
    )
    group.add_argument(
        "--set",
        metavar="KEY=VALUE",
        dest="settings",
        action="append",
        default=[],
        help="a value for the template; may be repeated",
    )
    group = parser.add_argument_group("libvirt")
    group.add_argument(
        "--connect",
        metavar="URI",
        default=text_from("--connect", env) or SYSTEM,
        help=f"libvirt's connection URI (default: {SYSTEM})",
    )


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
        raise BadTemplateValue(
            "--set was given without --template", "Give --template too, or leave out --set.", key="--set"
        )
    return read_inputs(args, env)


NO_DOMAIN = "Give either --domain FILE or --template NAME."
