"""``launcherkit golden``: check golden cases, or record their results."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence

from launcherkit.atomic import write_atomically
from launcherkit.colour import PLAIN, Colours, colours_for, paint_diff
from launcherkit.errors import EX_USAGE, LauncherkitError, counted
from launcherkit.golden.case import case_named, find_cases, read_case
from launcherkit.golden.run import CaseResult, check_case, json_report, junit_report
from launcherkit.golden.update import CaseInputs, Update, new_case, update_case
from launcherkit.inputs import HOST_SOURCES
from launcherkit.process.edge import print_message, stdout_is_terminal, write_stdout
from launcherkit.request.envfile import read_env_file
from launcherkit.request.fields import read_file

DESCRIPTION = """\
Golden cases: directories of inputs with the document, or the error, that they should give. Each is run through
`launcherkit translate`, with its own variables, VMI and host, and nothing from this machine.

A case is a directory in DIR with case.yaml (description; env; policy; flags) and domain.xml; optionally vmi.json or
vmi.yaml and host.json (from `launcherkit snapshot`); and expected.xml or expected.error, and expected.plan.json.
XML is compared in its canonical form. Directories that begin with . or _ are not cases."""

EPILOG = """\
examples:
  launcherkit golden check tests/golden                       in CI: exits with 1 if anything differs
  launcherkit golden check tests/golden --case two-gpus
  launcherkit golden check tests/golden --junit report.xml    for a CI that shows test reports
  launcherkit golden update tests/golden --case two-gpus      then look at it with git diff
  launcherkit golden list tests/golden | cut -f1
  launcherkit golden new tests/golden two-gpus --domain vm.xml --vmi vmi.json --description "Two GPUs on one node.\""""

_OK, _DIFFERS = 0, 1


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments; none has a variable, which could make CI check less than it seems to."""
    actions = parser.add_subparsers(dest="action", metavar="check|update|list|new", required=True)
    texts = {
        "check": "run the cases and compare; exits with 1 if one differs",
        "update": "record the cases' current results, for review; refused if CI=true",
        "list": "the cases, each with a tab and its description",
        "new": "create a case from a domain, a VMI, this container's variables and this host, and record its result",
    }
    for name, text in texts.items():
        action = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        action.add_argument("directory", metavar="DIR", help="the directory above the cases")
        if name == "new":
            _add_inputs(action)
            continue
        action.add_argument("--case", metavar="NAME", action="append", help="run only this one; may be repeated")
        if name == "check":
            action.add_argument("--json", action="store_true", help="report as JSON")
            action.add_argument("--junit", metavar="FILE", help="write a JUnit report, too; it is replaced")
        if name == "update":
            action.add_argument(
                "--plan", action="store_true", help="write expected.plan.json even if there is none yet"
            )


def _add_inputs(action: argparse.ArgumentParser) -> None:
    action.add_argument("name", metavar="NAME", help="name of the case: a folder in DIR that doesn't exist yet")
    action.add_argument("--description", required=True, metavar="TEXT", help="what the case shows, a sentence")
    action.add_argument("--domain", required=True, metavar="FILE", help="the domain's XML")
    action.add_argument("--vmi", metavar="FILE", help="the VMI or its VirtualMachine, JSON or *.yaml")
    action.add_argument(
        "--env-file",
        metavar="FILE",
        help="the container's environment; default: this process's. Only variables of devices are taken",
    )
    action.add_argument(
        "--host",
        metavar=HOST_SOURCES,
        default="/",
        help="where host facts come from; default: this machine",
    )


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Run the action; its report goes to standard output when it is complete.

    Raises:
        BAD_GOLDEN_CASE: the directory has no cases, or none with a requested name.
        UnreadableFile, UnwritableFile: a file of a case.
    """
    if args.action in ("update", "new") and env.get("CI", "") not in ("", "0", "false"):
        print_message(
            "error", f"golden {args.action}: CI={env['CI']} is set; a person must review expected results", env
        )
        print_message(
            "help", "Update on your own machine and commit what changed; CI runs `launcherkit golden check`.", env
        )
        return EX_USAGE
    if args.action == "new":
        return _new(args, env)
    names = find_cases(args.directory)
    directories = [case_named(args.directory, names, name) for name in args.case or names]
    actions: dict[str, Callable[[], tuple[str, int]]] = {
        "check": lambda: _check(directories, args, env),
        "update": lambda: _update(directories, args.plan),
        "list": lambda: _list(directories),
    }
    report, code = actions[args.action]()
    write_stdout(report.encode("utf-8", "surrogateescape"))
    return code


def _check(directories: list[str], args: argparse.Namespace, env: Mapping[str, str]) -> tuple[str, int]:
    results = [check_case(directory) for directory in directories]
    if args.junit:
        write_atomically(args.junit, junit_report(results))
    code = _OK if all(result.ok for result in results) else _DIFFERS
    if args.json:
        return json.dumps(json_report(results), indent=2) + "\n", code
    return _text_report(results, colours_for(stdout_is_terminal(), env)), code


def _text_report(results: Sequence[CaseResult], colours: Colours) -> str:
    lines = [f"{colours.good('ok')}       {one.name}\n" if one.ok else _differing(one, colours) for one in results]
    bad = sum(not result.ok for result in results)
    lines.append(f"{counted(len(results), 'case')}: {len(results) - bad} as expected, {bad} not\n")
    return "".join(lines)


def _differing(result: CaseResult, colours: Colours = PLAIN) -> str:
    parts = []
    for difference in result.differences:
        parts.append(f"{colours.bad('DIFFERS')}  {result.name}: {difference.summary}\n")
        if difference.diff:
            parts.append(paint_diff(difference.diff.rstrip("\n") + "\n", colours))
    return "".join(parts)


def _update(directories: list[str], plan: bool) -> tuple[str, int]:
    updates = [update_case(directory, plan=plan) for directory in directories]
    bad = sum(not update.result.ok for update in updates)
    changed = sum(bool(update.written or update.removed) for update in updates)
    summary = f"{counted(len(updates), 'case')}: {changed} updated, {bad} still not as expected\n"
    return "".join(map(_updated, updates)) + summary, _DIFFERS if bad else _OK


def _updated(update: Update) -> str:
    name = update.result.name
    lines = [f"wrote    {name}: {file}\n" for file in update.written]
    lines += [f"removed  {name}: {file}\n" for file in update.removed]
    if not update.result.ok:
        lines.append(_differing(update.result))
    return "".join(lines) or f"left     {name}\n"


def _new(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    inputs = CaseInputs(
        args.description,
        read_file(args.domain),
        read_file(args.vmi) if args.vmi else None,
        bool(args.vmi) and args.vmi.endswith((".yaml", ".yml")),
        read_env_file(args.env_file).variables if args.env_file else env,
        None if args.host == "none" else args.host,
    )
    written = new_case(args.directory, args.name, inputs)
    update = update_case(os.path.join(args.directory, args.name))
    report = "".join(f"wrote    {args.name}: {file}\n" for file in written) + _updated(update)
    write_stdout(report.encode("utf-8", "surrogateescape"))
    if update.result.ok:
        print_message("note", "the result was recorded as expected: review it before you commit it", env)
    return _OK if update.result.ok else _DIFFERS


def _list(directories: list[str]) -> tuple[str, int]:
    return "".join(f"{os.path.basename(directory)}\t{_described(directory)}\n" for directory in directories), _OK


def _described(directory: str) -> str:
    try:
        return read_case(directory).yaml.description
    except LauncherkitError as error:
        return f"({error.message})"
