"""The public API's types are part of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from launcherkit import AliasPrefixes, Note, Plan, Policy, Translation
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciDetail
from launcherkit.model.plan import PlannedFunction

ROOT = Path(__file__).parents[1]


def test_help_says_what_each_field_of_a_public_value_is() -> None:
    roots = {Translation, Policy, Note, HostFacts}  # the last is what `Host` gives
    found, todo = set[type](roots), list[type](roots)
    while todo:
        hints = get_type_hints(todo.pop())
        for value in {part for hint in hints.values() for part in _parts(hint)} - found:
            found.add(value)
            todo.append(value)
    values = {value: getattr(value, "_fields", ()) for value in found}
    assert {PciAddress, Plan, PlannedFunction, PciDetail, AliasPrefixes} <= values.keys()
    silent = [
        f"{value.__name__}.{name}" for value, names in values.items() for name in names if _is_silent(value, name)
    ]
    assert silent == []


def _parts(hint: object) -> Iterator[type]:
    """The classes of launcherkit in a type."""
    if isinstance(hint, type) and hint.__module__.startswith("launcherkit."):
        yield hint
    for argument in get_args(hint):
        yield from _parts(argument)


def _is_silent(value: type, field: str) -> bool:
    """Whether neither the field nor the docstring of its class says what it is."""
    own = getattr(value, field).__doc__ or "Alias for field"
    return own.startswith("Alias for field") and f"    {field}: " not in (value.__doc__ or "")


@pytest.mark.slow  # `./dev lint` says the same, with all other types
def test_users_of_the_library_see_the_types_that_are_documented() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", "tests/typing/public_api.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "launcherkit" / "py.typed").is_file()
