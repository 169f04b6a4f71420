"""A public class's name means one thing, in the device plugin and in what is beside it in a program."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from tests.support.imports import ROOT, Package

PLUGIN = Package(ROOT / "plugin" / "launcherkit_plugin")
TRANSLATOR = Package(ROOT / "launcherkit")

SHARED = {
    "Device",  # the kubelet's in the plugin; in the translator a device that has no place: the field's word for both
}
"""What both distributions may have a class of."""


def public_classes(package: Package) -> Iterator[str]:
    """The names of a package's public classes and type aliases, one for each definition; generated code has none."""
    for module in package.modules:
        if ".proto" in module:
            continue
        for node in package.source_of(module).body:
            name = _defined(node)
            if name is not None and name[0].isupper() and not name.isupper():
                yield name


def _defined(node: ast.stmt) -> str | None:
    match node:
        case ast.ClassDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return None


def test_a_class_name_is_defined_once_in_the_plugin() -> None:
    assert [name for name, times in Counter(public_classes(PLUGIN)).items() if times > 1] == []


def test_the_plugin_has_no_class_name_of_the_translator() -> None:
    assert set(public_classes(PLUGIN)) & set(public_classes(TRANSLATOR)) == SHARED
