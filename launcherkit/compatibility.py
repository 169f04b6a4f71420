"""Known features and bugs of libvirt, QEMU, Linux, KubeVirt and others by version, from compatibility.toml."""

from __future__ import annotations

import os
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
class Broken:
    """A bug in some versions."""

    name: str
    program: str
    since: Version
    before: Version | None
    """The first version with a fix; None if none is known."""
    where: str
    """Which domains are affected: empty for all, ``pci``, ``sev-snp`` or ``no-cdev``."""
    what: str
    remedy: str
    source: str

    def has(self, version: Version) -> bool:
        """Whether a version has this bug."""
        return self.since <= version and (self.before is None or version < self.before)


@dataclass(frozen=True, slots=True)
class Compatibility:
    """The whole table."""

    tried: tuple[Tried, ...]
    needs: tuple[Need, ...]
    broken: tuple[Broken, ...]

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
        tuple(
            Broken(
                entry["name"],
                entry["program"],
                version(entry["from"]),
                version(entry["before"]) if "before" in entry else None,
                entry["where"],
                entry["what"],
                entry["remedy"],
                entry["source"],
            )
            for entry in document["broken"]
        ),
    )


def version(text: str) -> Version:
    """``12.1`` as a tuple that can be compared."""
    return tuple(map(int, text.split(".")))


def dotted(version: Version) -> str:
    """A version as it is written: ``12.1``."""
    return ".".join(map(str, version))
