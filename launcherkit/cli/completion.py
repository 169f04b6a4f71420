"""``launcherkit completion``: what a shell needs to complete command lines."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from launcherkit.cli.pages import all_codes, all_topics
from launcherkit.process.completion import SHELLS, completion_script
from launcherkit.process.edge import write_stdout

DESCRIPTION = """\
Print a script by which a shell completes commands, options, their values, files and error codes. Printing it needs
shtab, from the extra `completion`; the script itself needs nothing."""

EPILOG = """\
examples:
  eval "$(launcherkit completion bash)"      in ~/.bashrc
  eval "$(launcherkit completion zsh)"       in ~/.zshrc, after compinit
  launcherkit completion fish > ~/.config/fish/completions/launcherkit.fish"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    parser.add_argument("shell", choices=SHELLS, metavar="|".join(SHELLS), help="which shell the script is for")


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Print the script.

    Raises:
        COMPLETION_NOT_INSTALLED: shtab is missing.
    """
    pages = (*all_codes(), *(code.lower() for code in all_codes()), *all_topics())
    write_stdout(completion_script(args.program, args.shell, env, pages).encode())
    return 0
