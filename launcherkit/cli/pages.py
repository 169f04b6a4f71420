"""The pages of codes and of the reference that ``launcherkit explain`` prints: in a package, or in a checkout."""

from __future__ import annotations

import os
from contextlib import suppress

import launcherkit
from launcherkit.sources.files import read_file

_PACKAGE = os.path.dirname(os.path.abspath(launcherkit.__file__))
PLACES = (os.path.join(_PACKAGE, "_pages"), os.path.join(os.path.dirname(_PACKAGE), "docs"))
"""Where pages may be: first as in a wheel, then as in a checkout."""
_ERRORS, _REFERENCE = "errors", "reference"


def all_codes() -> list[str]:
    """The codes that have a page, sorted: those of the device plugin too, which may not be installed."""
    return [name for name in _names(_ERRORS) if name.startswith("LK")]


def all_topics() -> list[str]:
    """The pages of the reference, sorted: ``golden``, ``plugin-configuration``, ``policy``."""
    return _names(_REFERENCE)


def _names(folder: str) -> list[str]:
    for place in PLACES:
        with suppress(OSError):
            return sorted(name.removesuffix(".md") for name in os.listdir(os.path.join(place, folder)))
    return []


def code_of(text: str) -> str:
    """The code meant by ``LK204``, ``lk204`` or ``204``, whether it exists or not."""
    text = text.strip().upper()
    return f"LK{text}" if text.isdecimal() else text


def titles() -> dict[str, str]:
    """Each code and each topic that has a page, with its title, in order."""
    heads = {name: read_file(page_of(name)).partition(b"\n")[0].decode() for name in (*all_codes(), *all_topics())}
    return {name: head.removeprefix("# ").removeprefix(f"{name}: ") for name, head in heads.items()}


def page_of(name: str) -> str:
    """The path of the page of a code or topic; without a page, the path where an installed package would have it."""
    folder = _ERRORS if name.startswith("LK") else _REFERENCE
    paths = [os.path.join(place, folder, f"{name}.md") for place in PLACES]
    return next((path for path in paths if os.path.isfile(path)), paths[0])
