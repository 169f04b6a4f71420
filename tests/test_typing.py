"""The public API's types are part of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_users_of_the_library_see_the_types_that_are_documented() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", "tests/typing/public_api.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "launcherkit" / "py.typed").is_file()
