"""
The ids of traces and spans, worked out from what every instance on the way can read.

A gateway cannot read a sealed body, so it does not know the application's trace. It knows which message it has: the
dialog, the direction and the sequence number. All spans of one message are in the trace that follows from these, on
every instance, sealed or not; where the application's own span is known, at the ends, they have a link to it.

    trace id            the first 16 bytes of SHA-256("sbrk trace" | conversation_id | from_target | sequence_number)
    span id             the first 8 bytes of SHA-256("sbrk " role | message_id | hop_count)

`from_target` is one byte, 0 or 1, `sequence_number` 8 bytes and `hop_count` 1, big-endian; role is `send`, `forward` or
`deliver`. A message_id is of one transmission, so what is sent again has other spans in the same trace.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256


class SpanRole(StrEnum):
    """What an instance did with a frame."""

    SEND = "send"
    FORWARD = "forward"
    DELIVER = "deliver"


def trace_id(conversation_id: bytes, sequence_number: int, *, is_from_target: bool) -> int:
    """The trace of a message. Shape: `conversation_id` 16 bytes; a number of 128 bits."""
    told = b"sbrk trace" + conversation_id + bytes((is_from_target,)) + sequence_number.to_bytes(8, "big")
    return int.from_bytes(sha256(told).digest()[:16], "big")


def span_id(role: SpanRole, message_id: bytes, hop_count: int) -> int:
    """
    The span of a frame at one instance.

    Args:
        role: What the instance did.
        message_id: Of the transmission, 16 bytes.
        hop_count: Gateways behind the frame as it arrived; 0 for `send`.

    Returns:
        A number of 64 bits.
    """
    told = f"sbrk {role}".encode() + message_id + bytes((hop_count,))
    return int.from_bytes(sha256(told).digest()[:8], "big")


def parent_id(role: SpanRole, message_id: bytes, hop_count: int) -> int | None:
    """The span at the instance before: the gateway that the frame came from, or its sender; None for the sender's."""
    if role is SpanRole.SEND:
        return None
    return span_id(SpanRole.FORWARD, message_id, hop_count - 1) if hop_count else span_id(SpanRole.SEND, message_id, 0)
