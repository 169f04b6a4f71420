"""The command ``launcherkit``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from launcherkit import __version__
from launcherkit.edge import LOG_FORMAT, LOG_FORMATS, guarded

COMMANDS = {
    "translate": "put the allocated devices into a domain document",
    "define": "the same, and define the domain at libvirt",
    "run": "run one VM to its end: the entrypoint of a launcher pod",
    "templates": "list or print the domain templates that come with launcherkit",
    "explain": "say in words what translate would do and why, or print the page of an error",
    "doctor": "check what would keep a VM from its devices: IOMMU, groups, nodes, memlock and more",
    "snapshot": "write down this host's PCI functions, groups and mdevs as JSON",
    "hook": "serve KubeVirt's hook sidecar or domain hook over gRPC",
    "golden": "check or update golden cases: inputs with the document that is expected",
    "demo": "show the main job on a bundled example host",
}

DESCRIPTION = """\
The last mile between the kubelet's device allocation and libvirt: reads what a device plugin allocated, finds out on
sysfs what it is and which functions belong with it, and puts the right hostdevs into the domain."""

EPILOG = """\
examples:
  launcherkit demo
  launcherkit translate --domain vm.xml --vmi vmi.json > vm-with-gpu.xml
  launcherkit translate --domain vm.xml --vmi vmi.json --diff
  launcherkit explain --domain vm.xml --vmi vmi.json
  launcherkit explain LK204
  launcherkit doctor
  launcherkit snapshot -o host.json

Options can be set by variables: --host by LAUNCHERKIT_HOST, --env-file by LAUNCHERKIT_ENV_FILE, and so on.
exit codes: 0 done, 1 a golden case differs or the doctor found something, 2 usage, 65 bad input,
69 a service is not there, 70 a bug, 78 configuration"""


def main() -> int:
    """The console script."""
    arguments = sys.argv[1:]
    env = {**os.environ, **_log_format(arguments)}
    return guarded(lambda: run(arguments, env), env)


def _log_format(arguments: Sequence[str]) -> dict[str, str]:
    """The flag ``--log-format`` as its variable: it must be known before anything can go wrong."""
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--log-format":
            following = arguments[position + 1] if position + 1 < len(arguments) else ""
            chosen = value if equals else following
            return {LOG_FORMAT: chosen} if chosen in LOG_FORMATS else {}
        if not argument.startswith("-"):
            break
    return {}


def run(arguments: Sequence[str], env: Mapping[str, str]) -> int:
    """Parse the arguments and run the command that they name; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="launcherkit",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"launcherkit {__version__}")
    parser.add_argument(
        "--log-format", choices=LOG_FORMATS, help="how errors and notes are written to standard error (default: text)"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    wanted = next((argument for argument in arguments if argument in COMMANDS), None)
    for name, text in COMMANDS.items():
        command = commands.add_parser(
            name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        if name == wanted:
            module = import_module(f"launcherkit.cli.{name}")
            command.description = module.DESCRIPTION
            command.epilog = module.EPILOG
            module.add_arguments(command, env)
            command.set_defaults(run=module.run)
    parsed = parser.parse_args(arguments)
    code: int = parsed.run(parsed, env)
    return code
