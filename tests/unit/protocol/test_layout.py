"""The offsets agree with each other and with the table of the protocol page."""

from __future__ import annotations

import pytest

from broker.protocol import layout

# Field: offset, size.
FIELDS = {
    "length": (0, 4),
    "kind": (4, 1),
    "flags": (5, 1),
    "hop_count": (6, 1),
    "hop_limit": (7, 1),
    "time_to_live": (8, 4),
    "time_consumed": (12, 4),
    "message_id": (16, 16),
    "conversation_id": (32, 16),
    "sequence_number": (48, 8),
    "fragment_number": (56, 4),
    "ack_fragment": (60, 4),
    "ack_sequence": (64, 8),
    "body_checksum": (72, 4),
    "from_service_length": (76, 2),
    "reserved": (78, 2),
    "from_broker_instance": (80, 16),
    "to_broker_instance": (96, 16),
    "to_service_length": (112, 2),
}


def test_fields_cover_the_header_without_a_gap() -> None:
    ends = [offset + size for offset, size in FIELDS.values()]

    assert [0, *ends] == [offset for offset, _ in FIELDS.values()] + [layout.HEADER_BYTES]


@pytest.mark.parametrize(
    ("constant", "field"),
    [
        (layout.HOP_COUNT_AT, "hop_count"),
        (layout.TIME_TO_LIVE_AT, "time_to_live"),
        (layout.TIME_CONSUMED_AT, "time_consumed"),
        (layout.MESSAGE_ID_AT, "message_id"),
        (layout.CONVERSATION_AT, "conversation_id"),
        (layout.SEQUENCE_AT, "sequence_number"),
        (layout.FRAGMENT_AT, "fragment_number"),
        (layout.PLACE_END, "ack_fragment"),
        (layout.ROUTE_KEY_AT, "to_broker_instance"),
    ],
)
def test_named_offset_is_that_of_its_field(constant: int, field: str) -> None:
    assert FIELDS[field][0] == constant
