"""The command ``launcherkit-lab``, also as ``python -m launcherkit_lab``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from launcherkit_lab.description import DescriptionError, read_description, ready
from launcherkit_lab.driver.build import CannotBuild
from launcherkit_lab.packages import CACHE, CannotFetch, cache_folder
from launcherkit_lab.programs import lacks
from launcherkit_lab.qmp import NoMachine
from launcherkit_lab.session import CannotStart, Session

NAME = "launcherkit-lab"
BAD_INPUT, UNAVAILABLE, USAGE, INTERRUPTED = 65, 69, 2, 130
_EPILOG = f"""\
examples:
  launcherkit-lab up --machine rtx2
  launcherkit-lab run -- lspci -nnk
  launcherkit-lab shell
  launcherkit-lab down

{CACHE} names the folder in which the kernel is kept, ~/.cache/launcherkit/kernel by default; the machine's
own files are in its folder up.

exit codes: 0 done, 2 usage, 65 a machine that can't be as it is described, 69 no machine, or none can be made here;
run and shell: that of the command"""


def parser() -> argparse.ArgumentParser:
    """The arguments; each command has the function that does it, ``run``."""
    made = argparse.ArgumentParser(
        prog=NAME,
        description="An emulated machine with an IOMMU, VFIO and SR-IOV, for tests of device plugins without a card.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="start a machine, and leave it running")
    up.add_argument("--machine", metavar="NAME|FILE", default="rtx2", help="a ready one, or YAML (default: rtx2)")
    up.set_defaults(run=_up)
    run = commands.add_parser("run", help="run a command in the machine, in this folder and by this PATH")
    run.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command with its arguments")
    run.set_defaults(run=_run)
    commands.add_parser("shell", help="a shell in the machine").set_defaults(run=_shell)
    commands.add_parser("down", help="end the machine").set_defaults(run=_down)
    commands.add_parser("machines", help="list the ready machines").set_defaults(run=_machines)
    return made


def _session() -> Session:
    return Session(cache_folder(os.environ) / "up")


def _up(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    description = read_description(arguments.machine)
    kinds = {function.kind for card in description.cards for function in card.functions}
    if lack := lacks("mdev-parent" in kinds):
        raise CannotStart(lack)

    def report(line: str) -> None:
        print(f"{NAME}: {time.monotonic() - began:5.1f} s  {line}", file=sys.stderr, flush=True)

    session = _session()
    session.up(description, cache_folder(os.environ), report)
    report(f"up; its folder is {session.folder}, /run/machine in it")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        print(f"{NAME}: error: run takes a command: {NAME} run -- lspci", file=sys.stderr)
        return USAGE
    return _session().run(words, Path.cwd(), sys.stdout.buffer, sys.stderr.buffer)


def _shell(arguments: argparse.Namespace) -> int:
    return _session().shell(Path.cwd())


def _down(arguments: argparse.Namespace) -> int:
    _session().down()
    return 0


def _machines(arguments: argparse.Namespace) -> int:
    names = ready()
    width = max(map(len, names))
    for name in names:
        print(f"{name:{width}}  {read_description(name).about}")
    return 0


def main() -> int:
    """The entry point of the console script."""
    arguments = parser().parse_args()
    try:
        code: int = arguments.run(arguments)
        return code
    except DescriptionError as error:
        problem, code = str(error), BAD_INPUT
    except (NoMachine, CannotStart, CannotFetch, CannotBuild, OSError) as error:
        problem, code = str(error), UNAVAILABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    for line in problem.splitlines():
        print(f"{NAME}: error: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
