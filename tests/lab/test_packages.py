"""The machine's kernel, as packages of several releases have it."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from launcherkit_lab.driver import iommufd
from launcherkit_lab.driver.build import CannotBuild
from launcherkit_lab.packages import Kernel

WITHOUT = "CONFIG_VFIO=m\n# CONFIG_IOMMUFD is not set\n"


def modules(folder: Path, release: str, config: str | None) -> Path:
    found = folder / "lib" / "modules" / release
    found.mkdir(parents=True)
    if config is not None:
        (found / "config").write_text(config)
    return found


def test_the_image_is_beside_the_modules_or_in_boot(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "7.2.13+deb14-amd64")
    folder = modules(tmp_path, kernel.release, None)
    assert kernel.image == tmp_path / "boot" / "vmlinuz-7.2.13+deb14-amd64"
    (folder / "vmlinuz").touch()
    assert kernel.image == folder / "vmlinuz"


@pytest.mark.parametrize(
    ("release", "config", "expected"),
    [
        ("7.2.13+deb14-amd64", WITHOUT, True),
        ("7.2.13+deb14-amd64", "CONFIG_IOMMUFD=m\n", False),
        ("7.2.13+deb14-amd64", None, False),
        ("6.12.107+deb13-amd64", WITHOUT, False),
    ],
)
def test_iommufd_is_added_to_a_new_kernel_without_it(
    tmp_path: Path, release: str, config: str | None, expected: bool
) -> None:
    assert iommufd.is_missing(modules(tmp_path, release, config)) is expected


def test_what_is_built_later_knows_of_iommufd_and_a_failure_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers that didn't would give other modules another layout of VFIO's structures."""
    headers = tmp_path / "linux-headers-7.2"
    for name in ("config/auto.conf", "generated/autoconf.h"):
        path = headers / "include" / name
        path.parent.mkdir(parents=True)
        path.touch()
    (headers / "Makefile").touch()
    program = tmp_path / "bin" / "make"  # not everybody has one; the kernel tier's tests build with the real one
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho no compiler\nexit 2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    sources = tmp_path / "linux-source-7.2.tar.xz"
    with tarfile.open(sources, "w:xz") as archive:
        for name in ("lib/interval_tree.c", "drivers/iommu/iommufd/Makefile", "drivers/net/other.c"):
            archive.addfile(tarfile.TarInfo(f"linux-source-7.2/{name}"), io.BytesIO())
    with pytest.raises(CannotBuild, match="no compiler"):
        iommufd.add(tmp_path / "modules", headers, sources, tmp_path / "build")
    assert "CONFIG_IOMMUFD=m\nCONFIG_VFIO_DEVICE_CDEV=y\n" in (headers / "include/config/auto.conf").read_text()
    assert "#define CONFIG_IOMMUFD_MODULE 1\n" in (headers / "include/generated/autoconf.h").read_text()
    assert not (tmp_path / "build/drivers/net").exists()
