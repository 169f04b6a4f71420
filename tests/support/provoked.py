"""Messages of errors that no golden case can give: the pages show them, and tests provoke them word for word."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "provoked"


def provoked(area: str, code: str) -> list[str]:
    """What ``tests/provoked/<area>.error`` has of a code, as ``LK701: message``."""
    lines = (FOLDER / f"{area}.error").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith(f"{code}: ")]
