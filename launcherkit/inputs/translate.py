"""The pipeline on files: the arguments of ``launcherkit translate``, and what it does."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping

from launcherkit.atomic import write_all_atomically
from launcherkit.colour import colours_for, paint_diff
from launcherkit.diff import unified_diff
from launcherkit.inputs.arguments import add_input_arguments, read_inputs
from launcherkit.plan_json import plan_document
from launcherkit.process.edge import tell_notes, write_stdout
from launcherkit.process.options import switch_from, text_from


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    add_input_arguments(parser, env)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--output",
        "-o",
        metavar="FILE",
        default=text_from("--output", env),
        help="write the document there (by rename) instead of to standard output",
    )
    group.add_argument("--plan", metavar="FILE", default=text_from("--plan", env), help="write the plan there, as JSON")
    group.add_argument(
        "--diff",
        action="store_true",
        default=switch_from("--diff", env),
        help="print a unified diff instead of the document",
    )


def _coloured(diff: bytes, env: Mapping[str, str]) -> bytes:
    text = diff.decode("utf-8", "surrogateescape")
    return paint_diff(text, colours_for(True, env)).encode("utf-8", "surrogateescape")


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Translate and write; nothing is written if anything is wrong."""
    inputs = read_inputs(args, env)
    translation = inputs.translate()
    result = translation.domain_xml
    if args.diff:
        result = unified_diff(inputs.domain_xml, result, inputs.domain_name)
    to_stdout = args.output in (None, "-")
    files = {} if to_stdout else {args.output: result}
    if args.plan:
        files[args.plan] = (json.dumps(plan_document(translation), indent=2) + "\n").encode()
    write_all_atomically(files)
    tell_notes(translation.notes, env)
    if to_stdout:
        write_stdout(_coloured(result, env) if args.diff and sys.stdout.isatty() else result)
    return 0
