"""What headers of a message may be: their number, and how long they are together."""

from __future__ import annotations

from collections.abc import Mapping

from broker.wire.layout import HEADERS_MAX, HEADERS_MAX_BYTES


def header_bytes(headers: Mapping[str, str]) -> int:
    """Bytes of names and values together, as UTF-8."""
    return sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())


def are_bounded(headers: Mapping[str, str]) -> bool:
    """Whether a message may have these headers."""
    return len(headers) <= HEADERS_MAX and header_bytes(headers) <= HEADERS_MAX_BYTES
