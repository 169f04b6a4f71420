"""The tool that makes lines wrong: what it changes, and that what it may leave is still there."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

import pytest

from tests.mutation.__main__ import accepted, turn_of
from tests.mutation.mutants import Mutant, chosen, mutants
from tests.mutation.rooms import files_for, rooms
from tests.mutation.trial import Calls, Copy
from tests.support.imports import ROOT

SOURCE = '''\
"""Docstrings stay."""
LIMIT = 3


class A:
    def f(self, one: int = 1) -> bool:
        """So do these."""
        if one < LIMIT and not self.g(one, self.h):
            raise ValueError(f"{one} stays")
        return one == 7  # ü
'''


def changes(source: str) -> set[tuple[int, str, str]]:
    return {(each.line, each.before, each.after) for each in mutants("a.py", source)}


def test_each_place_is_changed_in_its_own_way() -> None:
    condition = "one < LIMIT and (not self.g(one, self.h))"
    assert changes(SOURCE) == {
        (2, "3", "4"),
        (6, "1", "2"),
        (8, condition, "one < LIMIT or not self.g(one, self.h)"),
        (8, condition, f"not ({condition})"),
        (8, condition, "False"),
        (8, "one < LIMIT", "one <= LIMIT"),
        (8, "not self.g(one, self.h)", "self.g(one, self.h)"),
        (8, "self.g(one, self.h)", "self.g(self.h, one)"),
        (9, "raise ValueError(f'{one} stays')", "pass"),
        (10, "return one == 7", "return None"),
        (10, "one == 7", "one != 7"),
        (10, "7", "8"),
    }


def test_every_mutant_compiles_and_keeps_all_other_lines() -> None:
    for mutant in mutants("a.py", SOURCE):
        ast.parse(mutant.source)
        lines, changed = SOURCE.splitlines(), mutant.source.splitlines()
        assert lines[: mutant.line - 1] == changed[: mutant.line - 1]
        assert len(lines) == len(changed)


def test_the_choice_is_the_same_every_time_and_elsewhere_when_a_function_is_added() -> None:
    before = mutants("a.py", SOURCE)
    after = mutants("a.py", f"def new() -> int:\n    return 5\n\n\n{SOURCE}")
    keys = [mutant.key for mutant in chosen(before, 5, 1)]
    assert keys == [mutant.key for mutant in chosen(list(reversed(before)), 5, 1)]
    assert keys == [mutant.key for mutant in chosen(after, len(after), 1) if mutant.function != "new"][:5]
    assert keys != [mutant.key for mutant in chosen(before, 5, 2)]


def test_accepted_mutants_are_still_there() -> None:
    found: dict[str, set[object]] = {}
    for key, why in accepted().items():
        if key[0] not in found:
            found[key[0]] = {mutant.key for mutant in mutants(key[0], (ROOT / key[0]).read_text())}
        assert key in found[key[0]], f"remove this entry of accepted.toml, its line has changed: {key}"
        assert why


def test_every_package_is_a_room_with_tests() -> None:
    assert [room.name for room in rooms(ROOT) if not files_for(room, ROOT)] == []


def test_a_rooms_own_tests_come_first() -> None:
    """Should the time be up before all of them were found."""
    known = {room.name: room for room in rooms(ROOT)}
    files = {name: files_for(known[name], ROOT) for name in ("launcherkit/choose", "plugin/launcherkit_plugin/dra")}
    assert files["launcherkit/choose"][0].startswith("tests/choose/")
    assert files["plugin/launcherkit_plugin/dra"][0].startswith("tests/plugin/dra/")


def test_every_room_has_its_turn_and_the_same_one_for_the_same_commit() -> None:
    known = rooms(ROOT)
    commits = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(500)]
    turns = [turn_of(commit, known) for commit in commits]
    assert {room.name for room, _ in turns} == {room.name for room in known}
    assert turns == [turn_of(commit, known) for commit in commits]


def test_where_no_call_was_seen_a_mutant_meets_the_other_tests_of_its_package() -> None:
    """Of a Python that was started without its environment, and of what a cached function has called only once."""
    seconds = {"tests/a/test_a.py::slow": 9.0, "tests/a/test_a.py::quick": 1.0, "tests/b/test_b.py::other": 1.0}
    seen = {("a/one.py", 5): {"tests/a/test_a.py::quick": True}}
    calls = Calls(seconds, frozenset(), seen)
    mutant = Mutant("a/one.py", "f", 6, 5, "", "", "")
    assert calls.of(mutant, 30.0) == ["tests/a/test_a.py::quick"]
    assert calls.unseen("tests/a", calls.of(mutant, 30.0), 30.0) == ["tests/a/test_a.py::slow"]
    assert calls.of(mutant._replace(first=9), 30.0) == []
    assert calls.of(mutant._replace(first=0), 30.0) == ["tests/a/test_a.py::quick"]


def test_what_was_called_while_tests_were_imported_is_noticed_by_all_that_call_its_module() -> None:
    seconds = {"tests/test_a.py::one": 2.0, "tests/test_a.py::other": 1.0}
    seen = {("a.py", 1): {"tests/test_a.py::one": True}, ("a.py", 5): {"tests/test_a.py::other": True}}
    mutant = Mutant("a.py", "f", 2, 1, "", "", "")
    assert Calls(seconds, frozenset(), seen).of(mutant, 30.0) == ["tests/test_a.py::one"]
    everywhere = Calls(seconds, frozenset(), seen, frozenset({("a.py", 1)}))
    assert everywhere.of(mutant, 30.0) == ["tests/test_a.py::other", "tests/test_a.py::one"]


@pytest.mark.slow
def test_a_mutant_is_noticed_by_the_test_that_calls_its_function(tmp_path: Path) -> None:
    copy = Copy(ROOT, tmp_path)
    module = "launcherkit/diff.py"
    calls = copy.record(["tests/test_diff.py"], ["launcherkit"])
    source = (ROOT / module).read_text()
    some = [mutant for mutant in chosen(mutants(module, source), 8, 1) if calls.of(mutant, 30)]
    assert [mutant for mutant in some if copy.kills(mutant, calls.of(mutant, 30), 60)]
    same = Mutant(module, "", 1, 0, "", "", source)
    assert not copy.kills(same, list(calls.seconds), 60)
    assert (tmp_path / module).read_text() == source
    too_late = copy.record(["tests/test_diff.py"], ["launcherkit"], ends=0.0)
    assert not too_late.seconds
    assert too_late.unread == {"tests"}
