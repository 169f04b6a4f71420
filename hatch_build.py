"""What the metadata of both distributions share: one version, one address, and READMEs whose links work everywhere.

Hatchling asks this when it builds in a checkout. An sdist has the answers in its PKG-INFO, and there nobody asks again.
The address is ``[tool.launcherkit]`` of the checkout's pyproject.toml; nothing else names it.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_CHECKOUT = Path(__file__).resolve().parent
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")


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
