"""Which VFIO driver of the running kernel a function is bound to, where a rule says ``driver: auto``."""

from __future__ import annotations

import os
from collections.abc import Sequence

from launcherkit.errors import NotInstalled
from launcherkit.host.vfio_aliases import VfioAlias, best_module, vfio_aliases
from launcherkit.model.address import PciAddress
from launcherkit_plugin.host.drivers import Sysfs
from launcherkit_plugin.host.kernel_modules import VFIO_PCI, modprobe
from launcherkit_plugin.model.errors import NO_VFIO_DRIVER

_RELEASE = "proc/sys/kernel/osrelease"


def read_vfio_aliases(root: str) -> tuple[VfioAlias, ...]:
    """The aliases of the running kernel's modules.

    Args:
        root: above ``lib/modules``. Where it has no ``proc``, the kernel is asked for its release.

    Raises:
        NO_VFIO_DRIVER: ``modules.alias`` can't be read.
    """
    try:
        with open(os.path.join(root, _RELEASE), encoding="ascii") as file:
            release = file.read().strip()
    except (OSError, ValueError):
        release = os.uname().release
    path = os.path.join(root, "lib/modules", os.path.basename(release), "modules.alias")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return vfio_aliases(file)
    except OSError as problem:
        raise NO_VFIO_DRIVER(
            f"which VFIO driver a function wants is not known: reading {path}: {problem.strerror or problem}",
            "Mount the node's /lib/modules, in a DaemonSet by the component `variant-drivers`; or say "
            f"`driver: {VFIO_PCI}`.",
            driver="auto",
            file=path,
        ) from problem


def choose_drivers(functions: Sequence[PciAddress], sysfs: Sysfs, *, load: bool) -> dict[PciAddress, str]:
    """The VFIO driver of each function that wants another than vfio-pci.

    Args:
        functions: to be bound.
        sysfs: has their modaliases and the loaded drivers.
        load: load modules that aren't loaded; else their drivers have the names of the modules.

    Raises:
        NO_VFIO_DRIVER: ``modules.alias`` can't be read, or a module can't be loaded.
    """
    aliases = read_vfio_aliases(sysfs.root)
    modules = {address: best_module(sysfs.modalias(address), aliases) for address in functions}
    return {
        address: _driver_of(module, sysfs) if load else sysfs.driver_of_module(module) or module
        for address, module in modules.items()
        if module is not None
    }


def _driver_of(module: str, sysfs: Sysfs) -> str:
    driver = sysfs.driver_of_module(module)
    if driver is None and os.path.realpath(sysfs.root) == "/":
        modprobe(module)
        driver = sysfs.driver_of_module(module)
    if driver is None:
        raise _missing(module)
    return driver


def _missing(module: str) -> NotInstalled:
    return NO_VFIO_DRIVER(
        f"the driver of the module {module}, which a function wants, is not loaded",
        f"On the node: modprobe {module}; and for every boot: echo {module} > /etc/modules-load.d/vfio.conf. Or say "
        f"`driver: {VFIO_PCI}`.",
        driver=module,
    )
