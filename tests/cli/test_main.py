"""The commands ``launcherkit`` and ``launcherkit-plugin``: what they are made of, their help, their exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import launcherkit.cli.main
import launcherkit_plugin.cli.main
from launcherkit.process.program import Program, run_program

ROOT = Path(__file__).parents[2]
PROGRAMS = (launcherkit.cli.main.PROGRAM, launcherkit_plugin.cli.main.PROGRAM)

of_every_program = pytest.mark.parametrize("program", [pytest.param(program, id=program.name) for program in PROGRAMS])


def exits(program: Program, *arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as raised:
        run_program(program, arguments, {})
    return raised.value.code


@of_every_program
def test_the_version_is_told(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert exits(program, "--version") == 0
    assert capsys.readouterr().out == f"{program.name} {program.version}\n"


WRONG = {
    "launcherkit": [["translate"], ["translate", "--bogus"], ["transl", "--domain", "x"]],
    "launcherkit-plugin": [["check-config"], ["discover", "--bogus"], ["disc"], ["serve"], ["vgpu"]],
}


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        pytest.param(program, arguments, id=" ".join([program.name, *arguments]))
        for program in PROGRAMS
        for arguments in [[], ["bogus"], ["--bogus"], *WRONG[program.name]]
    ],
)
def test_a_wrong_use_is_2_and_says_how_on_stderr(
    program: Program, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exits(program, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"usage: {program.name} ")


@pytest.mark.parametrize(
    ("program", "command"),
    [
        pytest.param(program, command, id=f"{program.name} {command}")
        for program in PROGRAMS
        for command in program.commands
    ],
)
def test_every_command_has_help_with_examples(
    program: Program, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exits(program, command, "--help") == 0
    text = capsys.readouterr().out
    assert f"usage: {program.name} {command}" in text
    assert "examples:" in text


@of_every_program
def test_the_help_names_every_command(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert exits(program, "--help") == 0
    first_words = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert first_words >= set(program.commands)


@of_every_program
def test_help_imports_no_command_and_nothing_heavy(program: Program) -> None:
    code = (
        f"import sys; from {program.package}.main import run\n"
        "try: run(['--help'], {})\nexcept SystemExit: pass\n"
        "heavy = {'lxml', 'pydantic', 'yaml', 'kubernetes', 'grpclib', 'asyncio', 'prometheus_client'}\n"
        f"loaded = {{name for name in sys.modules if name.startswith('{program.package}.')}}\n"
        f"loaded -= {{'{program.package}.main', 'launcherkit.process.program'}}\n"
        "sys.exit(' '.join(loaded | (heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
