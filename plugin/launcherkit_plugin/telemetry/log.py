"""What the daemon tells: one line on stderr for each thing that happened, as text or JSON.

Not by `logging`: the format is that of the commands (`launcherkit.process.edge`), so one setting serves both, and
nothing is shared by the whole process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal, Protocol, TypeAlias

from launcherkit.errors import LauncherkitError, on_one_line
from launcherkit.process.edge import LOG_FORMAT, tell

Level: TypeAlias = Literal["info", "warning", "error"]


class Log(Protocol):
    """Takes a message for people, and fields for programs. The message says all that matters; text has no fields."""

    def __call__(self, level: Level, text: str, **fields: object) -> None: ...


class Lines:
    """A `Log` on stderr, in the format of ``LAUNCHERKIT_LOG_FORMAT``.

    Args:
        env: the environment of the process.
        clock: seconds since the epoch, for the field ``time``; text has no time, the container's log adds one.
    """

    def __init__(self, env: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._env = {LOG_FORMAT: env.get(LOG_FORMAT, "")}
        self._clock = clock

    def __call__(self, level: Level, text: str, **fields: object) -> None:
        when = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        shown = {name: str(value) for name, value in fields.items() if value is not None}
        tell(level, text, self._env, **{"time": when} | shown)


def log_error(log: Log, error: LauncherkitError, **fields: object) -> None:
    """An error that the daemon lives with, or each of those that it stands for: message, remedy and code."""
    for leaf in error.leaves():
        log("error", f"{leaf.code}: {leaf.message}. {on_one_line(leaf.remedy)}", code=leaf.code, **fields)


def silent(level: Level, text: str, **fields: object) -> None:
    """The `Log` that says nothing."""
