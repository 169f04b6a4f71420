"""Every error code has a page, the page is true to the code, and the table of all codes is complete."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

import launcherkit.errors
import launcherkit_plugin.model.errors
from launcherkit.errors import (
    EX_CONFIG,
    EX_DATAERR,
    EX_UNAVAILABLE,
    GROUP_NOT_VIABLE,
    Code,
    Collector,
    ErrorFields,
    LauncherkitError,
    SeveralErrors,
)
from launcherkit.golden.case import read_case
from launcherkit.golden.invoke import Scratch, translate_case
from tests.support.errors import raises_code
from tools.dev.errors import with_table

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "errors"
GOLDENS = ROOT / "tests" / "golden"
PROVOKED = ROOT / "tests" / "provoked"
"""Messages of errors that no golden case can give, a line each; the tests that provoke them read them from here."""
CODES = LauncherkitError.codes()


def page(code: str) -> str:
    return (PAGES / f"{code}.md").read_text(encoding="utf-8")


def title(code: str) -> str:
    return page(code).splitlines()[0].removeprefix(f"# {code}: ")


def told_by_goldens() -> set[str]:
    files = [*GOLDENS.glob("*/expected.error"), *PROVOKED.glob("*.error")]
    lines = (file.read_text(encoding="utf-8").splitlines() for file in files)
    return {line for case in lines for line in case}


def rows() -> dict[str, Code[LauncherkitError]]:
    """Every row of both tables, by its name in the code."""
    modules = (launcherkit.errors, launcherkit_plugin.model.errors)
    return {name: row for module in modules for name, row in vars(module).items() if isinstance(row, Code)}


def kinds() -> dict[str, type[LauncherkitError]]:
    """Every class that a code's errors may have, by its name."""
    return {row.kind.__name__: row.kind for row in CODES.values()}


def test_codes_are_of_two_letters_and_three_digits_and_each_has_one_row() -> None:
    assert all(re.fullmatch(r"LK\d{3}", code) for code in CODES)
    assert sorted(row.code for row in rows().values()) == list(CODES)
    assert {row.code: row for row in rows().values()} == CODES


def test_a_code_makes_an_error_of_its_class_with_its_code_and_exit_code() -> None:
    for code, row in CODES.items():
        error = row("what", "do this")
        assert (type(error), error.code, error.exit_code) == (row.kind, code, row.exit_code)


def test_the_class_alone_is_not_the_error_that_a_test_expects() -> None:
    with pytest.raises(AssertionError, match="LK102 is raised, not LK101: what"), raises_code(CODES["LK101"]):
        raise CODES["LK102"]("what", "do this")


def test_every_class_is_of_some_code() -> None:
    """But for `LauncherkitError`, which is all of them, and `SeveralErrors`."""
    assert _all_subclasses(LauncherkitError) - {LauncherkitError, SeveralErrors} == set(kinds().values())


def _all_subclasses(cls: type[LauncherkitError]) -> set[type[LauncherkitError]]:
    """Those of the two modules; tests may have more."""
    found = {cls}.union(*(_all_subclasses(sub) for sub in cls.__subclasses__()))
    return {each for each in found if each.__module__.split(".")[0] in ("launcherkit", "launcherkit_plugin")}


def test_the_page_of_the_python_api_says_of_each_class_what_its_docstring_says() -> None:
    text = (ROOT / "docs/reference/python-api.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text.partition("| class |")[2].partition("\n\n")[0], re.M))
    said = {name: " ".join((kind.__doc__ or "").split()).replace("``", "`") for name, kind in kinds().items()}
    assert {name: about.removesuffix(".") for name, about in said.items()} == told


def test_the_page_of_the_python_api_has_every_field_of_an_error() -> None:
    text = (ROOT / "docs/reference/python-api.md").read_text(encoding="utf-8")
    fields = re.findall(r"^\| `(\w+)` \|", text.partition("| field of an error |")[2].partition("\n\n")[0], re.M)
    assert fields == list(ErrorFields.__annotations__)


def test_the_page_of_all_errors_has_the_table_of_all_codes() -> None:
    text = (PAGES / "README.md").read_text(encoding="utf-8")
    assert text == with_table(text), "stale: run python -m tools.dev.errors"
    assert text.count("\n| [LK") == len(CODES)


def test_a_row_has_the_title_of_its_page() -> None:
    assert {code: row.title for code, row in CODES.items()} == {code: title(code) for code in CODES}


def test_there_is_no_page_without_a_code() -> None:
    assert {file.stem for file in PAGES.glob("*.md")} == {"README", *CODES}


def test_a_page_has_its_parts_and_a_readable_length() -> None:
    for code in CODES:
        lines = page(code).splitlines()
        assert lines[0] == f"# {code}: {title(code)}"
        parts = [line for line in lines if line.startswith("## ")]
        assert parts == ["## Example", "## What to do", "## See also"], code
        assert 15 <= len(lines) <= 40, code
        assert page(code).count("```") % 2 == 0, code
        assert f"Exit code: {CODES[code].exit_code}." in lines[-1], code


def test_a_page_refers_to_codes_that_exist() -> None:
    for code in CODES:
        mentioned = set(re.findall(r"LK\d{3}", page(code)))
        assert mentioned <= set(CODES), f"the page of {code} names a code that isn't there"
        assert len(mentioned) > 1, f"the page of {code} names no related code"


def test_the_example_of_a_page_is_what_a_golden_case_gives() -> None:
    """Where a message is changed, the page is stale: paste the new one from the case's ``expected.error``."""
    reported = told_by_goldens()
    for code in CODES:
        shown = re.findall(r"^error\[(LK\d{3})\]: (.*)$", page(code), re.M)
        assert {shown_code for shown_code, _ in shown} == {code}
        assert {f"{code}: {message}" for _, message in shown} <= reported, f"no case gives the example of {code}"
        assert re.search(r"^help: .+", page(code), re.M), code


def test_exit_codes_tell_bad_input_from_bad_configuration() -> None:
    assert {row.exit_code for row in CODES.values()} == {EX_DATAERR, EX_CONFIG, EX_UNAVAILABLE}


def test_a_message_is_one_line_whatever_is_named_in_it() -> None:
    """It goes into logs, Events and gRPC statuses too, by others than our commands."""
    error = CODES["LK111"]("vmi.json: gpus 'a\nb' is \x1b[31mred\u2028", "Mend it:\nchmod +r vmi.json")
    assert error.message == str(error) == "vmi.json: gpus 'a b' is \\x1b[31mred"
    assert error.remedy == "Mend it:\nchmod +r vmi.json"


def test_errors_of_one_input_are_reported_together_and_one_alone_as_itself() -> None:
    first, second = (CODES["LK101"](message, "Mend it.") for message in ("the one", "the other"))
    errors = Collector()
    errors.raise_if_any()
    errors.add(first)
    with raises_code(CODES["LK101"]) as alone:
        errors.raise_if_any()
    assert alone.value is first
    errors.add(second)
    with pytest.raises(SeveralErrors) as together:
        errors.raise_if_any()
    assert list(together.value.leaves()) == [first, second]
    assert together.value.exit_code == EX_DATAERR
    assert "the one" in str(together.value)
    assert "the other" in str(together.value)


def test_a_bug_is_not_collected_among_the_errors_of_an_input() -> None:
    errors = Collector()
    with pytest.raises(ZeroDivisionError), errors:
        raise ZeroDivisionError
    with errors:
        raise CODES["LK101"]("the one", "Mend it.")
    assert [error.message for error in errors.errors] == ["the one"]


def test_an_error_is_the_same_after_pickling(tmp_path: Path) -> None:
    for case in sorted(path.parent for path in GOLDENS.glob("*/expected.error")):
        scratch = tmp_path / case.name
        scratch.mkdir()
        with pytest.raises(LauncherkitError) as raised:
            translate_case(read_case(str(case)), Scratch(str(scratch)))
        error = raised.value
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert (str(copy), copy.code, copy.exit_code) == (str(error), error.code, error.exit_code), case.name
        assert [*map(_said, copy.leaves())] == [*map(_said, error.leaves())], case.name


def _said(error: LauncherkitError) -> tuple[object, ...]:
    return error.code, error.message, error.remedy, error.facts


def test_every_error_keeps_its_fields_through_pickling() -> None:
    facts: ErrorFields = {"device": "0000:e1:00.0", "group": 44, "driver": "nvidia", "variable": "V", "resource": "x/R"}
    facts |= {"file": "f.xml", "key": "a.b", "domain": "vm1"}
    for code, row in CODES.items():
        copy = pickle.loads(pickle.dumps(row("what", "do this", **facts)))
        assert (type(copy), copy.code, copy.exit_code) == (row.kind, code, row.exit_code)
        assert (copy.message, copy.remedy, copy.facts) == ("what", "do this", facts), code
        assert {name: getattr(copy, name) for name in facts} == facts, code


def test_an_error_carries_what_it_is_about(tmp_path: Path) -> None:
    with raises_code(GROUP_NOT_VIABLE) as raised:
        translate_case(read_case(str(GOLDENS / "error-group-not-viable")), Scratch(str(tmp_path)))
    error = raised.value
    assert error.device is not None
    assert error.device in error.message
    assert f"IOMMU group {error.group} " in error.message
    assert error.message.endswith(f" {error.driver}")
    assert (error.variable, error.file) == (None, None)
