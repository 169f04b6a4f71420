"""Builds the lab's kernel modules against a kernel's headers, wherever those were unpacked."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

NAME = "launcherkit_mdev"
"""The mdev driver."""
VFS = "launcherkit_vgpu_vfs"
"""The VFIO driver of virtual functions that are vGPUs."""
IDS = "launcherkit_ids"
"""Other vendor and device IDs for functions."""
FAULTS = "launcherkit_faults"
"""Drivers that refuse a function, and files that hang."""
_INCLUDE = re.compile(r"^include (/usr/src/\S+)$", re.MULTILINE)
_SECONDS = 900


class CannotBuild(Exception):
    """A module does not compile here; the text is the compiler's."""


def build(headers: Path, cache: Path, name: str = NAME) -> Path:
    """A module's ``.ko`` for a kernel; made in a second or two where the cache has none of this source.

    ``headers`` is the kernel's ``usr/src/linux-headers-*``, below the folder into which its packages were unpacked.

    Raises:
        CannotBuild: with the end of what make said.
    """
    source = Path(__file__).with_name(f"{name}.c")
    of = hashlib.sha256(f"{headers.name}\n".encode() + source.read_bytes()).hexdigest()[:16]
    module = cache / "driver" / of / f"{name}.ko"
    if module.exists():
        return module
    module.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=module.parent) as scratch:
        made = _make(headers, source, Path(scratch))
        os.replace(made, module)
    return module


def _make(headers: Path, source: Path, folder: Path) -> Path:
    shutil.copy(source, folder)
    (folder / "Kbuild").write_text(f"obj-m := {source.stem}.o\nccflags-y := -Wall -Werror\n")
    make(headers, folder)
    return folder / f"{source.stem}.ko"


def make(headers: Path, folder: Path) -> None:
    """Build the modules that the ``Kbuild`` of a folder names.

    Raises:
        CannotBuild: with the end of what make said.
    """
    settings = ["CC=gcc", "CONFIG_DEBUG_INFO_BTF_MODULES=", f"M={folder}"]  # BTF would need one more program
    settings.append(f"KBUILD_OUTPUT={headers}")  # newer makefiles of Debian say so, by a path that begins at /
    jobs = f"--jobs={os.cpu_count() or 1}"
    command = ["make", jobs, "-C", str(headers), "-f", str(_makefile(headers)), *settings, "modules"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_SECONDS)
    except FileNotFoundError as error:
        raise CannotBuild(f"no {error.filename} here, which the driver is built with") from error
    if done.returncode:
        said = f"{done.stdout}{done.stderr}".strip().splitlines()[-30:]
        raise CannotBuild("\n".join([f"`{' '.join(command)}` failed:", *said]))


def _makefile(headers: Path) -> Path:
    """The makefile that does the work: Debian's includes that of a second package, by a path that begins at ``/``."""
    makefile = headers / "Makefile"
    included = _INCLUDE.search(makefile.read_text()) if not makefile.is_symlink() else None
    return headers.parents[2] / included[1].lstrip("/") if included else makefile
