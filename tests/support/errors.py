"""Which error is raised: its class is a kind, and its code says which."""

from __future__ import annotations

from typing import TypeVar

import pytest

from launcherkit.errors import Code, LauncherkitError

ErrorT = TypeVar("ErrorT", bound=LauncherkitError)


def raises_code(code: Code[ErrorT], match: str | None = None) -> pytest.RaisesExc[ErrorT]:
    """As `pytest.raises`, for the error of a code."""

    def is_that(error: ErrorT) -> bool:
        assert error.code == code.code, f"{error.code} is raised, not {code.code}: {error.message}"
        return True

    return pytest.raises(code.kind, match=match, check=is_that)
