"""The command ``launcherkit-lab``, also as ``python -m launcherkit_lab``."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from launcherkit_lab.boot import modules
from launcherkit_lab.conformance.cdi import FOLDER as CDI
from launcherkit_lab.description import DescriptionError, read_description, ready
from launcherkit_lab.driver.build import CannotBuild
from launcherkit_lab.faults import FAULTS, FILE, IMPOSSIBLE, NEEDS_MODULE, NotInMachine, make, recover
from launcherkit_lab.machine import SHARE
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
  launcherkit-lab fault unpowered gpu0.0
  launcherkit-lab recover gpu0
  launcherkit-lab down

{CACHE} names the folder in which the kernel is kept, ~/.cache/launcherkit/kernel by default; the machine's
own files are in its folder up.

exit codes: 0 done, 2 usage, 65 a machine that can't be as it is described, or a fault that it can't have, 69 no
machine, or none can be made here; run and shell: that of the command; check: 1 if a must is not met"""
_CHECK = """\
Tries the expectations of device plugins, one after the other: a double of the kubelet is started, then your plugin by
its COMMAND or as its containers, and what it lists, hands out and gives back is held against the kernel's own files.
Functions are taken from their drivers and the plugin is killed, so do it as root in a machine of the lab, or on one
that nobody uses."""
_CHECK_EPILOG = f"""\
examples:
  {NAME} up --machine rtx2
  {NAME} run -- {NAME} check --resource example.com/GPU --select 1234:1111 --junit /run/machine/junit.xml \\
      -- my-plugin --its-options
  {NAME} run -- {NAME} check --resource example.com/GPU --select 1234:1111 \\
      --manifest daemonset.yaml --image my-plugin.tar
  {NAME} run -- {NAME} check --only DP7 --resource example.com/GPU --select 1234:1111 -- my-plugin --its-options

`{NAME} expectations` lists them with their sources. What is not met is reported with what was seen, the end of the
plugin's log, and the command that tries it alone.

exit codes: 0 every must is met or skipped, 1 one is not or could not be tried, 2 usage, 65 a manifest or an image that
can't be started here, 69 it can't begin"""

_CHECK_DRA = """\
Tries the expectations of drivers for Dynamic Resource Allocation: your driver is started by its COMMAND or as its
containers, its slices are read from the API server, claims are made there and given its devices, and it is called as by
a kubelet, and killed. The user of the kubeconfig has to be allowed to read Nodes, and to read and delete ResourceSlices
and create, allocate and delete ResourceClaims; with --manifest also to make a token of the driver's ServiceAccount."""
_CHECK_DRA_EPILOG = f"""\
examples:
  {NAME} check-dra --kubeconfig admin.conf --node node-1 -- my-driver --its-options
  {NAME} check-dra --kubeconfig admin.conf --node node-1 --only DRA9 -- my-driver --its-options
  {NAME} check-dra --kubeconfig admin.conf --node node-1 --manifest daemonset.yaml --image my-driver.tar

exit codes: 0 every must is met or skipped, 1 one is not or could not be tried, 2 usage, 65 a manifest or an image that
can't be started here, 69 it can't begin"""


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
    faults = "".join(f"\n  {name:{max(map(len, FAULTS))}}  {fault.about}" for name, fault in FAULTS.items())
    fault = commands.add_parser(
        "fault",
        help="make a function of the machine go wrong",
        epilog=f"faults:{faults}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    fault.add_argument("fault", metavar="FAULT", choices=[*FAULTS, *IMPOSSIBLE], help="see below")
    fault.add_argument("function", metavar="FUNCTION", help="by its name, such as gpu0.0")
    fault.add_argument("--file", default=FILE, help=f"for hanging: which file of the function (default: {FILE})")
    fault.set_defaults(run=_fault)
    well = commands.add_parser("recover", help="make a card be as the machine says again")
    well.add_argument("card", metavar="CARD", help="by its name, such as gpu0; nobody may have it open")
    well.set_defaults(run=_recover)
    commands.add_parser("machines", help="list the ready machines").set_defaults(run=_machines)
    commands.add_parser("expectations", help="list what check tries, with sources").set_defaults(run=_expectations)
    _declare_check(commands.add_parser("check", help="try a device plugin on the machine that this runs in"))
    _declare_check_dra(commands.add_parser("check-dra", help="try a DRA driver, beside an API server"))
    return made


def _declare_check(check: argparse.ArgumentParser) -> None:
    check.description, check.epilog = _CHECK, _CHECK_EPILOG
    check.formatter_class = argparse.RawDescriptionHelpFormatter
    check.add_argument(
        "--resource", action="append", required=True, metavar="NAME", help="a resource that it registers; repeatable"
    )
    check.add_argument(
        "--select",
        action="append",
        required=True,
        type=_model,
        metavar="VENDOR:DEVICE",
        help="the functions that it is to offer, 1234:1111; repeatable",
    )
    check.add_argument(
        "--variable-prefix",
        default="PCI_RESOURCE",
        type=lambda text: text.removesuffix("_"),
        metavar="PREFIX",
        help="what the variable with a container's addresses begins with (default: %(default)s, KubeVirt's)",
    )
    check.add_argument("--pods", type=int, default=100, metavar="N", help="how many come and go (default: %(default)s)")
    check.add_argument(
        "--kills", type=int, default=20, metavar="N", help="of the plugin meanwhile (default: %(default)s)"
    )
    _declare_run(check)
    check.set_defaults(run=_check)


def _declare_run(check: argparse.ArgumentParser) -> None:
    """What all suites take."""
    check.add_argument(
        "--manifest",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="of the driver's DaemonSet, with its ConfigMaps, in place of COMMAND: runc starts its containers",
    )
    check.add_argument(
        "--image",
        action="append",
        default=[],
        type=_image,
        metavar="[NAME=]ARCHIVE",
        help="their image, by `docker save` or as an OCI archive; with NAME that of one container",
    )
    check.add_argument(
        "--container", action="append", default=[], metavar="NAME", help="only this one of several; repeatable"
    )
    check.add_argument(
        "--only", action="append", default=[], metavar="N", help="an expectation by its number; repeatable"
    )
    check.add_argument(
        "--skip", action="append", default=[], metavar="N", help="an expectation that isn't to be tried; repeatable"
    )
    check.add_argument(
        "--kubelet-dir", type=Path, metavar="FOLDER", default=Path("/var/lib/kubelet"), help="default: %(default)s"
    )
    check.add_argument("--cdi-dir", type=Path, metavar="FOLDER", default=CDI, help="default: %(default)s")
    check.add_argument(
        "--health-seconds", type=float, default=10, metavar="S", help="till health has changed (default: %(default)s)"
    )
    check.add_argument("--patience", type=float, default=120, metavar="S", help="for all else (default: %(default)s)")
    check.add_argument("--json", type=Path, metavar="FILE", help="the report for programs")
    check.add_argument("--junit", type=Path, metavar="FILE", help="the report for CI")
    log = (SHARE if SHARE.is_dir() else Path()) / "driver.log"
    check.add_argument("--log", type=Path, metavar="FILE", default=log, help="all it says (default here: %(default)s)")
    check.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="starts the driver")


def _declare_check_dra(check: argparse.ArgumentParser) -> None:
    check.description, check.epilog = _CHECK_DRA, _CHECK_DRA_EPILOG
    check.formatter_class = argparse.RawDescriptionHelpFormatter
    check.add_argument("--kubeconfig", type=Path, required=True, metavar="FILE", help="of the API server")
    check.add_argument("--node", required=True, metavar="NAME", help="the Node whose devices the driver publishes")
    check.add_argument("--namespace", default="default", metavar="NAME", help="for claims (default: %(default)s)")
    _declare_run(check)
    check.set_defaults(run=_check_dra)


def _model(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{4}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not VENDOR:DEVICE, as 10de:2204")
    return text


def _image(text: str) -> tuple[str, Path]:
    """The container's name, empty for all that have none of their own, and the archive."""
    name, equals, archive = text.partition("=")
    return (name, Path(archive)) if equals and "/" not in name else ("", Path(text))


def _check(arguments: argparse.Namespace) -> int:
    from launcherkit_lab.check import check  # gRPC takes its time, and only this needs it

    return _tried(check, arguments)


def _check_dra(arguments: argparse.Namespace) -> int:
    from launcherkit_lab.check_dra import check_dra

    return _tried(check_dra, arguments)


def _tried(check: Callable[[argparse.Namespace, str], int], arguments: argparse.Namespace) -> int:
    from launcherkit_lab.api import ApiError
    from launcherkit_lab.check import CannotWrite
    from launcherkit_lab.conformance.driver import CannotStartDriver
    from launcherkit_lab.conformance.node import CannotServe
    from launcherkit_lab.conformance.trial import UnknownNumber
    from launcherkit_lab.container.image import BadImage
    from launcherkit_lab.container.objects import BadManifest

    arguments.words = _command(arguments.words)
    manifest = arguments.manifest
    if bool(arguments.words) == bool(manifest):
        command = arguments.command
        return _usage(f"{command} takes the command that starts the driver, after --, or its --manifest, and not both")
    if manifest and not arguments.image:
        return _usage("--manifest takes the image of its containers: --image ARCHIVE")
    try:
        return check(arguments, NAME)
    except UnknownNumber as error:
        return _usage(str(error))
    except (BadImage, BadManifest) as error:
        raise DescriptionError(str(error)) from error
    except (ApiError, CannotWrite, CannotStartDriver, CannotServe) as error:
        raise CannotStart(str(error)) from error


def _expectations(arguments: argparse.Namespace) -> int:
    from launcherkit_lab.check import list_expectations

    return list_expectations()


def _command(words: list[str]) -> list[str]:
    return words[1:] if words[:1] == ["--"] else words


def _usage(problem: str) -> int:
    print(f"{NAME}: error: {problem}", file=sys.stderr)
    return USAGE


def _session() -> Session:
    return Session(cache_folder(os.environ) / "up")


def _up(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    description = read_description(arguments.machine)
    if lack := lacks(bool(modules(description))):
        raise CannotStart(lack)

    def report(line: str) -> None:
        print(f"{NAME}: {time.monotonic() - began:5.1f} s  {line}", file=sys.stderr, flush=True)

    session = _session()
    session.up(description, cache_folder(os.environ), report)
    report(f"up; its folder is {session.folder}, /run/machine in it")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    words = _command(arguments.words)
    if not words:
        return _usage(f"run takes a command: {NAME} run -- lspci")
    return _session().run(words, Path.cwd(), sys.stdout.buffer, sys.stderr.buffer)


def _shell(arguments: argparse.Namespace) -> int:
    return _session().shell(Path.cwd())


def _fault(arguments: argparse.Namespace) -> int:
    if arguments.fault in NEEDS_MODULE and (lack := lacks(True)):
        raise CannotStart(lack)
    make(_session(), arguments.fault, arguments.function, arguments.file, cache_folder(os.environ))
    return 0


def _recover(arguments: argparse.Namespace) -> int:
    recover(_session(), arguments.card)
    return 0


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
    except (DescriptionError, NotInMachine) as error:
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
