"""Man pages in what is built, made from the parsers: ``share/man/man1`` of a wheel, the folder ``man`` of an sdist.

An sdist has the pages of its program. From a checkout they are made by the Python that builds. Where that lacks what
the commands import, as with build isolation, there are none, and a warning says so; `./dev build` has all of it.

Both distributions have this hook; it is here because the sdist of this one has nothing from above.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_CHECKOUT = Path(__file__).resolve().parents[1]


class ManPages(BuildHookInterface[Any]):
    """Adds the pages of the ``program`` that the hook's own table in pyproject.toml names."""

    _made: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        folder = Path(self.root, "man")
        if not folder.is_dir():
            self._made = tempfile.TemporaryDirectory()
            folder = Path(self._made.name)
            done = _make(self.config["program"], folder)
            if done.returncode:
                self.app.display_warning(f"no man pages: {done.stderr.strip().splitlines()[-1]}")
        key, place = ("shared_data", "share/man/man1") if self.target_name == "wheel" else ("force_include", "man")
        build_data[key].update({str(page): f"{place}/{page.name}" for page in sorted(folder.glob("*.1"))})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  # of hatchling
        if self._made is not None:
            self._made.cleanup()


def _make(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "release.man", program, str(folder)]
    return subprocess.run(command, cwd=_CHECKOUT, capture_output=True, text=True, check=False)  # noqa: S603
