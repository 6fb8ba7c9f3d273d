"""What is understood of a `traceparent`."""

from __future__ import annotations

import pytest

from broker.protocol.frame import TraceParent, maybe_trace_parent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("text", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"01-{TRACE}-{SPAN}-01", True),
        (f"01-{TRACE}-{SPAN}-01-what-comes-later", True),
    ],
)
def test_span_of_the_sender_is_told(text: str, is_sampled: bool) -> None:  # noqa: FBT001 - a column of the table
    assert TraceParent(bytes.fromhex(TRACE), bytes.fromhex(SPAN), is_sampled) == maybe_trace_parent(text)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_what_is_no_trace_parent_is_none(text: str | None) -> None:
    assert maybe_trace_parent(text) is None
