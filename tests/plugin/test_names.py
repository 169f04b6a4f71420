"""A name means one thing in both distributions: that of a public class, and that of a module."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from tests.support.imports import PLUGIN, TRANSLATOR, Package

SAME = {
    "client": "calls of a gRPC server",
    "completion": "what shells need of the program",
    "errors": "each distribution's",
    "fields": "the fields of documents that people write",
    "layout": "what is arranged: text in columns, vGPUs on cards",
    "nodes": "device nodes",
    "page": "HTML for people: of a host, of a cluster",
    "server": "a gRPC server",
    "source": "what something is read from: a host, a configuration",
    "writer": "what carries a plan out",
}
"""Modules of one name in both distributions, and what the name means in both."""

TWICE = {
    "child": "a short-lived process that answers one question",
    "parameters": "what claims and DeviceClasses say to the driver",
    "serve": "what a process that lasts runs",
    "server": "a server, of gRPC or HTTPS",
}
"""Modules of one name in two packages of the plugin. A command of `cli` is named after what it is about."""


def public_classes(package: Package) -> Iterator[str]:
    """The names of a package's public classes and type aliases, one for each module; generated code has none."""
    for module in package.modules:
        if "proto" in module.split("."):
            continue
        names = {name for node in _statements(package.source_of(module)) if (name := _defined(node)) is not None}
        yield from (name for name in names if name[0].isupper() and not name.isupper())


def _statements(module: ast.Module) -> Iterator[ast.stmt]:
    """Those of a module, also in its conditions: some types are only for type checkers."""
    for node in module.body:
        yield node
        if isinstance(node, ast.If):
            yield from (*node.body, *node.orelse)


def _defined(node: ast.stmt) -> str | None:
    match node:
        case ast.ClassDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return None


def test_a_class_name_is_defined_once_in_both_distributions() -> None:
    names = Counter([*public_classes(PLUGIN), *public_classes(TRANSLATOR)])
    assert [name for name, times in names.items() if times > 1] == []


def test_modules_of_one_name_in_both_distributions_are_about_one_thing() -> None:
    assert _leaves(PLUGIN) & _leaves(TRANSLATOR) == SAME.keys()


def test_modules_of_one_name_in_two_packages_of_the_plugin_are_about_one_thing() -> None:
    names = [name.rpartition(".")[2] for name in PLUGIN.modules if not name.startswith("cli.") and "." in name]
    assert {name for name, times in Counter(names).items() if times > 1} - {"proto"} == TWICE.keys()


def _leaves(package: Package) -> set[str]:
    """The last part of each module's name; packages, and what the entry points must be called, aside."""
    above = {module.rpartition(".")[0] for module in package.modules}
    return {module.rpartition(".")[2] for module in package.modules if module not in above} - {"__main__"}
