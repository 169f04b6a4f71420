"""A terminal: how wide it is, and text for people that fits it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

from launcherkit.colour import unmarked
from launcherkit.process.edge import stdout_is_terminal, write_stdout

_WIDE = 120
_USUAL = 80
_STEP = 4
"""The indentation of a continuation line that has no column to align with."""
_RAILS = "│├└┌"


def write_text(text: str, env: Mapping[str, str]) -> None:
    """Write text for people to standard output; on a terminal its long lines are wrapped, elsewhere they are not.

    Raises:
        BrokenPipeError, UnwritableFile: as `write_stdout` does.
    """
    write_stdout(fitted(text, terminal_columns(env)).encode("utf-8", "backslashreplace"))


def fitted(text: str, across: int | None) -> str:
    """Text with longer lines wrapped between words, aligned with the last column that leaves enough room.

    Args:
        text: lines, with colours or without. The lines of a tree are left as they are.
        across: columns; None leaves everything as it is.
    """
    if across is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in _wrapped(line, across))


def terminal_columns(env: Mapping[str, str]) -> int | None:
    """Columns of the terminal that standard output is, by ``COLUMNS`` first; None if it isn't a terminal."""
    if not stdout_is_terminal():
        return None
    return _columns_variable(env) or _columns_of_terminal() or None


def drawing_columns(env: Mapping[str, str]) -> int:
    """The columns for text that must be wrapped even in a pipe."""
    return _columns_variable(env) or terminal_columns(env) or _WIDE


def help_columns(env: Mapping[str, str]) -> int:
    """The columns for help, as argparse finds them; for that it imports shutil, with three compressors."""
    return _columns_variable(env) or terminal_columns(env) or _USUAL


def _wrapped(line: str, across: int) -> Iterator[str]:
    plain = unmarked(line)
    if len(plain) <= across or plain.lstrip().startswith(tuple(_RAILS)):
        yield line
        return
    below = " " * _hang(plain, across)
    text, started = "", False
    for word in _words(line):
        if started and len(unmarked(text + word.rstrip())) > across:
            yield text.rstrip()
            text = below + word.lstrip()
        else:
            text += word
        started = started or bool(unmarked(text).strip())
    yield text.rstrip()


def _words(line: str) -> Iterator[str]:
    """Each word with the spaces before it."""
    blanks = ""
    for part in line.split(" "):
        if part:
            yield blanks + part
            blanks = " "
        else:
            blanks += " "


def _hang(plain: str, across: int) -> int:
    """Where the last column that begins in the left half begins."""
    indent = len(plain) - len(plain.lstrip())
    starts = [
        at + 2 for at in range(indent, across // 2) if plain[at : at + 2] == "  " and plain[at + 2 : at + 3].strip()
    ]
    return max(starts, default=min(indent + _STEP, across // 2))


def _columns_variable(env: Mapping[str, str]) -> int:
    text = env.get("COLUMNS", "")
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) < 10_000 else 0


def _columns_of_terminal() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return 0
