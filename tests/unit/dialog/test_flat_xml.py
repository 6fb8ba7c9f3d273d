"""XML of one level: every name that XML can hold comes back as it was, and nothing else than that is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.dialog.route_requests import BODY_MAX_BYTES, FlatXml, can_hold, parse_flat_xml, render_flat_xml

HELD = st.text(st.characters(exclude_categories=["Cs"])).filter(can_hold)


@given(HELD, HELD)
def test_any_text_comes_back_as_it_was(one: str, other: str) -> None:
    document = FlatXml("Root", "http://example/names", {"ONE": one, "OTHER": other})

    assert document == parse_flat_xml(render_flat_xml(document))


@pytest.mark.parametrize("text", ["</ONE><TWO>x</TWO>", "a & b", "]]>", "<!-- -->", "\r\n\t ", "'\"", "&#0;"])
def test_hostile_texts_stay_texts(text: str) -> None:
    document = FlatXml("Root", "http://example/names", {"ONE": text})

    assert document == parse_flat_xml(render_flat_xml(document))


@pytest.mark.parametrize("text", ["\x00", "a\x1b", "\ufffe", "\x0b"])
def test_what_xml_cannot_write_is_told(text: str) -> None:
    assert not can_hold(text)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_every_encoding_that_says_what_it_is_is_read(encoding: str) -> None:
    body = "<Root xmlns='http://a'><ONE>ä</ONE></Root>".encode(encoding)

    assert FlatXml("Root", "http://a", {"ONE": "ä"}) == parse_flat_xml(body)


def test_the_namespace_is_read_without_telling_https_from_http() -> None:
    assert "http://a" == parse_flat_xml(b"<Root xmlns='https://a'/>").namespace


def test_text_between_the_elements_is_no_text() -> None:
    assert {"ONE": "1"} == parse_flat_xml(b"<Root>\n <ONE>1</ONE>\n</Root>").texts


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no XML"),
        (b"<Root", "no XML"),
        (b"<?xml version='1.0' encoding='klingon'?><Root/>", "no XML"),
        (b"<!DOCTYPE a [<!ENTITY b 'bbbb'>]><a>&b;</a>", "document type"),
        (b"<Root><ONE><TWO/></ONE></Root>", "stands inside"),
        (b"<Root><ONE/><ONE/></Root>", "twice"),
        (b"<Root>" + b" " * BODY_MAX_BYTES + b"</Root>", "above"),
    ],
)
def test_what_is_not_flat_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_flat_xml(body)
