"""Writes the table of all codes on the page of errors: `python -m tools.dev.errors`."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import launcherkit_plugin.model.errors  # noqa: F401  # its codes are of the same series
from launcherkit.errors import LauncherkitError

PAGE = Path(__file__).parents[2] / "docs" / "errors" / "README.md"
HEAD = "| code | class | what it says | exit code |\n| --- | --- | --- | --- |\n"


def with_table(page: str) -> str:
    """The page, with the table as the codes are."""
    before, _, after = page.partition(HEAD)
    old = "".join(takewhile(lambda line: line.startswith("|"), after.splitlines(keepends=True)))
    rows = (
        f"| [{code}]({code}.md) | `{row.kind.__name__}` | {row.title} | {row.exit_code} |\n"
        for code, row in LauncherkitError.codes().items()
    )
    return before + HEAD + "".join(rows) + after.removeprefix(old)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
