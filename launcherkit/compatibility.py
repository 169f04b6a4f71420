"""Known features of libvirt, QEMU, Linux, KubeVirt and others by version, from compatibility.toml."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

Version: TypeAlias = tuple[int, ...]

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "compatibility.toml")


@dataclass(frozen=True, slots=True)
class Tried:
    """A version that was run."""

    program: str
    version: str
    what: str
    tiers: tuple[str, ...]
    """The tiers of tests that always run with it; empty: it was run by hand."""


@dataclass(frozen=True, slots=True)
class Need:
    """A feature that exists from a version on."""

    program: str
    since: Version
    what: str
    source: str
    """``documents``, ``schema`` or ``tried``."""
    name: str
    """The name by which doctor looks it up; empty if it doesn't."""


@dataclass(frozen=True, slots=True)
class Compatibility:
    """The whole table."""

    tried: tuple[Tried, ...]
    needs: tuple[Need, ...]

    def since(self, name: str) -> Version:
        """The version from which a named feature exists."""
        return next(need.since for need in self.needs if need.name == name)


@cache
def compatibility() -> Compatibility:
    """The table of this version of launcherkit."""
    with open(PATH, "rb") as file:
        document = tomllib.load(file)
    return Compatibility(
        tuple(
            Tried(entry["program"], entry["version"], entry["what"], tuple(entry.get("tiers", ())))
            for entry in document["tried"]
        ),
        tuple(
            Need(entry["program"], version(entry["from"]), entry["what"], entry["source"], entry.get("name", ""))
            for entry in document["needs"]
        ),
    )


def version(text: str) -> Version:
    """``12.1`` as a tuple that can be compared."""
    return tuple(map(int, text.split(".")))


def version_of_image(image: str) -> Version | None:
    """The version in the tag of an image; None without one, as with only a digest."""
    tag = re.search(r":v?(\d{1,4}(?:\.\d{1,4}){1,2})(?:[-@].*)?$", image)
    return version(tag[1]) if tag else None


def dotted(version: Version) -> str:
    """A version as it is written: ``12.1``."""
    return ".".join(map(str, version))
