"""What the daemon tells, line by line."""

from __future__ import annotations

import json

import pytest

from launcherkit.errors import BadPciAddress, BadPolicy, SeveralErrors
from launcherkit_plugin.telemetry.reporter import Lines, log_error, silent


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
    errors = SeveralErrors([BadPolicy("a is wrong", "Mend a."), BadPciAddress("b is wrong", "Mend b.")])
    log_error(Lines({}, lambda: 0.0), errors)
    assert capsys.readouterr().err == "error: LK401: a is wrong. Mend a.\nerror: LK101: b is wrong. Mend b.\n"


def test_silence_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    log_error(silent, BadPolicy("a", "b"))
    assert capsys.readouterr() == ("", "")
