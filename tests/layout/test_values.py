"""Where values are named tuples: docs/decisions/0001-values-are-named-tuples.md"""

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


def _named_tuples(module: str) -> list[str]:
    classes = [node for node in TRANSLATOR.source_of(module).body if isinstance(node, ast.ClassDef)]
    return [each.name for each in classes if any(ast.unparse(base) == "NamedTuple" for base in each.bases)]
