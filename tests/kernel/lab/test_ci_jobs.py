"""The commands of the page's jobs for CI services, against the machine that is up.

Packages and a virtual environment are not installed, the machine is neither started nor ended, and no plugin is tried:
for these there are programs that only note that they were called, the last one in the machine.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from launcherkit_lab.machine import SHARE
from launcherkit_lab.session import Session
from tests.kernel.lab.asked import program
from tests.support.ci_jobs import scripts
from tests.support.command_lines import parse

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_a_job_runs_what_it_is_to_run_in_the_machine(session: Session, name: str, tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    for folder in (home / "lab/bin", project, tmp_path / "bin"):
        folder.mkdir(parents=True)
    called = tmp_path / "called"
    note = f'echo "$(basename "$0") $*" >>{called}'
    checked = f"echo $* >>{SHARE}/{name}; ls /dev/vfio >>{SHARE}/{name}; pwd"
    lab = f'case $1 in up | down) {note} ;; check) {checked} ;; *) exec {shlex.join(program(session))} "$@" ;; esac'
    put(tmp_path / "bin/sudo", 'exec "$@"')
    for shim in (tmp_path / "bin/apt-get", tmp_path / "bin/python3", home / "lab/bin/pip"):
        put(shim, note)
    put(home / "lab/bin/launcherkit-lab", lab)
    env = os.environ | {"HOME": str(home), "GITHUB_PATH": str(tmp_path / "path"), "CI_PROJECT_DIR": str(project)}
    (tmp_path / "path").touch()
    said = ""
    for script in scripts(name):
        added = (tmp_path / "path").read_text().splitlines()
        path = os.pathsep.join([*reversed(added), str(tmp_path / "bin"), os.environ["PATH"]])
        words = ["bash", "-e", "-c", script]
        done = subprocess.run(words, cwd=project, env=env | {"PATH": path}, capture_output=True, text=True, check=True)
        said += done.stdout
    assert said == f"{project}\n"
    command, *nodes = (session.folder / name).read_text().splitlines()
    assert parse(["launcherkit-lab", *shlex.split(command)])
    assert "vfio" in nodes
    installed = "pip install ./launcherkit/lab"
    first = [line.split(" --")[0] for line in called.read_text().splitlines()]
    assert first == [
        "apt-get update",
        "apt-get install",
        f"python3 -m venv {home}/lab",
        installed,
        "launcherkit-lab up",
        "launcherkit-lab down",
    ]


def put(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
