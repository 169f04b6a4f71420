"""The command ``launcherkit``: its commands, its help, its exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from launcherkit import __version__
from launcherkit.cli.main import COMMANDS, run

ROOT = Path(__file__).parents[2]


def exits(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as raised:
        run(list(arguments), {})
    return raised.value.code


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert exits("--version") == 0
    assert capsys.readouterr().out == f"launcherkit {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [[], ["bogus"], ["--bogus"], ["translate"], ["translate", "--bogus"], ["transl", "--domain", "x"]]
)
def test_a_wrong_use_is_2_and_says_how_on_stderr(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exits(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: launcherkit")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exits(command, "--help") == 0
    text = capsys.readouterr().out
    assert f"usage: launcherkit {command}" in text
    assert "examples:" in text


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert exits("--help") == 0
    first_words = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert first_words >= set(COMMANDS)


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from launcherkit.cli.main import run\n"
        "try: run(['--help'], {})\nexcept SystemExit: pass\n"
        "loaded = {name for name in sys.modules if name.startswith('launcherkit.cli.')} - {'launcherkit.cli.main'}\n"
        "sys.exit(bool(loaded | ({'lxml', 'pydantic', 'yaml'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
