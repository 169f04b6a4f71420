"""What modules of a package import, for the tests that keep the arrows between its packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Package:
    """A distribution's package. Its packages are those, and modules, directly below it; '' is the package itself."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self._folder = folder
        paths = (path.relative_to(folder).with_suffix("") for path in sorted(folder.rglob("*.py")))
        self.modules = [".".join(part for part in path.parts if part != "__init__") for path in paths]
        """Every module by its name below the package: '' is the package itself."""
        self._known = set(self.modules)

    @cache  # noqa: B019  # there are two packages, below, for as long as tests run
    def source_of(self, module: str) -> ast.Module:
        path = self._folder.joinpath(*filter(None, module.split(".")))
        return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())

    def own(self, name: str) -> str | None:
        """The module of ours that has a name, None for others: ``launcherkit.pipeline.translate`` is ``pipeline``."""
        parts = name.split(".")
        if parts[0] != self.name:
            return None
        while ".".join(parts[1:]) not in self._known:
            parts.pop()
        return ".".join(parts[1:])

    def own_targets(self, module: str) -> dict[str, str]:
        """What a module imports of this package: the names, with the modules that have them."""
        found = {name: self.own(name) for name in self.imported_by(module)}
        return {name: target for name, target in found.items() if target is not None}

    def packages_imported_by(self, module: str) -> set[str]:
        return {name.partition(".")[0] for name in self.imported_by(module)}

    @cache  # noqa: B019
    def imported_by(self, module: str) -> list[str]:
        """The full names of what a module imports."""
        return list(imported_by(self.source_of(module)))

    def cycle(self, at_once: bool = True) -> str | None:
        """Modules that need each other to be imported, or without ``at_once`` to be run."""
        graph = {}
        for module in self.modules:
            body = self.source_of(module).body
            imports = [node for node in body if not at_once or isinstance(node, ast.Import | ast.ImportFrom)]
            targets = {self.own(name) for node in imports for name in imported_by(node)}
            graph[module] = {target for target in targets if target is not None and target != module}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            return " -> ".join(f"{self.name}.{module}" for module in error.args[1])
        return None


TRANSLATOR = Package(ROOT / "launcherkit")
PLUGIN = Package(ROOT / "plugin" / "launcherkit_plugin")
"""One of each for all tests, for every source is parsed only once."""


class Rules(NamedTuple):
    """What may be imported where."""

    package: Package
    arrows: Mapping[str, set[str]]
    """Package to the packages that it may import."""
    everywhere: frozenset[str] = frozenset()
    """Packages that every package may import."""
    shells: frozenset[str] = frozenset()
    """Modules that no other module of their package may import."""
    beside: tuple[Package, frozenset[str]] | None = None
    """The other distribution's package, and the packages of it that this one may import."""

    def broken_by(self, module: str, source: ast.AST | None = None) -> list[str]:
        """The imports of a module, or of another source in its place, that an arrow is missing for."""
        names = self.package.imported_by(module) if source is None else list(imported_by(source))
        return [name for name in names if not self._is_allowed(module, name)]

    def _is_allowed(self, module: str, name: str) -> bool:
        target = self.package.own(name)
        if target is not None:
            if package_of(target) == package_of(module):
                return target == module or target not in self.shells
            return package_of(target) in self.arrows[package_of(module)] | self.everywhere
        if self.beside is None:
            return True
        other, shared = self.beside
        target = other.own(name)
        return target is None or package_of(target) in shared

    def unused(self) -> dict[str, set[str]]:
        """The arrows that no module needs."""
        drawn = self.drawn()
        return {package: extra for package, allowed in self.arrows.items() if (extra := allowed - drawn[package])}

    def circle(self) -> str | None:
        """Packages that import each other, in a circle."""
        try:
            TopologicalSorter(self.drawn()).prepare()
        except CycleError as error:
            return " -> ".join(error.args[1])
        return None

    def drawn(self) -> dict[str, set[str]]:
        """Package to the other packages that its modules import."""
        graph: dict[str, set[str]] = {}
        for module in self.package.modules:
            targets = {package_of(target) for target in self.package.own_targets(module).values()}
            graph.setdefault(package_of(module), set()).update(targets - {package_of(module)})
        return graph


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


def imported_by(tree: ast.AST) -> Iterator[str]:
    """Full names of what a tree imports anywhere in it, for types too; ``from x import y`` gives ``x.y``."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
