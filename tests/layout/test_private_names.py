"""Tests use public names: a private one is its module's own business, and may be another tomorrow."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from tests.support.imports import ROOT

OTHERS = {
    "_Element": "lxml's class of elements, which has no other name",
    "_SubParsersAction": "argparse's class of what has commands, which has no other name",
    "_actions": "argparse names a parser's arguments nowhere else",
    "_mutually_exclusive_groups": "nor these",
    "_connectivity_state": "gRPC raises an error in a thread of its own if a channel is closed too early",
    "_create_connection": "http.client connects to no other address than the one that it names",
    "_stream": "grpclib writes no malformed messages",
    "_setupstate": "pytest tears fixtures down only after tests that ran here",
    "_tmp_path_factory": "pytest shows where temporary files go to fixtures alone",
    "_shutdown": "threading waits for its threads at the end of a process, which a fork skips",
    "_run_exitfuncs": "so does atexit",
    "_clear": "and forgets there what its parent is to do",
    "_exit": "os._exit is public",
}
"""Private names of other people's modules that tests can't do without, and why."""

PUBLIC = {"_replace", "_asdict", "_fields", "_field_defaults", "_make"}
"""Of a NamedTuple, as its documentation says."""

BY_NAME = {"getattr", "setattr", "delattr", "hasattr", "patch", "object", "attrgetter"}
"""Functions and methods that get a name as a string."""


def private_names(tree: ast.AST) -> Iterator[str]:
    """The private names of other objects and modules in a tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for name in [*(node.module or "").split("."), *(alias.name for alias in node.names)]:
                if is_private(name):
                    yield name
        elif isinstance(node, ast.Import):
            yield from (part for alias in node.names for part in alias.name.split(".") if is_private(part))
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and not is_own(node.value):
            yield node.attr
        elif isinstance(node, ast.Call) and name_of(node.func) in BY_NAME:
            yield from (part for text in texts(node.args) for part in text.split(".") if is_private(part))
        elif isinstance(node, ast.Subscript) and is_namespace(node.value):
            yield from (text for text in texts([node.slice]) if is_private(text))


def is_private(name: str) -> bool:
    return name[:1] == "_" != name and name[:2] != "__" and name not in PUBLIC and name.isidentifier()


def is_own(node: ast.expr) -> bool:
    """Whether it is the object whose method this is, or its class."""
    return name_of(node) in ("self", "cls") or (isinstance(node, ast.Call) and name_of(node.func) == "super")


def is_namespace(node: ast.expr) -> bool:
    """Whether it is ``vars(...)`` or ``....__dict__``."""
    return (isinstance(node, ast.Call) and name_of(node.func) == "vars") or name_of(node) == "__dict__"


def name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def texts(nodes: list[ast.expr]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


@cache
def in_tests() -> dict[str, set[str]]:
    """The private names in each file."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    return {str(path.relative_to(ROOT)): set(private_names(ast.parse(path.read_text()))) for path in files}


def test_tests_use_no_private_name() -> None:
    assert {path: names for path, found in in_tests().items() if (names := found - OTHERS.keys())} == {}


def test_each_name_that_may_be_used_is_used() -> None:
    assert OTHERS.keys() - set().union(*in_tests().values()) == set()


def test_a_private_name_is_noticed_wherever_it_is() -> None:
    source = """
        from launcherkit._a import _b as b, c
        import launcherkit._d as d
        d._e._f = c._replace(a=1)._g, self._h, cls._i, self.j._k, super()._l
        monkeypatch.setattr("launcherkit.m._n", lambda: None), setattr(d, "_o", 1), vars(d)["_p"], d.__dict__["_q"]
        patch.object(d, "_r"), b.__class__, b._fields, _, print("_s"), {"_t": 1}["_t"]
    """
    found = sorted(private_names(ast.parse("\n".join(line.strip() for line in source.splitlines()))))
    assert found == [f"_{letter}" for letter in "abdefgknopqr"]
