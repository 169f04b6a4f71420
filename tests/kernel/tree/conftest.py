"""What the guests of these tests are made of: they run on this machine, not in the one with the IOMMU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcherkit_lab.packages import CannotFetch, cache_folder, fetch
from tests.kernel.inside import cannot_be_made
from tests.kernel.tree.seen import first_file_system
from tests.kernel.tree.vmlinux import vmlinux
from tests.libvirt.conftest import capabilities, libvirt
from tests.tiers import find_program

__all__ = ["capabilities", "libvirt"]


@pytest.fixture(scope="session")
def linux(request: pytest.FixtureRequest) -> Path:
    cache = cache_folder(os.environ)
    try:
        return vmlinux(fetch(cache), cache)
    except (CannotFetch, OSError) as error:
        cannot_be_made(request.config, error)


@pytest.fixture(scope="session")
def initrd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("guest") / "initrd"
    path.write_bytes(first_file_system(Path(find_program("busybox") or "busybox")))
    return path
