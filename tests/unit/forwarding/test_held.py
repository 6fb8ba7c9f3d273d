"""A held frame tells how long it has lived, and what makes another one a copy of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.flow import Disposition
from broker.forwarding.entry import ForwardingEntry
from broker.forwarding.held_frames import TIME_MAX, copy_key, hold, message_id
from broker.forwarding.outbox import DropSink
from broker.protocol.frame import decode_dialog
from broker.protocol.layout import Flag, FrameKind

MakeFrame = Callable[..., bytes]

NOW = 1000.0
WAY = ForwardingEntry(DropSink(Disposition.NO_ROUTE, lambda *_: None), Disposition.NO_ROUTE, kind=FrameKind.MESSAGE)


@pytest.mark.parametrize(
    ("consumed", "waited", "expected"), [(0, 0.0, 0), (0, 0.0009, 0), (10, 0.25, 260), (10, 1.9999, 2009)]
)
def test_time_that_a_frame_waited_counts_as_life(
    consumed: int, waited: float, expected: int, make_frame: MakeFrame
) -> None:
    frame = make_frame(time_consumed=consumed)
    held = hold(memoryview(frame), NOW, WAY)

    assert (expected, int(waited * 1000)) == (held.time_consumed(NOW + waited), held.waited_ms(NOW + waited))
    assert expected == decode_dialog(bytes(held.aged(NOW + waited)))[0].time_consumed
    assert frame == held.frame


def test_time_consumed_stops_at_what_its_field_can_say(make_frame: MakeFrame) -> None:
    held = hold(make_frame(time_to_live=TIME_MAX, time_consumed=TIME_MAX - 1), NOW, WAY)

    assert decode_dialog(bytes(held.aged(NOW + 5)))[0].time_consumed == TIME_MAX


@pytest.mark.parametrize(
    ("difference", "is_copy"),
    [
        ({"message_id": b"n" * 16}, True),
        ({"hop_count": 3}, True),
        ({"conversation_id": b"d" * 16}, False),
        ({"sequence_number": 1}, False),
        ({"fragment_number": 1}, False),
        ({"kind": FrameKind.ACK}, False),
        ({"flags": Flag.FROM_TARGET}, False),
        ({"to_service": "//shop/Public"}, False),
        ({"from_service": "//shop/Other"}, False),
        ({"from_broker_instance": b"o" * 16}, False),
        ({"to_broker_instance": b"o" * 16}, False),
    ],
    ids=str,
)
def test_copies_are_frames_at_one_place_of_a_dialog(
    difference: dict[str, Any], *, is_copy: bool, make_frame: MakeFrame
) -> None:
    assert is_copy == (copy_key(make_frame()) == copy_key(memoryview(make_frame(**difference))))


def test_copies_are_told_apart_by_their_message_id(make_frame: MakeFrame) -> None:
    frame = make_frame(message_id=bytes(range(16)))

    assert {bytes(range(16))} == {message_id(form(frame)) for form in (bytes, bytearray, memoryview)}


def test_frame_alone_is_a_piece_of_one(make_frame: MakeFrame) -> None:
    frame = make_frame()
    held = hold(frame, NOW, WAY)

    assert (frame, 1, [held]) == (held.data, held.frames, list(held.helds()))
    assert [(0, 0), (1, len(frame)), (1, len(frame))] == [held.begun(sent) for sent in (0, 1, len(frame))]
    assert [(WAY, None, 1)] == list(held.by_dialog(1))
