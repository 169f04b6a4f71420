"""Reads a file that describes a host, and reports all its errors together."""

from __future__ import annotations

import os
from typing import NoReturn

from launcherkit.errors import Collector, ErrorFields, LauncherkitError
from launcherkit.sources.files import read_file

MAX_BYTES = 64 << 20
"""The limit for a file; a host of 4096 functions takes 3 MB."""

_MAX_ERRORS = 20


def read_text(path: str, problems: Problems) -> str:
    """The file's text.

    Raises:
        UnreadableFile: it can't be read.
        LauncherkitError: of the type of ``problems``, if the file is too large or not UTF-8.
    """
    data = read_file(path, MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        problems.fail("", f"larger than {MAX_BYTES >> 20} MiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        problems.fail("", f"byte {error.start} is not UTF-8")


class Problems:
    """Collects up to twenty errors of one file, which are reported together.

    Args:
        path: the file.
        error: the type of error to raise.
        remedy: what to do.
    """

    def __init__(self, path: str | os.PathLike[str], error: type[LauncherkitError], remedy: str) -> None:
        self._path = os.fspath(path)
        self._error = error
        self._remedy = remedy
        self._collected = Collector()
        self.count = 0

    def add(self, where: str, what: str) -> None:
        """Record a problem at ``where``: a line, a JSON path, or empty. Raises after twenty."""
        place = f"{self._path}: {where}: " if where else f"{self._path}: "
        facts: ErrorFields = {"file": self._path, "key": where} if where else {"file": self._path}
        self._collected.add(self._error(place + what, self._remedy, **facts))
        self.count += 1
        if self.count >= _MAX_ERRORS:
            self._collected.raise_if_any()

    def fail(self, where: str, what: str) -> NoReturn:
        """Raise this problem together with earlier ones."""
        self.add(where, what)
        self._collected.raise_if_any()
        raise AssertionError("unreachable")

    def raise_if_any(self) -> None:
        """Raise the recorded errors: one as itself, several as `SeveralErrors`."""
        self._collected.raise_if_any()
