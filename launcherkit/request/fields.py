"""Takes values out of parsed JSON, and records each wrong one with its JSON path."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from launcherkit.errors import UNREADABLE_FILE, Code, Collector, ErrorFields, LauncherkitError, shown

# Whole files, named on a command line.

LIMIT = 64 << 20
"""The limit, in bytes."""

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Non-blocking, because opening a FIFO without a writer would wait for ever."""

_KINDS = {
    stat.S_IFIFO: "a FIFO or pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_REMEDY_KIND = "Give a regular file. If standard input can be read, - stands for it."


def read_file(path: str, limit: int = LIMIT) -> bytes:
    """The content of a file, or of standard input for ``-``; at most ``limit`` bytes of it.

    Raises:
        UnreadableFile: names the path and the system's reason, or what it is instead of a regular file.
    """
    try:
        if path == "-":
            if sys.stdin is None:
                raise ValueError("standard input is closed")
            return sys.stdin.buffer.read(limit)
        handle = os.open(path, _FLAGS)
        try:
            kind = stat.S_IFMT(os.fstat(handle).st_mode)
            if kind in _KINDS:
                raise UNREADABLE_FILE(f"{path}: is {_KINDS[kind]}, not a file", _REMEDY_KIND, file=path)
            with open(handle, "rb", closefd=False) as file:  # raises for a directory
                return file.read(limit)
        finally:
            os.close(handle)
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        raise UNREADABLE_FILE(f"{path}: {reason}", "Check the path and its permissions.", file=path) from problem


# Files that describe a host: all errors of one are reported together.

MAX_BYTES = 64 << 20
"""The limit for a file; a host of 4096 functions takes 3 MB."""

_MAX_ERRORS = 20
"""How many errors of one document are reported."""


def read_text(path: str, problems: DocumentErrors) -> str:
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
    """Receives what is wrong in a document. Subclasses say what becomes of it."""

    def add(self, where: str, message: str) -> None:
        """Note a problem at ``where``: a line, a JSON path, or empty. May raise."""
        raise NotImplementedError

    def wrong(self, where: str, value: object, expected: str) -> None:
        """Note that a value isn't what was expected; None is a missing one."""
        self.add(where, f"{shown(value)} is not {expected}" if value is not None else f"missing: {expected}")


class FirstProblem(Problems):
    """Raises the first problem as ValueError: for a document that is of no use if anything in it is wrong."""

    def add(self, where: str, message: str) -> None:
        raise ValueError(f"{where}: {message}" if where else message)

    def wrong(self, where: str, value: object, expected: str) -> None:
        self.add(where, f"{shown(value)} is not {expected}")


class DocumentErrors(Problems):
    """Collects the errors of one document, which are reported together. Subclasses say it in other words.

    Args:
        path: the file, or what messages call the document.
        error: which error to raise.
        remedy: what to do.
        most: how many errors are collected; the last of them is raised, with the others, as soon as it is found.
    """

    def __init__(
        self, path: str | os.PathLike[str], error: Code[LauncherkitError], remedy: str, most: int = _MAX_ERRORS
    ) -> None:
        self.path = os.fspath(path)
        self.remedy = remedy
        self._code = error
        self._most = most
        self._collected = Collector()
        self.count = 0

    def error(self, where: str, message: str) -> LauncherkitError:
        """The error for a problem."""
        place = f"{self.path}: {where}: " if where else f"{self.path}: "
        facts: ErrorFields = {"file": self.path, "key": where} if where else {"file": self.path}
        return self._code(place + message, self.remedy, **facts)

    def add(self, where: str, message: str) -> None:
        """See `Problems.add`. Raises the problem with the others if there are too many."""
        self._collected.add(self.error(where, message))
        self.count += 1
        if self.count >= self._most:
            self._collected.raise_if_any()

    def fail(self, where: str, message: str) -> NoReturn:
        """Raise this problem together with earlier ones."""
        self.add(where, message)
        self._collected.raise_if_any()
        raise AssertionError("unreachable")

    def raise_if_any(self) -> None:
        """Raise the recorded errors: one as itself, several as `SeveralErrors`."""
        self._collected.raise_if_any()


T = TypeVar("T")

MAX_VALUES = 1_000_000
"""A host of 4096 functions has a tenth of that; this many empty objects take 100 MB."""
MAX_DEPTH = 32
"""A snapshot has 8."""


def parse_json(text: str, problems: DocumentErrors) -> object:
    """The parsed document; NaN, duplicate keys, deep nesting and too many values are refused.

    Depth and number of values are checked before parsing, because the text may be untrusted.
    """
    if text.count(",") + text.count("[") + text.count("{") > MAX_VALUES:
        problems.fail("$", f"more than {MAX_VALUES} values")
    if _depth(text) > MAX_DEPTH:
        problems.fail("$", f"nested more than {MAX_DEPTH} deep")
    try:
        return strict_json(text)
    except json.JSONDecodeError as error:
        problems.fail(f"line {error.lineno}, column {error.colno}", f"not JSON: {error.msg}")
    except ValueError as error:
        problems.fail("$", str(error))


def strict_json(data: str | bytes | bytearray) -> Any:
    """The parsed document.

    Raises:
        ValueError: it isn't JSON, has NaN or an infinity, or a key twice in one object, or is nested too deeply.
    """
    try:
        return json.loads(data, parse_constant=_no_constant, object_pairs_hook=_no_repeats)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def strict_json_stream(text: str) -> Iterator[Any]:
    """The documents in a text that has several, one after the other.

    Raises:
        ValueError: as `strict_json`, at the document that is wrong.
    """
    decoder, at = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_no_repeats), 0
    blanks = re.compile(r"[ \t\r\n]*")
    while (blank := blanks.match(text, at)) and (at := blank.end()) < len(text):
        try:
            document, at = decoder.raw_decode(text, at)
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
        yield document


_TOO_DEEP = "it is nested too deeply"


def _depth(text: str) -> int:
    """The greatest depth of nested lists and objects; brackets in strings don't count."""
    without_strings = re.sub(r'"(?:[^"\\]++|\\.)*+"?', "", text, flags=re.DOTALL)
    deepest = depth = 0
    for bracket in re.sub(r"[^][{}]++", "", without_strings):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _no_constant(name: str) -> object:
    """Refuse NaN and the infinities."""
    raise ValueError(f"{name} is not a JSON number")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs. Raises ValueError if a key appears twice."""
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shown(twice)} appears twice in one object")
    return members


class Fields:
    """One JSON object, whose keys are read one by one. Keys that aren't read are ignored, unless `finish` refuses them.

    Args:
        value: the object; what isn't one is a problem, and has no keys then.
        path: its JSON path; empty for a document whose paths begin with a key.
        problems: receives what is wrong.
    """

    def __init__(self, value: object, path: str, problems: Problems) -> None:
        self.path = path
        self._problems = problems
        self.valid = type(value) is dict or isinstance(value, Mapping)  # the first is quicker to check
        self._left: dict[str, Any] = dict(value) if self.valid else {}  # type: ignore[call-overload]  # checked
        if not self.valid:
            problems.wrong(path, value, "an object")

    def at(self, key: str) -> str:
        """The JSON path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def pop(self, key: str) -> Any:
        """The value of ``key``, whatever it is; None if it is missing."""
        return self._left.pop(key, None)

    def problem(self, key: str, value: object, expected: str) -> None:
        """Record that the value of ``key`` is not what was expected."""
        self._problems.wrong(self.at(key), value, expected)

    def optional(self, key: str, parse: Callable[[object], T], expected: str) -> T | None:
        """The parsed value of a key; None if the key is missing or ``parse`` raises ValueError."""
        value = self._left.pop(key, None)
        return None if value is None else self._parsed(key, value, parse, expected)

    def required(self, key: str, parse: Callable[[object], T], expected: str, instead: T) -> T:
        """As `optional`, but a missing value is a problem, and ``instead`` is returned for a missing or wrong one."""
        parsed = self._parsed(key, self._left.pop(key, None), parse, expected)
        return instead if parsed is None else parsed

    def needed(self, key: str, parse: Callable[[object], T], expected: str) -> T:
        """As `required`, for problems that are raised at once. ``parse`` is passed None for a missing value."""
        value = self._left.pop(key, None)
        try:
            return parse(value)
        except ValueError:
            self.problem(key, value, expected)
            raise

    def _parsed(self, key: str, value: object, parse: Callable[[object], T], expected: str) -> T | None:
        try:
            return parse(value)
        except ValueError:
            self.problem(key, value, expected)
            return None

    def listed(self, key: str) -> Sequence[Any]:
        """A list, whatever is in it; empty if the key is missing."""
        value = self._left.pop(key, None)
        if isinstance(value, (list, tuple)):
            return value
        if value is not None:
            self.problem(key, value, "a list")
        return ()

    def many(self, key: str, parse: Callable[[object], T], expected: str) -> tuple[T, ...]:
        """A list whose values are parsed by ``parse``; empty if the key is missing."""
        entries = enumerate(self.listed(key))
        parsed = (self._parsed(f"{key}[{index}]", entry, parse, expected) for index, entry in entries)
        return tuple(entry for entry in parsed if entry is not None)

    def objects(self, key: str) -> list[Fields]:
        """A list of objects; empty if the key is missing."""
        place, entries = self.at(key), enumerate(self.listed(key))
        children = [Fields(entry, f"{place}[{index}]", self._problems) for index, entry in entries]
        return [fields for fields in children if fields.valid]

    def child(self, key: str) -> Fields | None:
        """An object; None if the key is missing or its value isn't an object."""
        value = self._left.pop(key, None)
        fields = None if value is None else Fields(value, self.at(key), self._problems)
        return fields if fields is not None and fields.valid else None

    def inner(self, key: str, *, required: bool = False) -> Fields:
        """An object; one without keys if its value isn't an object, or the key is missing, which may be a problem."""
        value = self._left.pop(key, None)
        return Fields({} if value is None and not required else value, self.at(key), self._problems)

    def mapping(self, key: str, *, required: bool = False) -> Mapping[str, Any]:
        """As `inner`, for an object whose keys are not known beforehand: its keys, and whatever their values are."""
        return self.inner(key, required=required).rest()

    def rest(self) -> dict[str, Any]:
        """The keys that haven't been read yet, and whatever their values are."""
        return dict(self._left)

    def peek(self, key: str) -> Any:
        """The value of ``key``, which can still be read; None if it is missing."""
        return self._left.get(key)

    def __contains__(self, key: str) -> bool:
        """Whether there is such a key, if only with null, and it wasn't read yet."""
        return key in self._left

    def finish(self) -> None:
        """Record every key that wasn't read."""
        for key in self._left:
            self._problems.add(self.path, f"unknown key {shown(key)}")


def text(value: object) -> str:
    """A non-empty string."""
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def string(value: object) -> str:
    """A string, which may be empty."""
    if not isinstance(value, str):
        raise ValueError
    return value


def integer(value: object) -> int:
    """A whole number."""
    if type(value) is not int:
        raise ValueError
    return value


def natural(value: object) -> int:
    """A whole number from 0 to 2**31."""
    if type(value) is not int or not 0 <= value <= 1 << 31:
        raise ValueError
    return value


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def hex_of(digits: int) -> Callable[[object], int]:
    """A parser for strings of exactly ``digits`` hex digits."""

    def parse(value: object) -> int:
        if not isinstance(value, str) or len(value) != digits or not set(value) <= set("0123456789abcdefABCDEF"):
            raise ValueError
        return int(value, 16)

    return parse
