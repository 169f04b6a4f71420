"""The threat model names the test that holds each of its lines, and that test is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (?!must not|---|who \|)(.+) \|$", PAGE.partition("## What each must not")[2], re.MULTILINE)


def test_the_page_has_rows() -> None:
    assert len(ROWS) > 15


def test_every_row_names_tests_and_they_are_there() -> None:
    named = {row: re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row.rpartition(" | ")[2]) for row in ROWS}
    assert [row for row in ROWS if not named[row]] == []
    for file, test in {each for row in ROWS for each in named[row]}:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {test}\(", source, re.MULTILINE), f"{file} has no {test}"
