"""iommufd for a kernel that was configured without it, as Debian's are: built from the distribution's own sources.

It changes structures of VFIO, so VFIO's modules are built again with it, and so is whatever else is built against these
headers from then on.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from launcherkit_lab.driver.build import make

_SETTINGS = {"CONFIG_IOMMUFD": "m", "CONFIG_VFIO_DEVICE_CDEV": "y", "CONFIG_INTERVAL_TREE_SPAN_ITER": "y"}
_SOURCES = ("drivers/iommu/", "drivers/vfio/", "lib/interval_tree.c")
_MODULES = ("iommufd", "vfio", "vfio_iommu_type1", "vfio-pci-core", "vfio-pci", "mdev")
_FROM = (7, 0)
"""Older kernels than those that this was tried with stay as they are."""


def is_missing(modules: Path) -> bool:
    """Whether the kernel of ``lib/modules/<release>`` lacks iommufd, and can be given it."""
    config = modules / "config"
    version = tuple(int(part) for part in modules.name.split(".")[:2])
    return version >= _FROM and config.exists() and "# CONFIG_IOMMUFD is not set\n" in config.read_text()


def add(modules: Path, headers: Path, sources: Path, folder: Path) -> None:
    """Build it, and put it where depmod prefers it to the kernel's own modules.

    Args:
        modules: ``lib/modules/<release>``.
        headers: ``usr/src/linux-headers-*``; they are changed.
        sources: the kernel's, ``linux-source-*.tar.xz``.
        folder: to build in.

    Raises:
        CannotBuild: with the end of what make said.
    """
    _configure(headers)
    with tarfile.open(sources, "r|xz") as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            if member.isfile() and name.startswith(_SOURCES) and (content := archive.extractfile(member)):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content.read())
    iommufd = folder / "drivers" / "iommu" / "iommufd"
    # The kernel has this file too, but not the part that iommufd uses.
    shutil.copy(folder / "lib" / "interval_tree.c", iommufd)
    with open(iommufd / "Makefile", "a") as makefile:
        makefile.write("iommufd-y += interval_tree.o\nCFLAGS_interval_tree.o := -D__DISABLE_EXPORTS\n")
    (folder / "Kbuild").write_text("obj-m := drivers/iommu/iommufd/ drivers/vfio/\n")
    make(headers, folder)
    _export(folder / "Module.symvers", headers / "Module.symvers")
    updates = modules / "updates"
    updates.mkdir()
    for path in folder.rglob("*.ko"):
        if path.stem in _MODULES:
            shutil.copy(path, updates)


def _configure(headers: Path) -> None:
    """Say it in the kernel's configuration, once for make and once for C."""
    with open(headers / "include" / "config" / "auto.conf", "a") as settings:
        settings.writelines(f"{name}={value}\n" for name, value in _SETTINGS.items())
    with open(headers / "include" / "generated" / "autoconf.h", "a") as header:
        header.writelines(f"#define {name}{'_MODULE' * (value == 'm')} 1\n" for name, value in _SETTINGS.items())


def _export(built: Path, symvers: Path) -> None:
    """Let modules that are built later use what these ones export, each symbol on a line: checksum, name, module."""
    names = {line.split("\t")[1] for line in symvers.read_text().splitlines()}
    with open(symvers, "a") as symbols:
        symbols.writelines(
            line for line in built.read_text().splitlines(keepends=True) if line.split("\t")[1] not in names
        )
