"""The table of known problems, known-problems.toml."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from typing import Any

from launcherkit.compatibility import Version, dotted, version
from launcherkit.model.host import PciFunction

PATH = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "known-problems.toml")
REVIEWED_FOR = timedelta(days=366)
"""How long a review of an entry lasts."""


@dataclass(frozen=True, slots=True)
class Versions:
    """A range of versions that have a problem."""

    since: Version | None
    """None if nobody says since when."""
    before: Version | None
    """The first version after the range; None if none is known."""

    def has(self, version: Version) -> bool:
        """Whether a version is in it."""
        return (self.since is None or self.since <= version) and (self.before is None or version < self.before)

    def __str__(self) -> str:
        if self.since is None:
            return "all" if self.before is None else f"before {dotted(self.before)}"
        return f"from {dotted(self.since)}" + ("" if self.before is None else f", before {dotted(self.before)}")


@dataclass(frozen=True, slots=True)
class Hardware:
    """Devices of one vendor: one, a range of IDs, or all."""

    vendor: int
    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Hardware:
        """Read ``10de:1eb8``, ``10de:2340-237f`` or ``10de:*``; ValueError if it is none of these."""
        vendor, colon, devices = text.partition(":")
        first, _, last = ("0000-ffff" if devices == "*" else devices).partition("-")
        if not colon:
            raise ValueError(text)
        return cls(int(vendor, 16), int(first, 16), int(last or first, 16))

    def has(self, function: PciFunction) -> bool:
        """Whether a function is one of them."""
        return function.vendor == self.vendor and self.first <= function.device <= self.last


@dataclass(frozen=True, slots=True)
class KnownProblem:
    """An entry of the table."""

    id: str
    product: str
    """Whose version counts, or whose problem it is: ``KubeVirt``, ``QEMU``, ``Linux``, ``AMD Instinct``."""
    affected: tuple[Versions, ...]
    """Empty if no source names versions."""
    hardware: tuple[Hardware, ...]
    """Empty for any."""
    hardware_text: tuple[str, ...]
    check: str
    """A name in `launcherkit.known_problems.checks.CHECKS`."""
    symptom: str
    remedy: str
    sources: tuple[str, ...]
    reviewed: date

    def affects(self, version: Version) -> bool:
        """Whether a version of the product has it, as far as sources say."""
        return not self.affected or any(versions.has(version) for versions in self.affected)

    def concerns(self, function: PciFunction) -> bool:
        """Whether a function is of its hardware."""
        return not self.hardware or any(hardware.has(function) for hardware in self.hardware)


@cache
def known_problems() -> tuple[KnownProblem, ...]:
    """The table of this version of launcherkit."""
    with open(PATH, "rb") as file:
        return tuple(_read(entry) for entry in tomllib.load(file)["problem"])


def _read(entry: dict[str, Any]) -> KnownProblem:
    hardware = tuple(entry.get("hardware", ()))
    return KnownProblem(
        id=entry["id"],
        product=entry["product"],
        affected=tuple(Versions(_bound(each, "from"), _bound(each, "before")) for each in entry.get("affected", ())),
        hardware=tuple(map(Hardware.parse, hardware)),
        hardware_text=hardware,
        check=entry["check"],
        symptom=entry["symptom"],
        remedy=entry["remedy"],
        sources=tuple(entry["source"]),
        reviewed=entry["reviewed"],
    )


def _bound(versions: dict[str, str], key: str) -> Version | None:
    return version(versions[key]) if key in versions else None


def overdue(problems: Iterable[KnownProblem], today: date) -> list[KnownProblem]:
    """Those that nobody has reviewed for more than a year."""
    return [problem for problem in problems if today - problem.reviewed > REVIEWED_FOR]
