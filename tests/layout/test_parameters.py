"""A function returns what it finds, with its notes and errors; none is handed a list to fill."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support.imports import LAB, PLUGIN, TRANSLATOR, statements

FILLED = ("Collector", "list[Note]", "list[LauncherkitError]")


def to_be_filled(tree: ast.AST) -> Iterator[str]:
    """The parameters that could only be there for the function to add to them."""
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                if each.annotation is not None and ast.unparse(each.annotation) in FILLED:
                    yield f"{node.name}({each.arg})"


def test_no_function_is_handed_a_list_of_notes_or_errors_to_fill() -> None:
    sources = {
        f"{each.name}.{name}": each.source_of(name) for each in (TRANSLATOR, PLUGIN, LAB) for name in each.modules
    }
    assert {module: names for module, tree in sources.items() if (names := [*to_be_filled(tree)])} == {}


def test_a_list_to_fill_is_noticed() -> None:
    tree = ast.parse("class A:\n    def f(self, devices: list[GuestDevice], *, errors: Collector) -> None: ...")
    assert list(to_be_filled(tree)) == ["f(errors)"]
