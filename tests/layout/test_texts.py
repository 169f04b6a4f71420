"""Texts in the code, and the errors that it makes, as far as reading it shows what is wrong with them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import launcherkit.errors
import launcherkit_plugin.model.errors
from launcherkit.errors import Code
from tests.support.imports import PLUGIN, TRANSLATOR, Package, package_of
from tests.test_messages import names_an_option

PLURAL = re.compile(r"\w\(s\)")
LIBRARY = ("model", "request", "host", "choose", "place", "domain", "pipeline")
"""What a hook uses too."""
FOR_OPTIONS = {"request.envfile", "request.template"}
"""The modules for what is given by an option alone."""
ABOUT_NOTHING = {
    "LIBVIRT_MODULE_MISSING": "what is installed, not what was given",
    "SIDECAR_NOT_INSTALLED": "the same",
    "MESSAGE_TOO_LARGE": "a request that has not been read",
    "SeveralErrors": "its errors have theirs",
    "WORK_HANGS": "a card, a group, or the whole host",
    "TOKEN_NOT_REVIEWED": "a token, which nobody is told",
}
"""Errors that have no field, and what they are about."""


def texts(package: Package) -> Iterator[tuple[str, str]]:
    """Module and text of every string in the code that has a blank, but for docstrings."""
    for module in package.modules:
        nodes = list(ast.walk(package.source_of(module)))
        documents = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            text = node.value if isinstance(node, ast.Constant) and id(node) not in documents else None
            if isinstance(text, str) and " " in text:
                yield module, text


def errors_made() -> Iterator[tuple[str, list[str | None]]]:
    """The name of each error that is made, with the fields that it is given."""
    modules = (launcherkit.errors, launcherkit_plugin.model.errors)
    names = {name for module in modules for name, row in vars(module).items() if isinstance(row, Code)}
    for package in (TRANSLATOR, PLUGIN):
        for module in package.modules:
            for node in ast.walk(package.source_of(module)):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id in {*names, "SeveralErrors"}
                ):
                    yield node.func.id, [keyword.arg for keyword in node.keywords]


def test_no_text_of_the_library_names_an_option_of_the_command() -> None:
    """Those that no golden case gives, too: a hook has no options."""
    found = [each for each in texts(TRANSLATOR) if package_of(each[0]) in LIBRARY]
    assert len(found) > 500
    assert not [each for each in found if each[0] not in FOR_OPTIONS and names_an_option(each[1])]


def test_a_number_has_the_right_form_of_its_noun() -> None:
    assert not [each for package in (TRANSLATOR, PLUGIN) for each in texts(package) if PLURAL.search(each[1])]


def test_every_error_that_is_made_says_in_a_field_what_it_is_about() -> None:
    without = {name for name, fields in errors_made() if not fields}
    assert without == set(ABOUT_NOTHING), "an error is given a field: device=, file=, key= ..."
