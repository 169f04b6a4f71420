"""The process edge: messages on stderr, the result on stdout, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcherkit.errors import BAD_PCI_ADDRESS, BAD_POLICY, LauncherkitError, SeveralErrors
from launcherkit.model.plan import Note
from launcherkit.process.edge import guarded, print_message, print_notes, write_stdout

ROOT = Path(__file__).parents[1]
MORE = "help: `launcherkit explain LK101` says more.\n"


def raising(error: BaseException) -> Callable[[], int]:
    def run() -> int:
        raise error

    return run


def test_a_command_that_ends_well_keeps_its_code() -> None:
    assert guarded(lambda: 7, {}) == 7


def test_an_error_is_its_code_a_line_and_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(raising(BAD_PCI_ADDRESS("a is\n wrong", "Mend\tit.")), {}) == 65
    assert capsys.readouterr() == ("", "error[LK101]: a is wrong\nhelp: Mend it.\n" + MORE)


COMMANDS = "Do it by hand:\necho 1 > /sys/a\necho\t2 > \x1b/sys/b\nerror[LK999]: forged"


def test_the_commands_of_a_help_are_a_line_each_and_look_like_no_message(capsys: pytest.CaptureFixture[str]) -> None:
    guarded(raising(BAD_PCI_ADDRESS("a", COMMANDS)), {})
    assert capsys.readouterr().err == (
        "error[LK101]: a\nhelp: Do it by hand:\n      echo 1 > /sys/a\n      echo 2 > \\x1b/sys/b\n"
        "      error[LK999]: forged\n" + MORE
    )


def test_a_help_is_one_string_of_a_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    guarded(raising(BAD_PCI_ADDRESS("a", COMMANDS)), {"LAUNCHERKIT_LOG_FORMAT": "json"})
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["help"] == COMMANDS


def test_several_errors_are_all_told_and_the_first_decides_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(raising(SeveralErrors([BAD_POLICY("a", "b"), BAD_PCI_ADDRESS("c", "d")])), {}) == 78
    assert capsys.readouterr().err == (
        "error[LK401]: a\nhelp: b\nhelp: `launcherkit explain LK401` says more.\nerror[LK101]: c\nhelp: d\n" + MORE
    )


def test_errors_of_one_code_have_one_line_on_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    guarded(raising(SeveralErrors([BAD_PCI_ADDRESS("a", "b"), BAD_PCI_ADDRESS("c", "d")])), {})
    assert capsys.readouterr().err == "error[LK101]: a\nhelp: b\nerror[LK101]: c\nhelp: d\n" + MORE


def test_a_form_of_the_log_that_there_is_not_is_an_error_before_anything_is_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def work() -> int:
        raise AssertionError("nothing is done")

    assert guarded(work, {"LAUNCHERKIT_LOG_FORMAT": "xml"}) == 78
    assert "LAUNCHERKIT_LOG_FORMAT='xml' is none of text, json" in capsys.readouterr().err


def test_in_json_every_line_is_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    env = {"LAUNCHERKIT_LOG_FORMAT": "json"}
    guarded(raising(BAD_PCI_ADDRESS("a\nb", "c")), env)
    print_notes([Note("repeat", "d")], env)
    assert [json.loads(line) for line in capsys.readouterr().err.splitlines()] == [
        {"level": "error", "code": "LK101", "message": "a b", "help": "c"},
        {"level": "note", "topic": "repeat", "message": "d"},
    ]


def test_a_note_is_one_line_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_message("note", "a\nerror[LK101]: b", {})
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("bug", [KeyError("x"), RecursionError(), MemoryError(), AssertionError()])
def test_a_bug_is_reported_as_one_without_a_traceback(bug: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(raising(bug), {}) == 70
    reported = capsys.readouterr().err
    assert reported.startswith(f"error: internal error: {type(bug).__name__}")
    assert "Traceback" not in reported


def test_whoever_looks_for_the_bug_gets_the_traceback() -> None:
    with pytest.raises(KeyError):
        guarded(raising(KeyError("x")), {"LAUNCHERKIT_DEBUG": "1"})


def test_an_interrupt_is_130() -> None:
    assert guarded(raising(KeyboardInterrupt()), {}) == 130


def test_what_cannot_be_encoded_is_reported_all_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    print_message("note", "a\ud800b", {})
    assert "a" in capfd.readouterr().err


def test_every_error_has_a_code_of_its_own_and_a_documented_exit_code() -> None:
    codes = LauncherkitError.codes()
    assert len(codes) == len({id(error) for error in codes.values()})
    assert {error.exit_code for error in codes.values()} <= {2, 65, 69, 70, 78}


def python(code: str, redirect: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run code with streams as the shell redirects them."""
    command = f'exec "$0" -c "$1" {redirect}'
    return subprocess.run(
        ["bash", "-c", command, sys.executable, code], input=stdin, capture_output=True, cwd=ROOT, check=False
    )


FAIL = (
    "import sys; from launcherkit.process.edge import guarded; from launcherkit.errors import BAD_VMI\n"
    "def run(): raise BAD_VMI('a', 'b')\n"
    "sys.exit(guarded(run, {}))"
)
WRITE = (
    "import sys; from launcherkit.process.edge import *; "
    "sys.exit(guarded(lambda: write_stdout(b'x' * 1_000_000) or 0, {}))"
)


def test_with_stderr_closed_nothing_of_a_message_gets_to_stdout() -> None:
    done = python(FAIL, "2>&-")
    assert (done.returncode, done.stdout) == (65, b"")


def test_with_stderr_full_the_exit_code_stays() -> None:
    assert python(FAIL, "2>/dev/full").returncode == 65


@pytest.mark.parametrize("redirect", [">&-", ">/dev/full"])
def test_a_result_that_cannot_be_written_is_an_error(redirect: str) -> None:
    done = python(WRITE, redirect)
    assert done.returncode == 65
    assert done.stderr.startswith(b"error[LK132]")


def test_a_result_stands_behind_what_was_printed_before() -> None:
    code = "from launcherkit.process.edge import *; print('first'); write_stdout(b'second')"
    env = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, check=True)
    assert done.stdout == b"first\nsecond"


def test_a_reader_that_has_gone_is_no_traceback() -> None:
    done = python(WRITE, "| true; exit ${PIPESTATUS[0]}")
    assert b"Traceback" not in done.stderr


def test_a_large_result_goes_out_whole() -> None:
    assert python(WRITE, "").stdout == b"x" * 1_000_000


def test_what_was_printed_before_comes_before(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    sys.stdout.write("a")
    write_stdout(b"b")
    os.write(1, b"c")
    assert capfdbinary.readouterr().out == b"abc"
