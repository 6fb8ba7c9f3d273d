"""
The trace of an application, as a message carries it among its headers.

Only what the broker itself needs of it: which span sent the message, and whether that is sampled. Everything else of
the headers is text that goes from one application to the other. Source: W3C Trace Context, section 3.2.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TRACE_PARENT, TRACE_STATE = "traceparent", "tracestate"

_TRACE_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 0x01


class TraceParent(NamedTuple):
    """A span of an application. Shape: `trace_id` 16 bytes, `span_id` 8 bytes, neither zero."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool


def maybe_trace_parent(text: str | None) -> TraceParent | None:
    """What a `traceparent` says; None when there is none, or it is not one that this version understands."""
    found = None if text is None else _TRACE_PARENT.fullmatch(text)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace, 16) or not int(span, 16):
        return None
    return TraceParent(bytes.fromhex(trace), bytes.fromhex(span), bool(int(flags, 16) & _SAMPLED))
