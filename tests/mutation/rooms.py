"""Rooms, that is packages of the translator and the plugin, and the tests that may notice a wrong line in one."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_TRANSLATOR, _PLUGIN = "launcherkit", "plugin/launcherkit_plugin"
_GOLDEN = frozenset({"request", "host", "choose", "place", "domain", "pipeline", "model", "inputs", "golden"})
"""Rooms whose work the golden cases show."""
_COMMANDS = frozenset({"inputs"})
"""Rooms whose work the tests of the commands show."""


class Room(NamedTuple):
    """A package directly below a distribution's, or all modules there that are in none."""

    name: str
    """The package's folder, from the repository's root."""
    modules: tuple[str, ...]
    """The files of its modules, without generated ones."""


def rooms(root: Path) -> list[Room]:
    """All of them; modules that are in no package are the distribution's own room."""
    found: dict[str, list[str]] = {}
    for distribution in (_TRANSLATOR, _PLUGIN):
        for path in sorted((root / distribution).rglob("*.py")):
            inner = path.relative_to(root / distribution).parts
            if "proto" not in inner:
                name = f"{distribution}/{inner[0]}" if len(inner) > 1 else distribution
                found.setdefault(name, []).append(str(path.relative_to(root)))
    return [Room(name, tuple(modules)) for name, modules in sorted(found.items())]


def named(name: str, known: Sequence[Room]) -> list[Room]:
    """The rooms of that name: ``launcherkit/choose``, or ``choose`` for all packages that are called so."""
    plain = name.rstrip("/")
    return [room for room in known if plain in (room.name, room.name.rpartition("/")[2])]


def folder_for(room: Room) -> str:
    """The folder of a room's own tests; modules that are in no package have theirs in many."""
    plugin = room.name.startswith(_PLUGIN)
    inner = room.name.removeprefix(_PLUGIN if plugin else _TRANSLATOR).lstrip("/")
    return str(Path("tests", "plugin" if plugin else "", inner)) if inner else ""


def files_for(room: Room, root: Path) -> list[str]:
    """Files of the base tier: the room's folder of tests, then those that import it, and the golden cases for it."""
    plugin = room.name.startswith(_PLUGIN)
    inner = room.name.removeprefix(_PLUGIN if plugin else _TRANSLATOR).lstrip("/")
    package = ".".join(filter(None, ("launcherkit_plugin" if plugin else "launcherkit", inner)))
    own = Path(folder_for(room)) if inner else None
    found: list[Path] = []
    for relative, imported in _imports_of_tests(root):
        if (
            (own is not None and own in relative.parents)
            or (inner in _GOLDEN and not plugin and relative.parts[1] == "golden")
            or (inner in _COMMANDS and not plugin and relative.parts[1] == "cli")
            or any(f"{name}.".startswith(f"{package}.") for name in imported)
        ):
            found.append(relative)
    return [str(path) for path in sorted(found, key=lambda path: (own != path.parent, path))]


@functools.cache
def _imports_of_tests(root: Path) -> list[tuple[Path, set[str]]]:
    """The path of each file of tests, from the root, and the modules that it imports."""
    imports = re.compile(r"^\s*(?:from|import) (launcherkit[\w.]*)", re.MULTILINE)
    files = sorted((root / "tests").rglob("test_*.py"))
    return [(path.relative_to(root), set(imports.findall(path.read_text()))) for path in files]
