"""The commands ``launcherkit`` and ``launcherkit-plugin``: what they are made of, their help, their exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import launcherkit.cli.main
import launcherkit_plugin.__main__
from launcherkit.process.program import Program, run_program

ROOT = Path(__file__).parents[2]
_MAIN = {"launcherkit": "launcherkit.cli.main", "launcherkit-plugin": "launcherkit_plugin.__main__"}
PROGRAMS = (launcherkit.cli.main.PROGRAM, launcherkit_plugin.__main__.PROGRAM)

of_every_program = pytest.mark.parametrize("program", [pytest.param(program, id=program.name) for program in PROGRAMS])


def exits(program: Program, *arguments: str, across: int = 80) -> int | str | None:
    with pytest.raises(SystemExit) as raised:
        run_program(program, arguments, {"COLUMNS": str(across)})
    return raised.value.code


@of_every_program
@pytest.mark.parametrize("across", [1, 80])
def test_the_version_is_one_line(program: Program, across: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert exits(program, "--version", across=across) == 0
    assert capfd.readouterr().out == f"{program.name} {program.version}\n"


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
    ("program", "arguments", "reported"),
    [
        (
            0,
            "translate --siblngs slot",
            "launcherkit translate: error: there is no option --siblngs; did you mean --siblings?",
        ),
        (
            0,
            "translate --domian=x.xml",
            "launcherkit translate: error: there is no option --domian; did you mean --domain?",
        ),
        (0, "golden check --cas x .", "launcherkit golden: error: there is no option --cas; did you mean --case?"),
        (
            0,
            "--siblings=slot translate",
            "launcherkit: error: --siblings is an option of the command: give it after that",
        ),
        (
            0,
            "--log-fromat text demo",
            "launcherkit: error: there is no option --log-fromat; did you mean --log-format?",
        ),
        (0, "explian 204", "launcherkit: error: there is no command explian; did you mean explain?"),
        (0, "zzz", "launcherkit: error: there is no command zzz; `launcherkit --help` lists them"),
        (1, "statsu", "launcherkit-plugin: error: there is no command statsu; did you mean status?"),
        (0, "demo --bogus", "launcherkit demo: error: there is no option --bogus\n"),
        (0, "golden chekc .", "'chekc' is none of check, update, list, new; did you mean check?"),
        (0, "explain --siblings=lisetd 204", "none of slot, group, listed, reserve, none; did you mean listed?"),
        (
            0,
            "completion tcsh",
            "launcherkit completion: error: argument bash|zsh|fish: 'tcsh' is none of bash, zsh, fish\n",
        ),
        (1, "vgpu lst", "launcherkit-plugin vgpu: error: argument ACTION: 'lst' is none of list, create, remove,"),
        (
            1,
            "discover --out json",
            "launcherkit-plugin discover: error: there is no option --out; did you mean --output?",
        ),
        (
            1,
            "serve --kubelet-dr x",
            "launcherkit-plugin serve: error: there is no option --kubelet-dr; did you mean --kubelet-dir?",
        ),
    ],
)
def test_what_is_misspelt_is_reported_with_its_command_and_the_nearest(
    program: int, arguments: str, reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exits(PROGRAMS[program], *arguments.split()) == 2
    assert reported in capsys.readouterr().err


def test_what_follows_two_dashes_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert exits(PROGRAMS[0], "explain", "--", "--siblngs", "--more") == 2
    assert "unrecognized arguments: --more" in capsys.readouterr().err


SERVICE = {"LAUNCHERKIT_SERVICE_HOST": "1", "LAUNCHERKIT_PORT_80_TCP_ADDR": "1", "LAUNCHERKIT_PORT": "1"}


@pytest.mark.parametrize(
    ("program", "env", "reported"),
    [
        (
            0,
            {"LAUNCHERKIT_SIBLNGS": "none"},
            ["LAUNCHERKIT_SIBLNGS is set, and nothing reads it; did you mean LAUNCHERKIT_SIBLINGS?"],
        ),
        (0, {"LAUNCHERKIT_XYZ": ""}, ["LAUNCHERKIT_XYZ is set, and nothing reads it"]),
        (
            0,
            {
                "LAUNCHERKIT_PLUGIN_CONFG": "the plugin's",
                "LAUNCHERKIT_GRACE": "another command's",
                "SIBLNGS": "",
                **SERVICE,
            },
            [],
        ),
        (
            1,
            {"LAUNCHERKIT_PLUGIN_CONFG": "x"},
            ["LAUNCHERKIT_PLUGIN_CONFG is set, and nothing reads it; did you mean LAUNCHERKIT_PLUGIN_CONFIG?"],
        ),
        (
            1,
            {"LAUNCHERKIT_PLUGN_PROC": "x"},
            ["LAUNCHERKIT_PLUGN_PROC is set, and nothing reads it; did you mean LAUNCHERKIT_PLUGIN_PROC?"],
        ),
        (1, {"LAUNCHERKIT_SIBLINGS": "slot", "LAUNCHERKIT_PLUGIN_SERVICE_PORT": "1", **SERVICE}, []),
    ],
)
def test_a_variable_that_nothing_reads_is_reported_with_the_nearest(
    program: int, env: dict[str, str], reported: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plugin.yaml").write_text("auto: nvidia\n")
    run_program(
        PROGRAMS[program], (["explain", "LK204"], ["check-config", str(tmp_path / "plugin.yaml")])[program], env
    )
    assert capfd.readouterr().err.splitlines() == [f"note: the variable {text}" for text in reported]


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


@pytest.mark.parametrize("arguments", [(), ("snapshot",), ("golden",), ("hook", "serve"), ("run",)], ids=" ".join)
def test_the_prose_of_help_fits_the_terminal_and_its_examples_stay_a_line_each(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    program = launcherkit.cli.main.PROGRAM
    texts = []
    for across in (60, 200):
        assert exits(program, *arguments, "--help", across=across) == 0
        texts.append(capsys.readouterr().out)
    prose = [line for line in texts[0].splitlines() if not line.startswith((" ", "usage:"))]
    assert max(map(len, prose)) in range(50, 59)
    examples = [{line for line in text.splitlines() if line.startswith("  launcherkit ")} for text in texts]
    assert examples[0] == examples[1]
    assert examples[0]


@of_every_program
def test_the_help_names_every_command(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert exits(program, "--help") == 0
    first_words = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert first_words >= set(program.commands)


@of_every_program
def test_help_imports_no_command_and_nothing_heavy(program: Program) -> None:
    code = (
        f"import sys; from {_MAIN[program.name]} import run\n"
        "try: run(['--help'], {})\nexcept SystemExit: pass\n"
        "heavy = {'lxml', 'pydantic', 'yaml', 'kubernetes', 'grpclib', 'asyncio', 'prometheus_client'}\n"
        f"loaded = {{name for name in sys.modules if name.startswith('{program.package}.')}}\n"
        f"loaded -= {{'{_MAIN[program.name]}', '{program.package}.options', 'launcherkit.process.program'}}\n"
        "sys.exit(' '.join(loaded | (heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", ["explain LK204", "demo", "doctor --host none", "templates list"])
def test_with_standard_output_closed_that_is_said(arguments: str) -> None:
    script = 'exec 1>&-; exec "$@"'
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "launcherkit", *arguments.split()]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "error[LK132]: standard output is closed" in result.stderr
    assert "bug" not in result.stderr
