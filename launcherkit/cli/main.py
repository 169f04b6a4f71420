"""The command ``launcherkit``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcherkit import __version__
from launcherkit.process.program import Program, main_of, run_program

COMMANDS = {
    "translate": "add the allocated devices to a domain document",
    "define": "the same, and define the domain in libvirt",
    "run": "run one VM to its end: the entrypoint of a launcher pod",
    "templates": "list or print the domain templates that ship with launcherkit",
    "explain": "describe what translate would do and why, or print the page of an error",
    "doctor": "check what would keep devices from a VM: IOMMU, groups, nodes, memlock and more",
    "verify": "hold what a running guest has got against its domain and this host",
    "topology": "draw this host's PCI tree: cards, IOMMU groups, drivers, and what keeps devices from guests",
    "rehearse": "show on which nodes a VM would start, and what its guest would find, before it is scheduled",
    "snapshot": "record this host's PCI functions, groups and mdevs as JSON",
    "hook": "serve KubeVirt's hook sidecar or domain hook over gRPC",
    "golden": "check or update golden cases: inputs with the document that is expected",
    "demo": "show what launcherkit does, on a bundled example host",
    "completion": "print what bash, zsh or fish needs to complete command lines",
}

DESCRIPTION = """\
The last mile between the kubelet's device allocation and libvirt: reads what a device plugin allocated, finds out from
sysfs what it is and which functions belong to it, and puts the right hostdevs into the domain."""

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

exit codes: 0 done, 1 a golden case differs, the doctor found something, a host has changed or a VM starts nowhere,
2 usage, 65 bad input, 69 a service doesn't answer, 70 a bug, 78 configuration"""


PROGRAM = Program("launcherkit", __version__, "launcherkit.cli", DESCRIPTION, EPILOG, COMMANDS)


def main() -> int:
    """The console script."""
    return main_of(PROGRAM)


def run(arguments: Sequence[str], env: Mapping[str, str]) -> int:
    """Parse the arguments and run the command that they name; returns the exit code."""
    return run_program(PROGRAM, arguments, env)
