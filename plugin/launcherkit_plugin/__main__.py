"""The command ``launcherkit-plugin``, also as ``python -m launcherkit_plugin``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from launcherkit.process.program import Program, main_of, run_program
from launcherkit_plugin import __version__
from launcherkit_plugin.cli.options import warn_of_unknown

COMMANDS = {
    "serve": "the daemon: advertise this node's devices to the kubelet and allocate them",
    "cluster": "talk to the API server for the daemon: Events, KubeVirt's configuration",
    "web": "serve metrics and the page of the node over the network, without rights on the host",
    "page": "print a page of a cluster: what is free on which node, and where a VM would start",
    "webhook": "add containers to pods on clusters that have no admission policies for that",
    "probe": "ask the daemon whether it is alive or ready, for its container's probes",
    "discover": "show what would be advertised, and what would not and why; needs no kubelet",
    "kubevirt-config": "print what KubeVirt must permit for the devices of nodes, as a patch; needs no cluster",
    "claim": "print a ResourceClaim for cards that are close together, with the DeviceClasses that it names",
    "check-config": "read a configuration and report everything that is wrong with it",
    "bind": "bind functions, with their IOMMU groups, to vfio-pci",
    "unbind": "give back what bind has bound",
    "status": "show the drivers of functions, what is recorded of them, and who holds them",
    "vgpu": "list, create and remove vGPUs, and apply or check a layout of them",
    "completion": "print what bash, zsh or fish needs to complete command lines",
}

DESCRIPTION = """\
The device plugin that gives whole GPUs, other PCI devices and vGPUs to virtual machines, and GPUs to containers, on
Kubernetes. launcherkit, in the pod of a virtual machine, reads the variables that it sets."""

EPILOG = """\
examples:
  launcherkit-plugin discover
  launcherkit-plugin serve --auto nvidia
  launcherkit-plugin serve --config plugin.yaml
  launcherkit-plugin check-config plugin.yaml
  launcherkit-plugin status

Options can be set by variables: --config by LAUNCHERKIT_PLUGIN_CONFIG, --kubelet-dir by
LAUNCHERKIT_PLUGIN_KUBELET_DIR, and so on.

exit codes: 0 done, 1 vGPUs differ or the daemon says no, 2 usage, 65 bad input, 69 a service doesn't answer, 70 a bug,
78 configuration"""

PROGRAM = Program(
    "launcherkit-plugin", __version__, "launcherkit_plugin.cli", DESCRIPTION, EPILOG, COMMANDS, warn_of_unknown
)


def main() -> int:
    """The entry point of the console script."""
    return main_of(PROGRAM)


def run(arguments: Sequence[str], env: Mapping[str, str]) -> int:
    """Parse the arguments and run the command that they name; returns the exit code."""
    return run_program(PROGRAM, arguments, env)


if __name__ == "__main__":
    sys.exit(main())
