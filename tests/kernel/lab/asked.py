"""The machine that is up, asked by what the lab's command calls, and by the command itself."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from launcherkit_lab.packages import CACHE
from launcherkit_lab.session import Session


def run(session: Session, *words: str) -> tuple[int, str, str]:
    out, errors = io.BytesIO(), io.BytesIO()
    return session.run(words, Path("/"), out, errors), out.getvalue().decode(), errors.getvalue().decode()


def program(session: Session, *words: str) -> list[str]:
    """The command line of the lab for the machine of the session."""
    cache = f"{CACHE}={session.folder.parent}"
    # A shell's background processes don't hear SIGINT.
    return ["env", "--default-signal=INT", cache, sys.executable, "-m", "launcherkit_lab", *words]
