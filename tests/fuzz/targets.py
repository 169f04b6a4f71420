"""The fuzzers by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import cast

HERE = Path(__file__).parent
NAMES = ("translate", "parsers", "documents", "sysfs", "frames")


def target(name: str) -> Callable[[bytes], None]:
    """What takes the bytes; it raises where they have found a fault."""
    return cast("Callable[[bytes], None]", import_module(f"tests.fuzz.{name}").run)


def seeds(name: str) -> Path:
    """The folder with what the fuzzer starts from."""
    return HERE / "corpora" / name
