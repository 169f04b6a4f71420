"""The pages of the error codes: in an installed package, or in a checkout."""

from __future__ import annotations

import os

import launcherkit

_PACKAGE = os.path.dirname(os.path.abspath(launcherkit.__file__))
PLACES = (os.path.join(_PACKAGE, "_pages", "errors"), os.path.join(os.path.dirname(_PACKAGE), "docs", "errors"))
"""Where pages may be: first as a wheel has them, then as a checkout has them."""


def page_of(code: str) -> str:
    """The path of a code's page; where there is none, the path at which an installed package has it."""
    paths = [os.path.join(place, f"{code}.md") for place in PLACES]
    return next((path for path in paths if os.path.isfile(path)), paths[0])
