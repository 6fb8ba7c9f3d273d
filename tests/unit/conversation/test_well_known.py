"""Bodies that every service knows."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from broker.conversation.well_known import ERROR_PRIORITY, TIMER_PRIORITY, error_body


@pytest.mark.parametrize("description", ["", "plain", "<&>\"'", "żółw 🐢"])
def test_error_body_is_the_documented_xml(description: str) -> None:
    root = ET.fromstring(error_body(42, description))

    namespace = "{http://schemas.microsoft.com/SQL/ServiceBroker/Error}"
    assert f"{namespace}Error" == root.tag
    assert [(f"{namespace}Code", "42"), (f"{namespace}Description", description or None)] == [
        (child.tag, child.text) for child in root
    ]


@pytest.mark.parametrize("bad", ["\0", "\x0b", "\x1f", "\ud800", "\ufffe", "\uffff"])
def test_character_that_xml_does_not_have_is_told_as_the_replacement_character(bad: str) -> None:
    root = ET.fromstring(error_body(1, f"a{bad}\t\n{bad}b\U0010ffff"))

    assert "a\ufffd\t\n\ufffdb\U0010ffff" == root[1].text


def test_timer_is_read_before_an_error_and_an_error_before_all_else() -> None:
    assert sorted([TIMER_PRIORITY, ERROR_PRIORITY, 10, 1], reverse=True) == [TIMER_PRIORITY, ERROR_PRIORITY, 10, 1]
