"""``launcherkit-plugin completion``: prints a script for shell completion."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from launcherkit.process.completion import SHELLS, completion_script
from launcherkit.process.edge import write_stdout

DESCRIPTION = """\
Print a script by which a shell completes commands, options, their values and files. Printing it needs shtab,
from the extra `completion`; the script itself needs nothing."""

EPILOG = """\
examples:
  eval "$(launcherkit-plugin completion bash)"      in ~/.bashrc
  eval "$(launcherkit-plugin completion zsh)"       in ~/.zshrc, after compinit
  launcherkit-plugin completion fish > ~/.config/fish/completions/launcherkit-plugin.fish"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    parser.add_argument("shell", choices=SHELLS, metavar="|".join(SHELLS), help="which shell the script is for")


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Print the script.

    Raises:
        COMPLETION_NOT_INSTALLED: shtab is missing.
    """
    write_stdout(completion_script(args.program, args.shell, env).encode())
    return 0
