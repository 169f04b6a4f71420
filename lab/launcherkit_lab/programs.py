"""The programs that a machine is made with."""

from __future__ import annotations

import os
import shutil


def find_program(name: str) -> str | None:
    """The path of a program; daemons too, whose directories a user's PATH may lack."""
    path = os.environ.get("PATH", os.defpath)
    return shutil.which(name, path=os.pathsep.join([path, "/usr/local/sbin", "/usr/sbin", "/sbin"]))
