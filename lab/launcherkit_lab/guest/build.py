"""The guest's kernel, compiled from its sources."""

from __future__ import annotations

import subprocess
from pathlib import Path

from launcherkit_lab.programs import find_program

_SOURCES = Path(__file__).parent
_OPTIONS = "-m32 -ffreestanding -fno-pic -fno-stack-protector -fno-asynchronous-unwind-tables -no-pie -nostdlib -O1"
_LINKER = "-Wl,--build-id=none,-n,-Ttext=0x100000,--no-warn-rwx-segments"


class CannotCompile(Exception):
    """The kernel does not compile here; the text says why."""


def build_kernel(folder: Path) -> Path:
    """The kernel, in a folder: 32 bits, no library, 2 KB. What its command line may say is in ``guest.c``.

    Raises:
        CannotCompile: with what the compiler says.
    """
    gcc = find_program("gcc")
    if gcc is None:
        raise CannotCompile("no gcc here, which the guest is compiled with: apt-get install gcc")
    kernel = folder / "kernel"
    sources = [str(_SOURCES / "start.S"), str(_SOURCES / "guest.c")]
    command = [gcc, *_OPTIONS.split(), _LINKER, "-o", str(kernel), *sources]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CannotCompile(f"the guest doesn't compile: {done.stderr.strip()}")
    return kernel
