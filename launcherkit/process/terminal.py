"""How wide a terminal is."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

_WIDE = 120
_USUAL = 80


def terminal_columns(env: Mapping[str, str]) -> int | None:
    """Columns of the terminal that standard output is, by ``COLUMNS`` first; None where it is none.

    What is wider on a terminal is wrapped or cut. In a pipe it is whole.
    """
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    return _said(env) or _asked() or None


def drawing_columns(env: Mapping[str, str]) -> int:
    """The columns for what has to be broken somewhere, in a pipe too."""
    return _said(env) or terminal_columns(env) or _WIDE


def help_columns(env: Mapping[str, str]) -> int:
    """The columns for help, as argparse finds them; for that it imports shutil, with three compressors."""
    return _said(env) or terminal_columns(env) or _USUAL


def _said(env: Mapping[str, str]) -> int:
    said = env.get("COLUMNS", "")
    return int(said) if said.isascii() and said.isdigit() and 0 < int(said) < 10_000 else 0


def _asked() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return 0
