"""Reads an environment from a file: lines of ``NAME=VALUE``, or what ``/proc/PID/environ`` holds."""

from __future__ import annotations

from launcherkit.errors import BadEnvFile, Collector
from launcherkit.sources.files import read_file


def read_env_file(path: str) -> dict[str, str]:
    """The variables in a file.

    Lines are ``NAME=VALUE``; empty ones and those that begin with ``#`` are passed over. A name may hold dashes and
    anything else but ``=``; a value is taken as it stands, quotes and all. Entries may end in NUL, not in a line break.

    Raises:
        UnreadableFile: the file can't be read.
        BadEnvFile, SeveralErrors: a line is no assignment, or names a variable twice.
    """
    text = read_file(path).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    entries = text.split("\0") if "\0" in text else [line.rstrip("\r") for line in text.split("\n")]
    variables: dict[str, str] = {}
    line_of: dict[str, int] = {}
    errors = Collector()
    for number, entry in enumerate(entries, start=1):
        if not entry.strip() or ("\0" not in text and entry.lstrip().startswith("#")):
            continue
        name, equals, value = entry.partition("=")
        name = name.strip()
        if not equals or not name:
            errors.add(BadEnvFile(f"{path}, line {number}: not NAME=VALUE", _REMEDY))
        elif name in line_of:
            errors.add(BadEnvFile(f"{path}, line {number}: {name} is there already, on line {line_of[name]}", _REMEDY))
        else:
            line_of[name] = number
            variables[name] = value
    errors.raise_if_any()
    return variables


_REMEDY = "Write one NAME=VALUE a line, as `kubectl exec POD -c compute -- env | grep RESOURCE_` prints them."
