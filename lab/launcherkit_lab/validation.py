"""What pydantic finds wrong with a document that people wrote, as text."""

from __future__ import annotations

from pydantic import ValidationError


def lines_of(error: ValidationError, place: str) -> str:
    """A line for all that is wrong: the place, the field's path and what is the matter with it."""
    return "\n".join(f"{place}: {_path(one['loc'])}: {one['msg']}" for one in error.errors())


def _path(location: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".") or "document"
