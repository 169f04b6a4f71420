"""What `./dev` says besides what the programs say that it runs."""

from __future__ import annotations

import sys
from typing import NoReturn

UNAVAILABLE = 69
"""The exit code where something is missing, of sysexits.h."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def fail(text: str, code: int) -> NoReturn:
    """Say what is wrong and exit."""
    say(f"./dev: {text}")
    sys.exit(code)
