"""The bounds of headers, to the byte."""

from __future__ import annotations

import pytest

from broker.protocol.frame import are_bounded, header_bytes
from broker.protocol.layout import HEADERS_MAX, HEADERS_MAX_BYTES


@pytest.mark.parametrize(("headers", "count"), [({}, 0), ({"a": "bc"}, 3), ({"ä": "€"}, 5)])
def test_bytes_are_those_of_names_and_values_in_utf_8(headers: dict[str, str], count: int) -> None:
    assert count == header_bytes(headers)


@pytest.mark.parametrize(
    ("headers", "is_bounded"),
    [
        ({str(number): "" for number in range(HEADERS_MAX)}, True),
        ({str(number): "" for number in range(HEADERS_MAX + 1)}, False),
        ({"a": "x" * (HEADERS_MAX_BYTES - 1)}, True),
        ({"a": "x" * HEADERS_MAX_BYTES}, False),
    ],
)
def test_a_message_may_have_so_many_and_no_more(headers: dict[str, str], is_bounded: bool) -> None:  # noqa: FBT001
    assert is_bounded == are_bounded(headers)
