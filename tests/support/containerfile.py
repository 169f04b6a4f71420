"""Reads a Containerfile as strictly as is needed to say what an image will be, without building it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

_KNOWN = {"ARG", "COPY", "ENTRYPOINT", "ENV", "FROM", "LABEL", "RUN", "USER"}
"""What ours are made of. ADD fetches and unpacks; CMD, SHELL, VOLUME and the others are not needed."""


class Step(NamedTuple):
    """One instruction, its continuation lines joined."""

    line: int
    name: str
    rest: str

    @property
    def commands(self) -> list[str]:
        """The commands of a RUN, which are joined by ``&&`` alone; without its mounts."""
        return [command.strip() for command in re.sub(r"^(--mount=\S+ )*", "", self.rest).split("&&")]


class Stage(NamedTuple):
    """From one FROM to the next. ``base`` is another stage's name or an image."""

    name: str
    base: str
    steps: list[Step]

    def last(self, name: str) -> Step | None:
        """The last instruction of that name, the one that counts; None where there is none."""
        return next((step for step in reversed(self.steps) if step.name == name), None)


class Containerfile(NamedTuple):
    """The arguments before the first FROM with their defaults, and the stages in order."""

    arguments: dict[str, str | None]
    stages: list[Stage]

    def chain(self, stage: Stage) -> list[Stage]:
        """A stage and those that it is built on: all whose layers are in the image."""
        below = [other for other in self.stages if other.name == stage.base]
        return [stage, *(self.chain(below[0]) if below else [])]

    def targets(self) -> list[Stage]:
        """The stages that nothing else is made of."""
        used = {stage.base for stage in self.stages} | {
            source for stage in self.stages for step in stage.steps if (source := copied_from(step))
        }
        return [stage for stage in self.stages if stage.name not in used]


def read_containerfile(path: Path) -> Containerfile:
    """Parse a file.

    Raises:
        ValueError: names the line of an instruction that is not known, or stands where it can't.
    """
    arguments: dict[str, str | None] = {}
    stages: list[Stage] = []
    for step in _steps(path.read_text()):
        if step.name not in _KNOWN:
            raise ValueError(f"line {step.line}: {step.name} is none of {', '.join(sorted(_KNOWN))}")
        if step.name == "FROM":
            found = re.fullmatch(r"(\S+)(?: AS (\S+))?", step.rest)
            if not found:
                raise ValueError(f"line {step.line}: FROM {step.rest}")
            stages.append(Stage(found[2] or "", found[1], []))
        elif stages:
            stages[-1].steps.append(step)
        elif step.name == "ARG":
            name, equals, default = step.rest.partition("=")
            arguments[name] = default if equals else None
        else:
            raise ValueError(f"line {step.line}: {step.name} before the first FROM")
    return Containerfile(arguments, stages)


def _steps(text: str) -> list[Step]:
    steps: list[Step] = []
    pending = ""
    began = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#") or not line.strip():
            continue
        began = began if pending else number
        pending += line.rstrip().removesuffix("\\").strip() + " "
        if not line.rstrip().endswith("\\"):
            name, _, rest = pending.strip().partition(" ")
            steps.append(Step(began, name, rest.strip()))
            pending = ""
    if pending:
        raise ValueError(f"line {began}: goes on, and the file ends")
    return steps


def exec_form(step: Step) -> list[str]:
    """The words of an ENTRYPOINT in exec form.

    Raises:
        ValueError: it is in shell form, where a shell would be process 1 and keep SIGTERM to itself.
    """
    words = json.loads(step.rest)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"line {step.line}: no list of words")
    return words


def copied_from(step: Step) -> str | None:
    """The stage that a COPY takes from; None where it takes from the checkout, or is none."""
    found = re.match(r"--from=(\S+)", step.rest) if step.name == "COPY" else None
    return found[1] if found else None
