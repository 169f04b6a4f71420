"""Completion in real shells: bash always, zsh and fish where they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcherkit.process.completion import SHELLS
from tests.support import forked
from tests.support.imports import ROOT
from tests.support.provoked import provoked

PROGRAMS = {"launcherkit": forked.LAUNCHERKIT, "launcherkit-plugin": forked.PLUGIN}
BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
function=$(complete -p "$1"); function=${function##*-F }
"${function%% *}" "$1" "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
CASES = [
    (["launcherkit", "to"], {"topology"}),
    (["launcherkit", "topology", "--ma"], {"--managed", "--matrix"}),
    (["launcherkit", "translate", "--siblings", ""], {"slot", "group", "listed", "reserve", "none"}),
    (["launcherkit", "explain", "LK20"], {f"LK20{number}" for number in range(1, 10)}),
    (["launcherkit", "explain", "polic"], {"policy"}),
    (["launcherkit", "golden", "ch"], {"check"}),
    (["launcherkit", "translate", "--domain", "ho"], {"host.json"}),
    (["launcherkit-plugin", "vg"], {"vgpu"}),
    (["launcherkit-plugin", "check-config", "ho"], {"host.json"}),
]


def run(program: str, shell: str) -> subprocess.CompletedProcess[str]:
    return forked.run([PROGRAMS[program], "completion", shell], env={}, capture_output=True, text=True)


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    folder = tmp_path_factory.mktemp("scripts")
    made = {}
    for program in PROGRAMS:
        for shell in SHELLS:
            done = run(program, shell)
            assert (done.returncode, done.stderr) == (0, "")
            made[program, shell] = folder / f"{program}.{shell}"
            made[program, shell].write_text(done.stdout)
    return made


def offered(scripts: dict[tuple[str, str], Path], shell: str, words: list[str], folder: Path) -> set[str]:
    (folder / "host.json").touch()
    script = str(scripts[words[0], shell])
    if shell == "bash":
        command = ["bash", "--norc", "-c", BASH, "bash", script, *words]
    else:
        command = ["fish", "--no-config", "-c", f"source {script}; complete -C '{' '.join(words)}'"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return {line.partition("\t")[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("shell", ["bash", "fish"])
@pytest.mark.parametrize(("words", "expected"), CASES, ids=lambda value: " ".join(sorted(value)) if value else "")
def test_a_shell_completes(
    scripts: dict[tuple[str, str], Path], shell: str, words: list[str], expected: set[str], tmp_path: Path
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    assert offered(scripts, shell, words, tmp_path) == expected


def test_zsh_takes_the_script(scripts: dict[tuple[str, str], Path]) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("no zsh here")
    loaded = 'autoload -Uz compinit && compinit -u -D; eval "$(<$1)"; print $_comps[launcherkit]'
    command = ["zsh", "-f", "-c", loaded, "zsh", str(scripts["launcherkit", "zsh"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "_shtab_launcherkit\n", "")


def test_without_the_extra_the_error_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "shtab.py").write_text("raise ModuleNotFoundError('no', name='shtab')")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-m", "launcherkit", "completion", "bash"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (78, "")
    (reported,) = provoked("completion", "LK872")
    assert done.stderr.splitlines()[0] == reported.replace("LK872: ", "error[LK872]: ")
    assert "with its extra `completion`" in done.stderr
