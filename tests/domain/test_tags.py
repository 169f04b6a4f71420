"""Where elements stand in the bytes of a document."""

from __future__ import annotations

import pytest
from lxml import etree

from launcherkit.domain.xml import attribute_value, element_spans

ODD = [
    "<a/>",
    "<a />",
    "<a\n\t/>",
    "<a></a >",
    "<a><b/><c></c></a>",
    "<a><!-- <b> --><b/><!----><!-- > '\" --></a>",
    "<a><![CDATA[<b></a>]]><b/><![CDATA[]]]]><![CDATA[>]]></a>",
    "<?xml version='1.0'?><?pi <b> > ?><a><?pi?><b/></a><?end </a>?><!-- </a> -->",
    "<a b='>' c=\"/>\" d='\"' e=\"'>'\"><b/></a>",
    "<a b = '1'\n  c\t=\r\n\"2\"/>",
    "<a b='x/'>y</a>",
    "<a xmlns:q='u'><q:b q:c='>'/><b xmlns='v'><c/></b></a>",
    "<a>text ' with \" quotes > and </a>",
    "<a><b>'</b><b>\"</b></a>",
    "<\u00e9 \u00fc='>'><\u4e2d/></\u00e9>",
    "\ufeff<a><b/></a>\n",
    "<a.b-c_d:e xmlns:a.b-c_d='u'/>",
    "<a/>\n<!-- <b/> -->\n<?x <c/> ?>",
    "<a>" * 200 + "</a>" * 200,
]


@pytest.mark.parametrize("text", ODD)
def test_spans_are_those_of_the_elements_that_lxml_sees_in_the_same_order(text: str) -> None:
    data = text.encode()
    elements = list(etree.fromstring(data).iter(etree.Element))
    spans = element_spans(data)
    assert len(spans) == len(elements)
    for element, span in zip(elements, spans, strict=True):
        name = etree.QName(element).localname
        assert data[span.start : span.start + 1] == b"<"
        assert (
            data[span.start : span.open_end].split()[0].strip(b"</>").decode().rpartition(":")[2]
            == name.rpartition(":")[2]
        )
        assert data[span.end - 1 : span.end] == b">"
        if span.empty:
            assert span.open_end == span.close == span.end
            assert data[: span.end].endswith(b"/>")
        else:
            assert data[span.close : span.end].startswith(b"</")


def test_a_span_holds_what_is_in_its_element() -> None:
    data = b"<a><b c='>'>x<d/></b ></a>"
    _, inner, leaf = element_spans(data)
    assert data[inner.open_end : inner.close] == b"x<d/>"
    assert data[inner.start : inner.end] == b"<b c='>'>x<d/></b >"
    assert data[leaf.start : leaf.end] == b"<d/>"
    assert (inner.empty, leaf.empty) == (False, True)


@pytest.mark.parametrize(
    ("tag", "name", "value"),
    [
        ("<a b='1'/>", "b", "1"),
        ("<a bb='2' b='1'/>", "b", "1"),
        ("<a x='b=' b='1'/>", "b", "1"),
        ('<a x="b=\'9\'" b="it\'s"/>', "b", "it's"),
        ("<a\n\tb\n=\t'1'/>", "b", "1"),
        ("<a b=''/>", "b", ""),
        ("<a x:b='2' xmlns:x='u'/>", "b", None),
        ("<a/>", "b", None),
        ("<a>b='1'</a>", "b", None),
        ("<a c='b'/>", "b", None),
        ("<b a='1'/>", "b", None),
        ("<\u00e9 \u00fc='2' b='1'/>", "b", "1"),
    ],
)
def test_an_attributes_value_is_found_by_its_whole_name_outside_other_values(
    tag: str, name: str, value: str | None
) -> None:
    data = tag.encode()
    found = attribute_value(data, element_spans(data)[0], name)
    assert (None if found is None else data[found[0] : found[1]].decode()) == value


@pytest.mark.parametrize(
    "text",
    [
        "<a>" + "<b c='d'/>" * 100_000 + "</a>",
        "<a b='" + "='>" * 0 + "=>" * 1_000_000 + "'/>",
        "<a><!--" + "- " * 1_000_000 + "--></a>",
    ],
    ids=["many", "long-value", "long-comment"],
)
def test_large_documents_are_walked_once(text: str) -> None:
    data = text.encode()
    spans = element_spans(data)
    assert spans[0].start == 0
    assert spans[0].end == len(data)
