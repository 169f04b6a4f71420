"""The modules of the packages and their syntax, for tests that look at sources.

What may import what is said in ``[tool.importlinter]`` of pyproject.toml.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Package:
    """A distribution's package. Its packages are those, and modules, directly below it; '' is the package itself."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self._folder = folder
        paths = (path.relative_to(folder).with_suffix("") for path in sorted(folder.rglob("*.py")))
        self.modules = [".".join(part for part in path.parts if part != "__init__") for path in paths]
        """Every module by its name below the package: '' is the package itself."""

    @cache  # noqa: B019  # there are three packages, below, for as long as tests run
    def source_of(self, module: str) -> ast.Module:
        path = self._folder.joinpath(*filter(None, module.split(".")))
        return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())


TRANSLATOR = Package(ROOT / "launcherkit")
PLUGIN = Package(ROOT / "plugin" / "launcherkit_plugin")
LAB = Package(ROOT / "lab" / "launcherkit_lab")
"""One of each for all tests, for every source is parsed only once."""


def package_of(module: str) -> str:
    return module.partition(".")[0]


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """The statements in a tree, in any order; most of a tree are expressions, which have none in them."""
    todo = [tree]
    while todo:
        for node in ast.iter_child_nodes(todo.pop()):
            if not isinstance(node, ast.expr):
                yield node
                todo.append(node)
