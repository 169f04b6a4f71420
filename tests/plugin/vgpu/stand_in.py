"""The stand-in of NVML in C, nvml.c: its library, and the file that has the state of its cards."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

needed = (
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here, which makes the stand-in of NVML"),
)
"""Marks of what uses it; its tests need ``pynvml`` as well."""

CARD, OTHER, OLD = "0000:41:00.0", "0000:c1:00.0", "0000:01:00.0"


class StandIn:
    """A folder with the library and the file that has the state of its cards."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.state = folder / "nvml"
        self.env = {"LD_LIBRARY_PATH": str(library), "NVML_STATE": str(self.state)}
        self.has(f"card {CARD} 1 1 1 1", f"card {OTHER} 1 0 0 0", f"card {OLD} 0 0 0 0")

    def has(self, *lines: str) -> None:
        self.state.write_text("".join(f"{line}\n" for line in lines))

    def add(self, line: str) -> None:
        """What happens while processes use it."""
        with self.state.open("a") as file:
            file.write(f"{line}\n")

    @property
    def lines(self) -> list[str]:
        return self.state.read_text().splitlines()


def compiled(folder: Path) -> Path:
    """The folder with the library, made there."""
    source, made = Path(__file__).parent / "nvml.c", folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", made, source], check=True)
    return folder
