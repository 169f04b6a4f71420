"""What is let in as a domain document, and what is refused (X5)."""

from __future__ import annotations

import pytest

from launcherkit.domain.xml import MAX_BYTES, read_document
from launcherkit.errors import (
    BAD_ENCODING,
    DOMAIN_TOO_LARGE,
    FORBIDDEN_XML,
    NOT_A_DOMAIN,
    NOT_XML,
    BadInput,
    LauncherkitError,
)
from tests.support.errors import raises_code

LAUGHS = "".join(f"<!ENTITY a{level} '{f'&a{level - 1};' * 10}'>" for level in range(1, 10))


@pytest.mark.parametrize(
    "text",
    [
        "<!DOCTYPE domain><domain/>",
        "<!DOCTYPE domain SYSTEM 'file:///etc/passwd'><domain/>",
        "<!DOCTYPE domain PUBLIC 'x' 'http://localhost:1/x.dtd'><domain/>",
        "<!DOCTYPE domain [<!ENTITY a 'b'>]><domain>&a;</domain>",
        "<!DOCTYPE domain [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><domain>&a;</domain>",
        "<!DOCTYPE domain [<!ENTITY % a SYSTEM 'file:///etc/passwd'> %a;]><domain/>",
        f"<!DOCTYPE domain [<!ENTITY a0 'xxxxxxxxxx'>{LAUGHS}]><domain a='&a9;'>&a9;</domain>",
        "<!DOCTYPE domain [<!ATTLIST domain type CDATA 'kvm'>]><domain/>",
        "<domain>&undefined;</domain>",
    ],
    ids=[
        "empty",
        "system",
        "public",
        "entity",
        "external-entity",
        "parameter-entity",
        "laughs",
        "attlist",
        "undefined",
    ],
)
def test_document_types_and_entities_are_refused(text: str) -> None:
    for document in (text, text.encode()):
        with raises_code(FORBIDDEN_XML):
            read_document(document)


def test_an_xinclude_is_an_element_like_any_other() -> None:
    text = b"<domain><x:include xmlns:x='http://www.w3.org/2001/XInclude' href='/etc/hostname' parse='text'/></domain>"
    document = read_document(text)
    assert document.data == text
    assert [element.tag for element in document.root] == ["{http://www.w3.org/2001/XInclude}include"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\0",
        "domain",
        "<domain>",
        "<domain></Domain>",
        "<domain><Entity></domain>",
        "<domain/><domain/>",
        "<domain a='1' a='2'/>",
        "<domain>\x01</domain>",
        "<domain>&#0;</domain>",
        "<domain a='<'/>",
        "<domain><!-- <!DOCTYPE x> </domain>",
        "<domain>" + "<a>" * 300 + "</a>" * 300 + "</domain>",
        "<domain>" + "<a " * 100_000,
        " <?xml version='1.0'?><domain/>",
    ],
)
def test_what_is_not_well_formed_is_an_error_of_one_short_line(text: str) -> None:
    with pytest.raises(BadInput) as raised:
        read_document(text, "vm.xml")
    assert raised.value.code in (NOT_XML.code, FORBIDDEN_XML.code)
    assert raised.value.message.startswith("vm.xml ")
    assert "\n" not in raised.value.message
    assert len(raised.value.message) < 250


def test_a_tag_called_entity_is_no_entity() -> None:
    with raises_code(NOT_XML):
        read_document("<domain><Entity></domain>")


def test_lone_surrogates_are_no_text() -> None:
    with raises_code(NOT_XML):
        read_document("<domain a='\ud800'/>")


def test_a_document_of_8_mib_is_read_and_one_byte_more_is_refused() -> None:
    start, end = b"<domain><!--", b"--></domain>"
    fitting = start + b"x" * (MAX_BYTES - len(start) - len(end)) + end
    assert MAX_BYTES == 8 * 1024 * 1024
    assert read_document(fitting).data == fitting
    with raises_code(DOMAIN_TOO_LARGE):
        read_document(fitting + b"\n")
    with raises_code(DOMAIN_TOO_LARGE):
        read_document("<domain><!--" + "\u00e9" * (MAX_BYTES // 2) + "--></domain>")


@pytest.mark.parametrize(
    "text", ["<domstatus/>", "<Domain/>", "<domain xmlns='http://x'/>", "<x:domain xmlns:x='u'/>", "<domains/>"]
)
def test_another_root_is_refused_by_name(text: str) -> None:
    with raises_code(NOT_A_DOMAIN, match="has the root <"):
        read_document(text)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "cp037"])
@pytest.mark.parametrize("declaration", ["", "<?xml version='1.0'?>", "<?xml version='1.0' encoding='{}'?>"])
def test_encodings_that_are_not_based_on_ascii_are_refused_declared_or_not(encoding: str, declaration: str) -> None:
    with pytest.raises(BadInput) as raised:
        read_document((declaration.format(encoding) + "<domain>x</domain>").encode(encoding))
    assert raised.value.code in (BAD_ENCODING.code, NOT_XML.code)


def test_a_text_that_declares_an_encoding_that_can_not_be_one_is_refused() -> None:
    for encoding in ("latin1\0", "utf-8-nobodys"):
        with raises_code(BAD_ENCODING):
            read_document(f"<?xml version='1.0' encoding='{encoding}'?><domain/>")


@pytest.mark.parametrize("encoding", ["utf-7", "shift_jis", "iso-2022-jp", "big5", "gb18030"])
def test_encodings_in_which_markup_may_hide_are_refused(encoding: str) -> None:
    with pytest.raises(LauncherkitError):
        read_document(f"<?xml version='1.0' encoding='{encoding}'?><domain>x</domain>".encode())


@pytest.mark.parametrize("encoding", ["UTF-8", "utf-8", "ISO-8859-1", "iso-8859-15", "US-ASCII", "windows-1252"])
def test_encodings_based_on_ascii_are_read_and_their_bytes_kept(encoding: str) -> None:
    data = f"<?xml version='1.0' encoding='{encoding}'?><domain a='\u00e9'/>".encode(encoding, "xmlcharrefreplace")
    document = read_document(data)
    assert document.data == data
    assert document.root.get("a") == "\u00e9"


def test_text_comes_out_as_bytes_that_are_what_they_declare() -> None:
    for encoding in ("ISO-8859-1", "UTF-8"):
        document = read_document(f"<?xml version='1.0' encoding='{encoding}'?><domain a='\u00e9\u20ac'/>")
        assert read_document(document.data).root.get("a") == "\u00e9\u20ac"
    assert read_document("<domain a='\u00e9'/>").data == "<domain a='\u00e9'/>".encode()


def test_a_byte_order_mark_of_utf_8_is_kept() -> None:
    data = b"\xef\xbb\xbf<domain/>"
    assert read_document(data).data == data
    assert read_document(data.decode()).data == data
