"""The pages of the error codes: in an installed package, or in a checkout."""

from __future__ import annotations

import os
from contextlib import suppress

import launcherkit

_PACKAGE = os.path.dirname(os.path.abspath(launcherkit.__file__))
PLACES = (os.path.join(_PACKAGE, "_pages", "errors"), os.path.join(os.path.dirname(_PACKAGE), "docs", "errors"))
"""Where pages may be: first as a wheel has them, then as a checkout has them."""


def all_codes() -> list[str]:
    """The codes that have a page, sorted: those of the device plugin too, which may not be installed."""
    for place in PLACES:
        with suppress(OSError):
            return sorted(name.removesuffix(".md") for name in os.listdir(place) if name.startswith("LK"))
    return []


def page_of(code: str) -> str:
    """The path of a code's page; where there is none, the path at which an installed package has it."""
    paths = [os.path.join(place, f"{code}.md") for place in PLACES]
    return next((path for path in paths if os.path.isfile(path)), paths[0])
