"""Loading the modules of drivers."""

from __future__ import annotations

import os
import shutil
import subprocess

from launcherkit.errors import NotInstalled
from launcherkit_plugin.host.drivers import Sysfs
from launcherkit_plugin.model.errors import NO_VFIO_DRIVER

VFIO_PCI = "vfio-pci"
"""The VFIO driver that fits every function."""

LOAD_SECONDS = 60.0

_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
"""Where modprobe is; not every user has this in PATH."""


def require_driver(name: str, sysfs: Sysfs) -> None:
    """Load a driver, ``vfio-pci``, unless it is loaded.

    Raises:
        NO_VFIO_DRIVER: it could not be loaded, or the host is not this machine.
    """
    if sysfs.has_driver(name):
        return
    if os.path.realpath(sysfs.root) != "/":
        raise _not_loaded(name, "modules can only be loaded on this machine, and --host names another one")
    modprobe(name)
    if not sysfs.has_driver(name):
        raise NO_VFIO_DRIVER(
            f"there is no driver {name} after its module was loaded",
            f"See the kernel's log (dmesg), and check that the kernel has the module: modinfo {name}",
            driver=name,
        )


def modprobe(name: str) -> None:
    """Load a module with ``modprobe``.

    Raises:
        NO_VFIO_DRIVER: modprobe fails or isn't installed.
    """
    program = shutil.which("modprobe", path=f"{os.environ.get('PATH', os.defpath)}:{_SBIN}")
    if program is None:
        raise _not_loaded(name, "modprobe is not installed")
    try:
        done = subprocess.run(  # noqa: S603  # no shell; the name is behind a --
            [program, "--", name], stdin=subprocess.DEVNULL, capture_output=True, timeout=LOAD_SECONDS, check=False
        )
    except OSError as problem:
        raise _not_loaded(name, f"modprobe can't be started: {problem.strerror or problem}") from problem
    except subprocess.TimeoutExpired as problem:
        raise _not_loaded(name, f"modprobe has not ended within {LOAD_SECONDS:g} s") from problem
    if done.returncode != 0:
        complaint = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise _not_loaded(name, complaint or f"modprobe ended with exit code {done.returncode}")


def _not_loaded(name: str, reason: str) -> NotInstalled:
    return NO_VFIO_DRIVER(
        f"the driver {name} is not loaded and can't be: {reason}",
        f"On the node: modprobe {name}; and for every boot: echo {name} > /etc/modules-load.d/vfio.conf",
        driver=name,
    )
