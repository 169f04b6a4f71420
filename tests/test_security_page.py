"""The threat model names the test that holds each of its lines, and that test is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (?!must not|---|who \|)(.+) \|$", PAGE.partition("## What each must not")[2], re.MULTILINE)


def test_the_page_has_rows() -> None:
    assert len(ROWS) > 15


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.partition(" | ")[0][:50])
def test_every_row_names_tests_and_they_are_there(row: str) -> None:
    *_, held_by = row.split(" | ")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", held_by)
    assert named
    for file, test in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
