"""Containers as a runtime makes them, as far as a guest's devices go: variables, and of VFIO's nodes those alone."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from launcherkit_lab.guest.qemu import with_nodes
from tests.libvirt.pod import Pod

_LAUNCHERKIT = "import sys; from launcherkit.cli.main import main; sys.exit(main())"


def guest_in_container(place: Pod, env: Mapping[str, str], nodes: Iterable[str], kernel: Path, folder: Path) -> str:
    """Run a guest by `launcherkit run`, the entrypoint of a container with these devices; gives the guest's console.

    Args:
        env: the variables that the container was given.
        nodes: paths of its device nodes.
        kernel: of the guest, see `launcherkit_lab.guest.build.build_kernel`.
        folder: for its files.
    """
    variables = folder / "env"
    variables.write_text("".join(f"{name}={value}\n" for name, value in env.items()))
    settings = {"name": "vm", "type": "qemu", "memory_mib": "64", "vcpus": "1", "kernel": str(kernel)}
    values = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    process = place.start(
        *("sh", "-ec", with_nodes({node: node for node in nodes}), "sh"),
        *(sys.executable, "-c", _LAUNCHERKIT, "run", "--template", "q35", *values),
        *("--set", "cmdline=pci off", "--env-file", str(variables), "--console"),
    )
    assert process.ends() == 0, process.reported
    return process.printed
