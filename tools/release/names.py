"""What the pages call the packages: ``python -m tools.release.names`` writes it anew.

As long as they are published nowhere, a page says how to install from a checkout: a name that nobody has registered
could be anybody's. Where they are is ``index`` in ``[tool.launcherkit]`` of ``pyproject.toml``.
"""

from __future__ import annotations

import re
from pathlib import Path

from tools.release.images import ROOT, SETTINGS

DEFAULT = "default"
"""The index where pip looks if it is told nothing."""
_PUBLISHED = {
    ".": "launcherkit",
    "./plugin": "launcherkit-plugin",
    "./lab": "launcherkit-lab",
    # Beside another project, whose folder this is.
    "./launcherkit": "launcherkit",
    "./launcherkit/plugin": "launcherkit-plugin",
    "./launcherkit/lab": "launcherkit-lab",
}
"""What pip is told to install of a checkout, and what it is called in an index."""
_INSTALL = re.compile(r"(?P<pip>\bpip install)(?P<words>(?: +(?:'[^']*'|\"[^\"]*\"|[\w./\[\]<>=~-]+))+)")
_WORD = re.compile(r"(?P<quote>['\"]?)(?P<name>(?:[\w-]|\.?/|\.(?!\w))+)(?P<rest>(?:\[[\w,]+\])?[^'\" ]*)(?P=quote)")


def pages() -> list[Path]:
    """The pages that users read; a decision says what was decided then."""
    return sorted(
        [
            *ROOT.glob("*.md"),
            *(ROOT / "plugin").glob("*.md"),
            *(ROOT / "lab").glob("*.md"),
            *(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "decisions"),
        ]
    )


def installed_by_name(text: str) -> list[str]:
    """The commands of a page that install one of the packages from an index."""
    found = [match[0] for match in _INSTALL.finditer(text)]
    return [line for line in found if {word["name"] for word in _WORD.finditer(line)} & {*_PUBLISHED.values()}]


def with_names(text: str, index: str) -> str:
    """A page whose commands install what is in an index in place of a checkout."""
    option = "" if index == DEFAULT else f" --index-url {index}"

    def named(word: re.Match[str]) -> str:
        name = _PUBLISHED.get(word["name"], word["name"])
        return f"{word['quote']}{name}{word['rest']}{word['quote']}"

    def command(line: re.Match[str]) -> str:
        words = _WORD.sub(named, line["words"])
        return f"{line['pip']}{option if words != line['words'] else ''}{words}"

    return _INSTALL.sub(command, text)


def main() -> None:
    """Write the pages, if there is an index."""
    if SETTINGS["index"]:
        for page in pages():
            page.write_text(with_names(page.read_text(encoding="utf-8"), SETTINGS["index"]), encoding="utf-8")


if __name__ == "__main__":
    main()
