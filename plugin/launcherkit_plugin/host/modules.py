"""Loads the module of a VFIO driver where it is not loaded yet."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

from launcherkit_plugin.host.drivers import Sysfs
from launcherkit_plugin.model.errors import NoVfioDriver

LOAD_SECONDS = 60.0

_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
"""Where modprobe is, which is not on everybody's path."""


def require_driver(name: str, sysfs: Sysfs, load: Callable[[str], None]) -> None:
    """See to it that a driver is there.

    Args:
        name: of the driver: ``vfio-pci``.
        sysfs: knows which drivers there are.
        load: loads a module by the name of its driver, as `modprobe`.

    Raises:
        NoVfioDriver: it isn't, and could not be loaded.
    """
    if sysfs.has_driver(name):
        return
    load(name)
    if not sysfs.has_driver(name):
        raise NoVfioDriver(
            f"there is no driver {name} after its module was loaded",
            f"Look in the kernel's log (dmesg), and whether the kernel has it: modinfo {name}",
        )


def modprobe(name: str) -> None:
    """Load a module by ``modprobe``.

    Raises:
        NoVfioDriver: says what modprobe says, or that it isn't there.
    """
    program = shutil.which("modprobe", path=f"{os.environ.get('PATH', os.defpath)}:{_SBIN}")
    if program is None:
        raise _not_loaded(name, "there is no modprobe here")
    try:
        done = subprocess.run(  # noqa: S603  # no shell; the name is behind a --
            [program, "--", name], stdin=subprocess.DEVNULL, capture_output=True, timeout=LOAD_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise _not_loaded(name, str(problem)) from problem
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise _not_loaded(name, said or f"modprobe ended with exit code {done.returncode}")


def no_modprobe(name: str) -> None:
    """For a host that is not this machine.

    Raises:
        NoVfioDriver: always.
    """
    raise _not_loaded(name, "modules can be loaded on this machine alone, and --host says another one")


def _not_loaded(name: str, why: str) -> NoVfioDriver:
    return NoVfioDriver(
        f"the driver {name} is not loaded and can't be: {why}",
        f"On the node: modprobe {name}; and for every boot: echo {name} > /etc/modules-load.d/vfio.conf",
    )
