"""Names that must not come back: words of our own where the field has one, and modules that aren't nouns."""

from __future__ import annotations

import ast

from tests.support.imports import PLUGIN, TRANSLATOR, statements

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

SOURCES = {f"{each.name}.{name}": each.source_of(name) for each in (TRANSLATOR, PLUGIN) for name in each.modules}


def renamed_classes(tree: ast.AST) -> dict[str, str]:
    """The classes with a name that they should not have, and the name instead."""
    names = [node.name for node in statements(tree) if isinstance(node, ast.ClassDef)]
    return {name: CLASSES[name.strip("_")] for name in names if name.strip("_") in CLASSES}


def is_renamed(module: str) -> bool:
    return not MODULES.isdisjoint(part.strip("_") for part in module.split("."))


def test_classes_have_the_names_of_the_field() -> None:
    assert {module: names for module, tree in SOURCES.items() if (names := renamed_classes(tree))} == {}


def test_modules_are_nouns() -> None:
    assert [module for module in SOURCES if is_renamed(module)] == []


def test_a_name_that_comes_back_is_noticed() -> None:
    tree = ast.parse("class Match:\n    class _Unit: ...\nclass DraClaim: ...")
    assert renamed_classes(tree) == {"_Unit": "GuestDevice"}
    assert is_renamed("launcherkit.choose.claimed")
    assert not is_renamed("launcherkit.choose.match")
