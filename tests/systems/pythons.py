"""Pythons of other versions on this machine. Standard library only, as `roots`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""The versions that the project is for."""
DISTRIBUTION = "/usr/bin"
"""Where the distribution's own Python is. Debian and Ubuntu keep what makes an environment in a package of its own."""


def find_python(version: str, env: Mapping[str, str]) -> str | None:
    """The interpreter of a version, ``3.12``; the distribution's own first, for images have that one."""
    return next((path for path in _candidates(version, env) if _is_of(path, version)), None)


def _candidates(version: str, env: Mapping[str, str]) -> Iterator[str]:
    name = f"python{version}"
    path = env.get("PATH", os.defpath)
    own = [DISTRIBUTION] if DISTRIBUTION in path.split(os.pathsep) else []
    for folders in (*own, path):
        if found := shutil.which(name, path=folders):
            yield found
    # pyenv's program on PATH runs only a version that was chosen for the folder; uv finds what it has, and pyenv's.
    for command in (["pyenv", "prefix", version], ["uv", "python", "find", "--no-project", version]):
        if program := shutil.which(command[0], path=path):
            done = subprocess.run([program, *command[1:]], env=env, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                said = done.stdout.strip()
                yield os.path.join(said, "bin", name) if os.path.isdir(said) else said


def _is_of(path: str, version: str) -> bool:
    """Whether a program of that version runs and can make an environment: PATH may have a stand-in for another."""
    ask = "import sys, venv, ensurepip; print('{}.{}'.format(*sys.version_info))"
    try:
        done = subprocess.run([path, "-c", ask], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.stdout.strip() == version
