"""The pages of the error codes: in an installed package, or in a checkout."""

from __future__ import annotations

import os
from contextlib import suppress

import launcherkit
from launcherkit.sources.files import read_file

_PACKAGE = os.path.dirname(os.path.abspath(launcherkit.__file__))
PLACES = (os.path.join(_PACKAGE, "_pages", "errors"), os.path.join(os.path.dirname(_PACKAGE), "docs", "errors"))
"""Where pages may be: first as a wheel has them, then as a checkout has them."""


def all_codes() -> list[str]:
    """The codes that have a page, sorted: those of the device plugin too, which may not be installed."""
    for place in PLACES:
        with suppress(OSError):
            return sorted(name.removesuffix(".md") for name in os.listdir(place) if name.startswith("LK"))
    return []


def code_of(text: str) -> str:
    """The code that somebody means by ``LK204``, ``lk204`` or ``204``; there may be none such."""
    text = text.strip().upper()
    return f"LK{text}" if text.isdecimal() else text


def titles() -> dict[str, str]:
    """Each code that has a page, with what it says, in order."""
    heads = {code: read_file(page_of(code)).partition(b"\n")[0].decode() for code in all_codes()}
    return {code: head.removeprefix(f"# {code}: ") for code, head in heads.items()}


def page_of(code: str) -> str:
    """The path of a code's page; where there is none, the path at which an installed package has it."""
    paths = [os.path.join(place, f"{code}.md") for place in PLACES]
    return next((path for path in paths if os.path.isfile(path)), paths[0])
