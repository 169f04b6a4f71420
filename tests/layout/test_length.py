"""No function is longer than a page. ruff holds complexity at 15 (pyproject.toml); it has no rule for length."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.imports import ROOT, statements

LONGEST = 60
FOLDERS = ("launcherkit", "plugin", "benchmarks", "tests", "deploy", "schemas", "tools")


def test_no_function_has_more_than_sixty_lines() -> None:
    found = {f"{path.relative_to(ROOT)}: {name}": lines for path in _sources() for name, lines in _functions(path)}
    assert {name: lines for name, lines in found.items() if lines > LONGEST} == {}


def test_a_long_function_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text("class A:\n    async def f(self):\n" + "        pass\n" * LONGEST)
    assert list(_functions(path)) == [("f", LONGEST + 1)]


def _sources() -> Iterator[Path]:
    yield ROOT / "dev"
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.stem.endswith("_pb2"):  # generated
                yield path


def _functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1
