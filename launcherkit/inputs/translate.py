"""The pipeline on files: the arguments of ``launcherkit translate``, and what it does."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping

from launcherkit.atomic import is_special, write_all_atomically
from launcherkit.colour import colours_for, paint_diff
from launcherkit.diff import unified_diff
from launcherkit.errors import UnwritableFile
from launcherkit.inputs.arguments import add_input_arguments, read_inputs
from launcherkit.process.edge import stdout_is_terminal, tell_notes, write_stdout
from launcherkit.process.options import switch_from, text_from
from launcherkit.show.documents import plan_document


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
    group.add_argument(
        "--plan",
        metavar="FILE",
        default=text_from("--plan", env),
        help="write the plan there, as JSON; - is standard output",
    )
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
    _check_outputs(args.output, args.plan)
    inputs = read_inputs(args, env)
    translation = inputs.translate()
    result = translation.domain_xml
    if args.diff:
        result = unified_diff(inputs.domain_xml, result, inputs.domain_name)
    printed = _coloured(result, env) if args.diff and stdout_is_terminal() else result
    files = {} if args.output in (None, "-") else {args.output: result}
    if args.plan:
        plan = (json.dumps(plan_document(translation), indent=2) + "\n").encode()
        if args.plan == "-":
            printed = plan
        else:
            files[args.plan] = plan
    write_all_atomically(files)
    tell_notes(translation.notes, env)
    if "-" in (args.output or "-", args.plan):
        write_stdout(printed)
    return 0


def _check_outputs(output: str | None, plan: str | None) -> None:
    """Check that the document and the plan go to different places.

    Raises:
        UnwritableFile: names the place.
    """
    if plan is None:
        return
    to_stdout = output in (None, "-")
    if plan == "-" and to_stdout:
        where, remedy = "standard output", "Give --output FILE, or a file for the plan."
    elif plan != "-" and output is not None and not to_stdout and _is_one_file(output, plan):
        where, remedy = plan, "Give each a file of its own."
    else:
        return
    raise UnwritableFile(f"{where}: it can't have both the document and the plan", remedy, file=where)


def _is_one_file(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other) and not is_special(one)
