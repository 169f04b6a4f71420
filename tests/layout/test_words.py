"""Names that must not come back: where the field has a word, modules that aren't nouns, variables that say nothing."""

from __future__ import annotations

import ast

from tests.support.imports import LAB, PLUGIN, TRANSLATOR, statements

CLASSES = {
    "Claim": "Match",  # a claim is Kubernetes'
    "Claims": "Matches",
    "Unit": "GuestDevice",
    "StayedBehind": "NotAttached",
    "Situation": "Context",
    "Outlets": "Outputs",
    "Turns": "WorkQueue",
    "Standby": "SpareProcess",
    "Lasting": "GraceList",
    "Wishes": "Preferences",
    "Wanted": "Desired",
}
"""What each of these is called now."""

MODULES = {
    *("advertised", "answering", "chosen", "claimed", "decided", "guarded", "lasting", "missing", "needed"),
    *("offered", "permitted", "published", "resolved", "spreading", "unplaced", "watched"),
}
"""A module has the name of what is in it."""

VARIABLES = {"each", "found", "wanted", "why", "known", "there", "what", "given"}
"""They don't say what a value is. In a comprehension on one line the rest of the line does."""

FUNCTIONS = {
    "saw": "observe",
    "learn": "update",
    "tell": "notify, report",
    "give": "allocate, return",
    "take": "add, allocate, release",
}
"""Such as these are called now."""

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

SOURCES = {f"{each.name}.{name}": each.source_of(name) for each in (TRANSLATOR, PLUGIN, LAB) for name in each.modules}


def renamed_classes(tree: ast.AST) -> dict[str, str]:
    """The classes with a name that they should not have, and the name instead."""
    names = [node.name for node in statements(tree) if isinstance(node, ast.ClassDef)]
    return {name: CLASSES[name.strip("_")] for name in names if name.strip("_") in CLASSES}


def is_renamed(module: str) -> bool:
    return not MODULES.isdisjoint(part.strip("_") for part in module.split("."))


def vague_variables(tree: ast.AST) -> set[str]:
    """The variables and parameters with a name that says nothing, except for those of short comprehensions.

    A field of a class is none: what it belongs to says more, and a file may have it as a key.
    """
    allowed: set[ast.AST] = set()
    names: dict[ast.AST, str | None] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                names[node] = name
            case ast.ExceptHandler(name=caught) | ast.MatchAs(name=caught) | ast.MatchStar(name=caught):
                names[node] = caught
            case ast.ClassDef(body=body):
                allowed |= {statement.target for statement in body if isinstance(statement, ast.AnnAssign)}
        if isinstance(node, COMPREHENSIONS) and node.lineno == node.end_lineno:
            allowed |= {target for generator in node.generators for target in ast.walk(generator.target)}
    return {name for node, name in names.items() if name in VARIABLES and node not in allowed}


def test_classes_have_the_names_of_the_field() -> None:
    assert {module: names for module, tree in SOURCES.items() if (names := renamed_classes(tree))} == {}


def test_modules_are_nouns() -> None:
    assert [module for module in SOURCES if is_renamed(module)] == []


def renamed_functions(tree: ast.AST) -> set[str]:
    functions = (node for node in statements(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {node.name for node in functions} & FUNCTIONS.keys()


def test_variables_say_what_they_are() -> None:
    assert {module: names for module, tree in SOURCES.items() if (names := vague_variables(tree))} == {}


def test_functions_say_what_they_do() -> None:
    assert {module: names for module, tree in SOURCES.items() if (names := renamed_functions(tree))} == {}


def test_a_name_that_comes_back_is_noticed() -> None:
    tree = ast.parse("class Match:\n    class _Unit: ...\nclass DraClaim: ...")
    assert renamed_classes(tree) == {"_Unit": "GuestDevice"}
    assert renamed_functions(ast.parse("class A:\n    async def take(self): ...\ndef taken(): ...")) == {"take"}
    assert is_renamed("launcherkit.choose.claimed")
    assert not is_renamed("launcherkit.choose.match")


def test_a_variable_that_says_nothing_is_noticed() -> None:
    tree = ast.parse(
        """
class Finding:
    why: str
def f(given, *, what=None):
    found = [each for each in given]
    known = {
        there for there in found
    }
    for wanted in found:
        with wanted as why: pass
"""
    )
    assert vague_variables(tree) == VARIABLES - {"each"}
    assert vague_variables(ast.parse("try: pass\nexcept OSError as why: pass")) == {"why"}
    assert vague_variables(ast.parse("match 1:\n    case [int() as found, *known]: pass")) == {"found", "known"}
