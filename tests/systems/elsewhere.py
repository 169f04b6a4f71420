"""``./dev test`` in other systems and with other Pythons, one after the other. Standard library only, as `roots`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.systems.enter import run_in
from tests.systems.pythons import PYTHONS, find_python
from tests.systems.roots import SYSTEMS, CannotMake, root_of
from tests.tiers import ENVIRONMENT

ALL = "all"
UNAVAILABLE = 69
OTHERS = "others"
"""Of Pythons: all but the one that runs."""
_OWN = "{}.{}".format(*sys.version_info)


class Outcome(NamedTuple):
    """What became of the tests in one place."""

    place: str
    """``sid``, ``Python 3.12``."""
    what: str
    """The programs there with their versions, or why nothing ran."""
    code: int | None
    """The exit code; None where nothing ran, though it was only asked for what can be had."""
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.code is None:
            return f"{self.place:<12} SKIPPED, {self.what}"
        end = "passed" if self.code == 0 else f"FAILED, exit code {self.code}"
        return f"{self.place:<12} {end}, {self.seconds:.0f} s: {self.what}"


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """The worst of what ran; where nothing ran at all that is a failure too."""
    ran = [outcome.code for outcome in outcomes if outcome.code is not None]
    return max(map(abs, ran), default=UNAVAILABLE)  # a signal's number is negative


class Runs(NamedTuple):
    """One command of ``./dev``, for every place."""

    checkout: Path
    words: Sequence[str]
    """Of ``./dev``: ``test libvirt -- -x``."""
    env: Mapping[str, str]

    def in_system(self, system: str) -> Outcome:
        """Run it in the root of a system, by its own Python.

        Raises:
            CannotMake: the root can't be had.
            OSError: the cache can't be written.
        """
        with root_of(system, self.env) as (root, programs):
            began = time.monotonic()
            env = {**self.env, ENVIRONMENT: f".venv-{system}"}
            code = run_in(root, self.checkout, ["python3", "dev", *self.words], env)
            return Outcome(system, programs, code, time.monotonic() - began)

    def with_python(self, version: str) -> Outcome | None:
        """Run it with a Python of this machine; None where there is none of that version."""
        program = find_python(version, self.env) or (sys.executable if version == _OWN else None)
        if program is None:
            return None
        environment = self._environment() if os.path.samefile(program, sys.executable) else f".venv-{version}"
        return self._here(f"Python {version}", program, environment)

    def in_systems(self, name: str) -> Iterator[Outcome]:
        """Run it in one system, or here and in all.

        Raises:
            CannotMake, OSError: as `in_system`.
        """
        if name == ALL:
            yield self._here("here", sys.executable, self._environment())
        for system in SYSTEMS if name == ALL else [name]:
            yield self.in_system(system)

    def with_pythons(self, version: str) -> Iterator[Outcome]:
        """Run it with one version of Python, or with all or all other ones that can be had: this machine's own, or a
        system's.

        Raises:
            CannotMake: the one that was asked for can't be had.
            OSError: the cache can't be written.
        """
        several = {ALL: PYTHONS, OTHERS: [each for each in PYTHONS if each != _OWN]}
        for each in several.get(version, [version]):
            if found := self.with_python(each):
                yield found
                continue
            try:
                yield self._in_system_with(each)
            except CannotMake as error:
                if version not in several:
                    raise
                yield Outcome(f"Python {each}", str(error), None)

    def _in_system_with(self, version: str) -> Outcome:
        for system in SYSTEMS:
            with root_of(system, self.env) as (_, programs):
                has_it = programs.startswith(f"Python {version}.")
            if has_it:
                return self.in_system(system)._replace(place=f"Python {version}")
        raise CannotMake(f"no python{version} on PATH, of pyenv or of uv, and the Pythons of the systems are others")

    def _environment(self) -> str:
        return self.env.get(ENVIRONMENT, ".venv")

    def _here(self, place: str, program: str, environment: str) -> Outcome:
        began = time.monotonic()
        env = {**self.env, ENVIRONMENT: environment}
        code = subprocess.run([program, self.checkout / "dev", *self.words], env=env, check=False).returncode
        return Outcome(place, program, code, time.monotonic() - began)
