"""``launcherkit explain``: a translation as text, or the page of an error."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from launcherkit.cli.pages import all_codes, all_topics, code_of, read_page, titles
from launcherkit.colour import Colours, colours_for
from launcherkit.errors import EX_USAGE
from launcherkit.inputs import add_input_arguments
from launcherkit.process.arguments import Options
from launcherkit.process.edge import print_message, stdout_is_terminal, write_stdout
from launcherkit.process.terminal import write_text

DESCRIPTION = """\
Describe what `launcherkit translate` would do with the same inputs, and why: which variable answers which request,
what each address is, why each sibling is attached or not, the IOMMU groups with their drivers, the guest's slots. If
that fails, print what is known nonetheless. Or print the page of an error, or of the reference."""

EPILOG = """\
examples:
  launcherkit explain LK204
  launcherkit explain --list | grep IOMMU
  launcherkit explain policy
  launcherkit explain --domain vm.xml --vmi vmi.json
  launcherkit explain --domain vm.xml --vmi vmi.json --env-file env.txt --host host.json
  launcherkit explain --domain vm.xml --vmi vmi.json --tree
  launcherkit explain --domain vm.xml --vmi vmi.json --json"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "page",
        metavar="CODE|TOPIC",
        nargs="?",
        help="an error code such as LK204, or 204, or a page of the reference, such as policy; all other inputs are "
        "ignored",
    )
    add_input_arguments(parser, env, domain_required=False)
    group = parser.add_argument_group("output")
    form = group.add_mutually_exclusive_group()
    Options(form, env).switch("--json", "print the plan as JSON")
    form.add_argument(
        "--tree", action="store_true", help="print only the picture: the host's PCI tree, and the guest's next to it"
    )
    group.add_argument("--list", action="store_true", help="print every error code and topic with its title and exit")


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Print an explanation or a page."""
    colours = colours_for(stdout_is_terminal(), env)
    if args.list:
        write_text("".join(f"{code}\t{title}\n" for code, title in titles().items()), env)
        return 0
    if args.page:
        return _print_page(args.page, env, colours)
    if not args.domain:
        print_message("error", "launcherkit explain: nothing to explain", env)
        print_message(
            "help",
            "Give an error's code or a topic (`launcherkit explain LK204`), or --domain FILE and what translate takes.",
            env,
        )
        return EX_USAGE
    from launcherkit.cli.explanation import explain_translation  # which needs lxml; pages don't

    return explain_translation(args, env, colours)


def _print_page(asked: str, env: Mapping[str, str], colours: Colours) -> int:
    topics, codes = all_topics(), all_codes()
    name = asked.strip().lower()
    if name not in topics:
        name = code_of(asked)
        if name not in codes:
            import difflib

            alike = [code for code in codes if code[:3] == name[:3]]  # of the same hundred
            near = difflib.get_close_matches(name[:40], alike or codes, n=3, cutoff=0.5)
            near += difflib.get_close_matches(asked.lower()[:40], topics, n=1, cutoff=0.5)
            print_message("error", f"launcherkit explain: there is no error or topic {asked[:40]!r}", env)
            some = f"Codes are such as {codes[0]}, topics such as {topics[0]}."
            hint = f"Did you mean {' or '.join(near)}?" if near else some
            print_message("help", f"{hint} `launcherkit explain --list` prints all of them.", env)
            return EX_USAGE
    lines = read_page(name).splitlines()
    shown = "".join((colours.head(line) if line.startswith("#") else line) + "\n" for line in lines)
    write_stdout(shown.encode("utf-8", "backslashreplace"))  # with commands to be copied: no line is broken
    return 0
