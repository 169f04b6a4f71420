"""What the daemon tells, line by line."""

from __future__ import annotations

import json

import pytest

from launcherkit.errors import BAD_PCI_ADDRESS, BAD_POLICY, SeveralErrors
from launcherkit_plugin.telemetry.reporter import Lines, Reporter


def test_text_has_the_message_and_no_fields(capsys: pytest.CaptureFixture[str]) -> None:
    Lines({}, lambda: 0.0)("info", "registered\n nvidia.com/A", resource="nvidia.com/A")
    assert capsys.readouterr() == ("", "info: registered nvidia.com/A\n")


def test_json_has_the_time_and_the_fields_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    Lines({"LAUNCHERKIT_LOG_FORMAT": "json"}, lambda: 1.5)("warning", "gone", device="0000:01:00.0", numa=None, group=7)
    assert json.loads(capsys.readouterr().err) == {
        "level": "warning",
        "time": "1970-01-01T00:00:01.500+00:00",
        "device": "0000:01:00.0",
        "group": "7",
        "message": "gone",
    }


def test_what_a_terminal_would_act_upon_is_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    Lines({}, lambda: 0.0)("error", "driver \x1b[2J")
    assert capsys.readouterr().err == "error: driver \\x1b[2J\n"


def test_each_of_several_errors_has_its_line_with_code_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    errors = SeveralErrors([BAD_POLICY("a is wrong", "Mend a."), BAD_PCI_ADDRESS("b is wrong", "Mend b.")])
    Reporter(Lines({}, lambda: 0.0)).error(errors)
    assert capsys.readouterr().err == "error: LK401: a is wrong. Mend a.\nerror: LK101: b is wrong. Mend b.\n"


def test_silence_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter().error(BAD_POLICY("a", "b"))
    assert capsys.readouterr() == ("", "")


class Told:
    """What a reporter has said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.events: list[tuple[str, str, str]] = []
        self.reporter = Reporter(self._log, events=self)

    def _log(self, level: str, text: str, **fields: object) -> None:
        self.lines.append(f"{level}: {text}")

    def event(self, type: str, reason: str, message: str) -> None:  # noqa: A002
        self.events.append((type, reason, message))


WRONG, OTHERWISE = BAD_POLICY("a is wrong", "Mend a."), BAD_POLICY("a is wrong otherwise", "Mend it.")


def test_a_problem_is_reported_once_until_it_changes() -> None:
    reported = Told()
    new = [
        reported.reporter.problem("a", error, "PolicyRefused") for error in (WRONG, WRONG, OTHERWISE, OTHERWISE, WRONG)
    ]
    assert new == [True, False, True, False, True]
    assert reported.lines == [
        "error: LK401: a is wrong. Mend a.",
        "error: LK401: a is wrong otherwise. Mend it.",
        "error: LK401: a is wrong. Mend a.",
    ]
    assert reported.events[0] == ("Warning", "PolicyRefused", "a is wrong")
    assert len(reported.events) == 3


def test_a_problem_that_was_over_is_reported_again_and_others_are_not_touched() -> None:
    reported = Told()
    for about in ("a", "b"):
        reported.reporter.problem(about, WRONG)
    reported.reporter.solved("a")
    assert [reported.reporter.problem(about, WRONG) for about in ("a", "b")] == [True, False]
    reported.reporter.forget()
    assert reported.reporter.problem("b", WRONG)


def test_a_problem_that_must_last_is_reported_when_it_has() -> None:
    reported = Told()
    assert [reported.reporter.problem("a", WRONG, after=2) for _ in range(3)] == [False, True, False]
    reported.reporter.solved("a")
    assert not reported.reporter.problem("a", WRONG, after=2)


def test_a_reporter_that_begins_anew_says_again_what_goes_on() -> None:
    reported = Told()
    reported.reporter.problem("a", WRONG)
    assert reported.reporter.anew().problem("a", WRONG)
    assert not reported.reporter.problem("a", WRONG)


def test_what_happened_is_a_line_and_an_event() -> None:
    reported = Told()
    reported.reporter.happened("DevicesBound", "bound: a")
    reported.reporter.happened("DeviceUnhealthy", "a is gone", "warning")
    assert reported.lines == ["info: bound: a", "warning: a is gone"]
    assert reported.events == [("Normal", "DevicesBound", "bound: a"), ("Warning", "DeviceUnhealthy", "a is gone")]
