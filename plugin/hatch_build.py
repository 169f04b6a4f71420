"""What is made when a distribution is built; all ask this file. It is here because the plugin's sdist has nothing
from above.

* Metadata: one version, one address, and READMEs whose links work everywhere. The address is ``[tool.launcherkit]`` of
  the checkout's pyproject.toml. An sdist has the answers in its PKG-INFO, and nobody asks again.
* Man pages and a bill of materials, by ``tools/release``: ``share/man/man1`` and ``.dist-info/sboms`` of a wheel. An
  sdist has them in the folders ``man`` and ``sboms``. From a checkout they are made by the Python that builds. Where
  that lacks what they are made with, as with build isolation, there are none, and a warning says so; `./dev build` has
  all of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_CHECKOUT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
_MADE_BY = {"man": "tools.release.man", "sboms": "tools.release.sbom"}
"""The modules by their folders in an sdist."""


class SharedMetadata(MetadataHookInterface):
    """Fills in what is ``dynamic`` in pyproject.toml.

    The hook's own table there has ``readme``, a file beside it, and may have ``dependencies``, in which ``{version}``
    stands for the version of both.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        address = address_of(_CHECKOUT)
        folder, name = Path(self.root).resolve().relative_to(_CHECKOUT).as_posix(), self.config["readme"]
        version = metadata["version"]
        text = Path(self.root, name).read_text(encoding="utf-8")
        page = address["page"].format(home=address["home"], version=version, path="{path}")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute_links(text, folder, page)}
        metadata["urls"] = {
            "Homepage": address["home"],
            "Documentation": page.format(path="docs/README.md"),
            "Changelog": page.format(path="CHANGELOG.md"),
            "Issues": address["issues"].format(home=address["home"]),
        }
        if "dependencies" in self.config:
            metadata["dependencies"] = [line.format(version=version) for line in self.config["dependencies"]]


class PagesAndBill(BuildHookInterface[Any]):
    """Adds the man pages and the bill of materials of the distribution."""

    _made: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._made = tempfile.TemporaryDirectory()
        found = {name: self._files(name) for name in _MADE_BY}
        if self.target_name == "wheel":
            build_data["shared_data"].update({str(page): f"share/man/man1/{page.name}" for page in found["man"]})
            build_data["sbom_files"] += map(str, found["sboms"])
        else:
            files = {str(file): f"{name}/{file.name}" for name, files in found.items() for file in files}
            build_data["force_include"].update(files)

    def _files(self, name: str) -> list[Path]:
        """The files of a folder that an sdist has, or that is made here."""
        folder = Path(self.root, name)
        if not folder.is_dir() and self._made is not None:
            folder = Path(self._made.name, name)
            folder.mkdir()
            command = [sys.executable, "-m", _MADE_BY[name], self.metadata.name, str(folder)]
            done = subprocess.run(command, cwd=_CHECKOUT, capture_output=True, text=True, check=False)  # noqa: S603
            if done.returncode:
                self.app.display_warning(f"no {name}: {done.stderr.strip().splitlines()[-1]}")
        return sorted(folder.iterdir())

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  # of hatchling
        if self._made is not None:
            self._made.cleanup()


def address_of(checkout: Path) -> dict[str, str]:
    """Where the project is published: ``home``, and the patterns of a ``page`` and of ``issues``."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    table: dict[str, str] = project["tool"]["launcherkit"]
    return table


def absolute_links(markdown: str, folder: str, page: str) -> str:
    """A document with its links to files of the checkout made absolute; code is left as it is.

    Args:
        folder: the document's, from the checkout's root.
        page: an address with ``{path}`` in it.
    """
    parts = re.split(r"(^```.*?^```$|`[^`\n]*`)", markdown, flags=re.DOTALL | re.MULTILINE)

    def absolute(link: re.Match[str]) -> str:
        return page.format(path=os.path.normpath(f"{folder}/{link[1]}"))

    return "".join(part if part.startswith("`") else _LINK.sub(absolute, part) for part in parts)
