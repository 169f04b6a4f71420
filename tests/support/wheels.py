"""The distributions as files, and a command that nothing of the tests' own environment helps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.pages import ROOT

PROJECTS = (ROOT, ROOT / "plugin", ROOT / "lab")


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints; neither the environment of the tests nor its settings help it."""
    foreign = ("PYTHON", "LAUNCHERKIT", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    done = subprocess.run(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def build(target: str, project: Path, out: Path) -> Path:
    """The wheel or sdist of a project, in a folder that has nothing else."""
    run(sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", out, cwd=project)
    (built,) = out.iterdir()
    return built
