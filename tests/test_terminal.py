"""Text for people fits the terminal; in a pipe it is whole."""

from __future__ import annotations

import io
import re
import sys

import pytest

from launcherkit.colour import Colours, unmarked
from launcherkit.process.terminal import fitted, terminal_columns
from tests.support import forked
from tests.support.forked import LAUNCHERKIT, PLUGIN
from tests.support.imports import ROOT
from tests.support.terminal import run_on_terminal

DEMO = ROOT / "launcherkit" / "demo_data"
INPUTS = [f"--{name}={DEMO / file}" for name, file in (("domain", "domain.xml"), ("vmi", "vmi.json"))]
INPUTS += [f"--env-file={DEMO / 'env.txt'}"]
HOST = f"--host={DEMO / 'host.json'}"
COMMANDS = {
    "explain": [LAUNCHERKIT, "explain", HOST, *INPUTS],
    "doctor": [LAUNCHERKIT, "doctor", HOST, *INPUTS],
    "matrix": [LAUNCHERKIT, "topology", HOST, "--matrix"],
    "discover": [PLUGIN, "discover", HOST, "-o", "wide"],
}


def test_what_goes_on_in_the_next_line_stands_below_its_column() -> None:
    assert (
        fitted("a  long  one two three four\nshort\n", 18) == "a  long  one two\n         three\n         four\nshort\n"
    )


def test_where_no_column_is_in_the_left_half_it_stands_a_little_to_the_right() -> None:
    assert fitted("  one two three four five", 14) == "  one two\n      three\n      four\n      five"


def test_a_word_that_is_too_wide_is_not_broken_and_the_lines_of_a_tree_are_left_alone() -> None:
    assert fitted("a b " + "c" * 30, 10) == "a b\n    " + "c" * 30
    assert fitted("c" * 30 + " a", 10).split() == ["c" * 30, "a"]
    assert not fitted("c" * 30 + " a", 10).startswith("\n")
    assert fitted("   │ one two three", 10) == "   │ one two three"


def test_colours_take_no_room() -> None:
    line = f"a  {Colours(True).bad('one two')} three"
    assert fitted(line, len(unmarked(line))) == line
    assert unmarked(fitted(line, 12)) == "a  one two\n   three"


@pytest.mark.parametrize("name", COMMANDS)
def test_on_a_terminal_lines_are_wrapped_and_in_a_pipe_they_are_whole(name: str) -> None:
    shown = run_on_terminal(COMMANDS[name], {"TERM": "dumb", "COLUMNS": "60"}).decode()
    piped = forked.run(COMMANDS[name], env={"COLUMNS": "60"}, capture_output=True, text=True).stdout
    words = re.compile(r"[^\s│├└┌─]+")
    assert words.findall(piped) == words.findall(shown)
    long = [line for line in shown.splitlines() if len(line) > 60 and " " in line.strip(" │├└┌─")]
    assert long == []
    if name != "explain":
        assert max(map(len, piped.splitlines())) > 60


def test_how_wide_a_terminal_is_counts_where_no_variable_says_it() -> None:
    shown = run_on_terminal(COMMANDS["discover"], {"TERM": "dumb"}, columns=50).decode()
    assert max(map(len, shown.splitlines())) in range(40, 51)
    assert shown == run_on_terminal(COMMANDS["discover"], {"TERM": "dumb", "COLUMNS": "50"}, columns=99).decode()


def test_where_a_terminal_does_not_say_how_wide_it_is_nothing_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Window(io.StringIO):
        """What an IDE may have: a terminal without a descriptor."""

        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Window())
    assert terminal_columns({}) is None
    assert terminal_columns({"COLUMNS": "70"}) == 70
    whole = run_on_terminal(COMMANDS["discover"], {"TERM": "dumb"}, columns=0).decode()
    assert max(map(len, whole.splitlines())) > 60
