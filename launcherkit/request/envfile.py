"""Reads an environment from a file of lines ``NAME=VALUE``, or from a copy of ``/proc/PID/environ``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcherkit.errors import BAD_ENV_FILE, Collector
from launcherkit.model.plan import Note
from launcherkit.model.request import kinds_of_prefixes
from launcherkit.request.fields import read_file

_REMEDY = "Write one NAME=VALUE a line, as `kubectl exec POD -c compute -- env | grep RESOURCE_` prints them."
_QUOTES = ("'", '"')


@dataclass(frozen=True, slots=True)
class EnvFile:
    """The content of a file."""

    variables: Mapping[str, str]
    notes: tuple[Note, ...]


def read_env_file(path: str, extra_prefixes: tuple[str, ...] = ()) -> EnvFile:
    """The variables in a file.

    Lines are ``NAME=VALUE``, optionally after ``export``; empty lines and those that begin with ``#`` are skipped. A
    name may contain dashes, and anything else except ``=``, white space and quotes. Quotes around a whole value are
    removed; nothing is special between them. ``env`` prints a value of several lines as it is, so a line that isn't an
    assignment counts as part of the previous variable and is skipped, unless either is a variable of devices. Entries
    that end in NUL instead of a line break are taken literally.

    Args:
        path: the file's; ``-`` reads standard input.
        extra_prefixes: further prefixes of variables of devices, besides those of E1.

    Raises:
        UnreadableFile: the file can't be read.
        BAD_ENV_FILE, SeveralErrors: a line is not an assignment, or names a variable of devices twice.
    """
    text = read_file(path).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    if "\0" in text:
        lines = _Lines(path, extra_prefixes, as_shell=False)
        entries = text.split("\0")
    else:
        lines = _Lines(path, extra_prefixes, as_shell=True)
        entries = [line.rstrip("\r") for line in text.split("\n")]
    for number, entry in enumerate(entries, start=1):
        lines.add(number, entry)
    return lines.finish()


class _Lines:
    def __init__(self, path: str, extra_prefixes: tuple[str, ...], *, as_shell: bool) -> None:
        self._path = path
        self._starts = tuple(prefix + "_" for prefix in kinds_of_prefixes(extra_prefixes))
        self._as_shell = as_shell
        self._variables: dict[str, str] = {}
        self._line_of: dict[str, int] = {}
        self._passed_over: list[int] = []
        self._last = ""
        self._errors = Collector()

    def add(self, number: int, entry: str) -> None:
        line = entry.strip()
        if not line or (self._as_shell and line.startswith("#")):
            return
        words = line.split(maxsplit=1)
        if self._as_shell and words[0] == "export" and len(words) > 1:
            entry = line = words[1]
        name, equals, value = entry.partition("=")
        name = name.strip()
        if not equals or not name or (self._as_shell and not _is_name(name)):
            self._no_assignment(number, line)
            return
        self._last = name
        if name in self._line_of and self._is_ours(name):
            self._fault(number, f"{name} is already set on line {self._line_of[name]}")
            return
        self._line_of[name] = number
        self._variables[name] = _unquoted(value) if self._as_shell else value

    def _no_assignment(self, number: int, line: str) -> None:
        if self._as_shell and self._last and not self._is_ours(self._last) and not self._is_ours(line):
            self._passed_over.append(number)
        else:
            self._fault(number, "not NAME=VALUE")

    def _is_ours(self, text: str) -> bool:
        return text.startswith(self._starts)

    def _fault(self, number: int, text: str) -> None:
        self._errors.add(
            BAD_ENV_FILE(f"{self._path}, line {number}: {text}", _REMEDY, file=self._path, key=f"line {number}")
        )

    def finish(self) -> EnvFile:
        self._errors.raise_if_any()
        # Neither names nor lines are shown: what looks like a name may be a line of a private key.
        if len(self._passed_over) > 1:
            where = f"{len(self._passed_over)} lines, from {self._passed_over[0]} to {self._passed_over[-1]}, are"
        else:
            where = "".join(f"line {number} is" for number in self._passed_over)
        text = f"--env-file: {where} not NAME=VALUE; taken for parts of longer values, and passed over"
        return EnvFile(self._variables, (Note("env-file", text),) if where else ())


def _is_name(text: str) -> bool:
    return not any(each.isspace() or each in _QUOTES for each in text)


def _unquoted(value: str) -> str:
    inner = value.strip()
    return inner[1:-1] if len(inner) > 1 and inner[0] == inner[-1] and inner[0] in _QUOTES else value
