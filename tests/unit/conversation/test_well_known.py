"""Bodies that every service knows."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from broker.conversation.message_types import ERROR_PRIORITY, TIMER_PRIORITY, error_body, error_parts


@pytest.mark.parametrize("description", ["", "plain", "<&>\"'", "żółw 🐢"])
def test_error_body_is_the_documented_xml(description: str) -> None:
    root = ET.fromstring(error_body(42, description))

    namespace = "{http://schemas.microsoft.com/SQL/ServiceBroker/Error}"
    assert f"{namespace}Error" == root.tag
    assert [(f"{namespace}Code", "42"), (f"{namespace}Description", description or None)] == [
        (child.tag, child.text) for child in root
    ]


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (error_body(-8490, 'no <service> & "more"'), (-8490, 'no <service> & "more"')),
        (b"<Code> 7 </Code><Description>&#65;&#x42;&apos;&nope;&#0;</Description>", (7, "AB'&nope;\ufffd")),
        (b"<Code>7<Description>one<Description>two</Description></Description>", (None, "one<Description>two")),
        (b"<Description>" * 100_000, (None, "")),  # one pass: a search from each of them would take minutes
        (
            b"<Description>&#" + b"9" * 5000 + b";</Description>",
            (None, f"&#{'9' * 5000};"),
        ),  # no number that Python reads
        (b"<Code>" + b" " * 100_000, (None, "")),
        (b"\xff", (None, "")),
    ],
    ids=range(7),
)
def test_error_body_of_whomever_is_read_in_one_pass(body: bytes, parts: tuple[int | None, str]) -> None:
    assert parts == error_parts(body)


@pytest.mark.parametrize("bad", ["\0", "\x0b", "\x1f", "\ud800", "\ufffe", "\uffff"])
def test_character_that_xml_does_not_have_is_told_as_the_replacement_character(bad: str) -> None:
    root = ET.fromstring(error_body(1, f"a{bad}\t\n{bad}b\U0010ffff"))

    assert "a\ufffd\t\n\ufffdb\U0010ffff" == root[1].text


def test_timer_is_read_before_an_error_and_an_error_before_all_else() -> None:
    assert sorted([TIMER_PRIORITY, ERROR_PRIORITY, 10, 1], reverse=True) == [TIMER_PRIORITY, ERROR_PRIORITY, 10, 1]
