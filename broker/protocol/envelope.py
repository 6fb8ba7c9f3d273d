"""The envelope of a message as applications need it: where its payload begins, the bounds of its headers, its trace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from broker.errors import FrameMalformedError
from broker.protocol.layout import HEADERS_MAX, HEADERS_MAX_BYTES


def split_envelope(body: bytes) -> tuple[bytes, bytes]:
    """
    Envelope, not decoded, and payload of fragment 0.

    Raises:
        FrameMalformedError: a length that does not fit.
    """
    size = int.from_bytes(body[:4], "big")
    if len(body) < 4 or size > len(body) - 4:
        raise FrameMalformedError("envelope is longer than its fragment")
    return body[4 : 4 + size], body[4 + size :]


def header_bytes(headers: Mapping[str, str]) -> int:
    """Bytes of names and values together, as UTF-8."""
    return sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())


def are_bounded(headers: Mapping[str, str]) -> bool:
    """Whether a message may have these headers."""
    return len(headers) <= HEADERS_MAX and header_bytes(headers) <= HEADERS_MAX_BYTES


TRACE_PARENT, TRACE_STATE = "traceparent", "tracestate"

_TRACE_PARENT = r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"  # compiled when it is needed
_SAMPLED = 0x01


class TraceParent(NamedTuple):
    """A span of an application: ids of 16 and 8 bytes, neither zero. Source: W3C Trace Context, section 3.2."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool


def maybe_trace_parent(text: str | None) -> TraceParent | None:
    """Parse a `traceparent`; None when there is none, or it is not one that this version understands."""
    found = None if text is None else re.fullmatch(_TRACE_PARENT, text)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace, 16) or not int(span, 16):
        return None
    return TraceParent(bytes.fromhex(trace), bytes.fromhex(span), bool(int(flags, 16) & _SAMPLED))
