"""No function is longer than a page or has more branches than a reader can follow.

ruff holds complexity at 15 (pyproject.toml), but counts no comprehensions, and it has no rule for length.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.imports import ROOT, statements

LONGEST = 60
MOST_COMPLEX = 17
PRODUCT = ("launcherkit", "plugin", "lab", "benchmarks", "deploy", "schemas", "tools")
FOLDERS = (*PRODUCT, "tests")


def test_no_function_has_more_than_sixty_lines() -> None:
    too_long = {name: lines for name, function in _functions(*FOLDERS) if (lines := _lines(function)) > LONGEST}
    assert too_long == {}


def test_no_function_is_too_complex() -> None:
    too_complex = {name for name, function in _functions(*PRODUCT) if complexity(function) > MOST_COMPLEX}
    assert too_complex == set()


def test_a_long_function_is_noticed() -> None:
    tree = ast.parse("class A:\n    async def f(self):\n" + "        pass\n" * LONGEST)
    assert [_lines(function) for _, function in _functions_of(tree)] == [LONGEST + 1]


def test_branches_of_comprehensions_and_conditions_count() -> None:
    [(name, function)] = _functions_of(
        ast.parse(
            """
def f(values):
    for value in values or ():
        if value and value > 1 and value < 5:
            return [each for row in value if row if row[0] for each in row]
        while value:
            try:
                return 1 if value else 2
            except ValueError:
                pass
    match values:
        case []: return 3
        case _: return 4
"""
        )
    )
    branches = 1 + 1 + 1 + 2 + (1 + 2 + 1) + 1 + 1 + 1 + 2
    assert (name, complexity(function)) == ("f", 1 + branches)


def complexity(function: ast.AST) -> int:
    """1, and 1 for each branch: of a statement, an expression, a comprehension or a condition."""
    return 1 + sum(map(_branches, ast.walk(function)))


def _branches(node: ast.AST) -> int:
    match node:
        case ast.If() | ast.For() | ast.AsyncFor() | ast.While() | ast.ExceptHandler() | ast.IfExp() | ast.match_case():
            return 1
        case ast.comprehension():
            return 1 + len(node.ifs)
        case ast.BoolOp():
            return len(node.values) - 1
        case _:
            return 0


def _lines(function: ast.stmt) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _functions(*folders: str) -> Iterator[tuple[str, ast.stmt]]:
    for path in _sources(folders):
        for name, function in _functions_of(ast.parse(path.read_text())):
            yield f"{path.relative_to(ROOT)}: {name}", function


def _sources(folders: tuple[str, ...]) -> Iterator[Path]:
    yield ROOT / "dev"
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.stem.endswith("_pb2"):  # generated
                yield path


def _functions_of(tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
