"""Where values are named tuples, and how: docs/decisions/0020-ordinary-python-on-the-hooks-way.md"""

from __future__ import annotations

import ast

import grimp

from tests.support.imports import TRANSLATOR, package_of

PURE = {"model", "choose", "place", "show"}
"""What both distributions use."""

AT_THE_PLUGINS_START = {
    "host.identity_memory": ["_Remembered"],
    "host.pci_ids": ["PciNames"],
    "process.program": ["Program"],
}


def test_a_value_off_the_ways_that_are_measured_is_no_named_tuple() -> None:
    hook = "launcherkit.hooks.exec_hook"
    on_its_way = {hook, *grimp.build_graph("launcherkit", cache_dir=None).find_upstream_modules(hook)}
    off = [name for name in TRANSLATOR.modules if f"launcherkit.{name}" not in on_its_way]
    off = [name for name in off if name and package_of(name) not in PURE]
    assert {name: tuples for name in off if (tuples := _named_tuples(name))} == AT_THE_PLUGINS_START


def test_a_module_with_named_tuples_does_not_postpone_annotations() -> None:
    with_tuples = [name for name in TRANSLATOR.modules if _named_tuples(name)]
    assert [name for name in with_tuples if _postpones(TRANSLATOR.source_of(name))] == []


def test_named_tuples_and_postponed_annotations_are_noticed() -> None:
    tree = ast.parse(
        "from __future__ import annotations\nclass A(NamedTuple): ...\nclass B(NamedTuple, Generic[T]): ..."
    )
    assert (_names_of_tuples(tree), _postpones(tree)) == (["A", "B"], True)


def _postpones(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)


def _named_tuples(module: str) -> list[str]:
    return _names_of_tuples(TRANSLATOR.source_of(module))


def _names_of_tuples(tree: ast.Module) -> list[str]:
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return [each.name for each in classes if any(ast.unparse(base) == "NamedTuple" for base in each.bases)]
