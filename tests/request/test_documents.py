"""Documents that people write by hand."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from launcherkit.errors import BAD_POLICY, SeveralErrors
from launcherkit.request.documents import MAX_BYTES, parse_document, validate_document
from tests.support.errors import raises_code


class Shelf(BaseModel):
    books: int
    names: tuple[str, ...] = ()


def parse(text: str | bytes) -> object:
    return parse_document(text, "shelf.yaml", BAD_POLICY, "Mend it.")


def test_yaml_and_json_are_read_and_nothing_is_an_empty_mapping() -> None:
    assert parse("a: [1, true, x]") == parse('{"a": [1, true, "x"]}') == {"a": [1, True, "x"]}
    assert parse("") == parse("# x") == {}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_bytes_are_read_in_yamls_encodings(encoding: str) -> None:
    assert parse("a: \u00e9".encode(encoding)) == {"a": "\u00e9"}


def test_an_error_names_the_document_the_place_and_the_remedy() -> None:
    with raises_code(BAD_POLICY, match=r"shelf.yaml: not YAML: .*line 2") as raised:
        parse("a: b\n  c: [")
    assert raised.value.remedy == "Mend it."


def test_keys_stand_once_and_aliases_are_refused_at_any_depth() -> None:
    for text in ("a: 1\na: 2", "a: {b: 1, b: 2}", "- {b: 1, 'b': 2}"):
        with raises_code(BAD_POLICY, match="twice"):
            parse(text)
    with raises_code(BAD_POLICY, match="aliases"):
        parse("a: &x 1\nb: {c: [*x]}")


def test_a_document_has_an_end() -> None:
    assert parse("#" + "x" * (MAX_BYTES - 1)) == {}
    with raises_code(BAD_POLICY, match=str(MAX_BYTES)):
        parse("#" + "x" * MAX_BYTES)


def test_bytes_in_no_encoding_are_an_error() -> None:
    with raises_code(BAD_POLICY, match="not YAML"):
        parse(b"a: \xff\xff\xff")


def test_every_fault_has_its_path() -> None:
    with pytest.raises(SeveralErrors) as raised:
        validate_document(Shelf, {"books": "many", "names": ["a", 1]}, "shelf.yaml", BAD_POLICY, "Mend it.")
    messages = [leaf.message for leaf in raised.value.leaves()]
    assert [message.partition(":")[0] for message in messages] == ["shelf.yaml, books", "shelf.yaml, names.1"]
    assert "found 'many'" in messages[0]


@pytest.mark.parametrize(
    "value", ["x" * 100_000, 10**5_000, [10**5_000], {"x": 1}], ids=["text", "int", "nested-int", "mapping"]
)
def test_a_giant_value_is_shown_cut_short(value: object) -> None:
    with raises_code(BAD_POLICY) as raised:
        validate_document(Shelf, {"books": 1, "names": value}, "shelf.yaml", BAD_POLICY, "Mend it.")
    assert len(raised.value.message) < 300


def test_what_is_well_comes_as_the_model() -> None:
    assert validate_document(Shelf, {"books": 3}, "x", BAD_POLICY, "y").books == 3


def test_numbers_can_be_left_as_they_are_written() -> None:
    text = "a: 1002\nb: 0x10de\nc: 0300\nd: 1.50\ne: 2001-01-01\nf: yes\ng: null\nh: 1_000\n1002: 20:30"
    read = parse_document(text, "shelf.yaml", BAD_POLICY, "Mend it.", numbers=False)
    written = {"a": "1002", "b": "0x10de", "c": "0300", "d": "1.50", "e": "2001-01-01", "h": "1_000", "1002": "20:30"}
    assert read == {**written, "f": True, "g": None}


def test_a_fault_speaks_of_no_classes() -> None:
    with raises_code(BAD_POLICY) as raised:
        validate_document(Shelf, ["a"], "shelf.yaml", BAD_POLICY, "Mend it.")
    assert raised.value.message == "shelf.yaml, the document: Input should be an object; found a list"
