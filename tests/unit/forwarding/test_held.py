"""Held frames keep their order, each copy once, and are taken out exactly when their lifetime ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.flow import Disposition
from broker.forwarding.held import TIME_MAX, Held, HeldQueue, copy_key, hold, message_id
from broker.forwarding.sink import DropSink
from broker.forwarding.way import Way
from broker.wire.frame import Header, decode_dialog, encode_dialog
from broker.wire.layout import NO_GUID, Flag, Kind

MakeFrame = Callable[..., bytes]

NOW = 1000.0
WAY = Way(DropSink(Disposition.NO_ROUTE, lambda *_: None), Disposition.NO_ROUTE, kind=Kind.MESSAGE)


def keep(queue: HeldQueue, frame: bytes, now: float = NOW) -> Held:
    held = hold(frame, now, WAY)
    queue.add(held)
    return held


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
        ({"kind": Kind.ACK}, False),
        ({"flags": Flag.FROM_TARGET}, False),
    ],
    ids=str,
)
def test_copies_are_frames_at_one_place_of_a_dialog(
    difference: dict[str, Any], *, is_copy: bool, make_frame: MakeFrame
) -> None:
    queue = HeldQueue()
    keep(queue, make_frame())

    assert is_copy == (copy_key(make_frame(**difference)) in queue)


def test_copies_are_told_apart_by_their_message_id(make_frame: MakeFrame) -> None:
    frame = make_frame(message_id=bytes(range(16)))

    assert {bytes(range(16))} == {message_id(form(frame)) for form in (bytes, bytearray, memoryview)}


def test_what_is_due_comes_out_the_earliest_first_and_the_rest_stays_in_order(make_frame: MakeFrame) -> None:
    queue = HeldQueue()
    lives = [3000, 1000, 60_000, 2000, 50_000]
    helds = [keep(queue, make_frame(sequence_number=n, time_to_live=life)) for n, life in enumerate(lives)]

    assert [] == queue.take_due(NOW + 0.999, 9)
    assert [helds[1], helds[3], helds[0]] == queue.take_due(NOW + 3.0, 9)

    assert ([helds[2], helds[4]], 2) == (list(queue), len(queue))


def test_of_what_is_due_no_more_comes_out_than_was_asked_for(make_frame: MakeFrame) -> None:
    queue = HeldQueue()
    helds = [keep(queue, make_frame(sequence_number=n, time_to_live=1000 + n)) for n in range(5)]

    assert [helds[:2], helds[2:4], helds[4:], []] == [queue.take_due(NOW + 2, 2) for _ in range(4)]


def test_one_that_is_replaced_keeps_its_place_and_its_deadline(make_frame: MakeFrame) -> None:
    queue = HeldQueue()
    first, second = (keep(queue, make_frame(sequence_number=n, time_to_live=1000)) for n in range(2))
    other = first._replace(since=first.since + 0.5)

    queue.replace(first, other)

    assert ([other, second], False, True) == (list(queue), queue.has(first), queue.has(other))
    assert [other, second] == queue.take_due(NOW + 1, 9)


def test_deadline_of_a_frame_that_left_is_not_that_of_its_copy(make_frame: MakeFrame) -> None:
    queue = HeldQueue()
    for n in range(10):
        keep(queue, make_frame(sequence_number=n))
    first = keep(queue, make_frame(sequence_number=10, time_to_live=1000))
    queue.remove(first)
    second = keep(queue, make_frame(sequence_number=10, time_to_live=1000), NOW + 0.5)

    assert [] == queue.take_due(NOW + 1.25, 9)
    assert [second] == queue.take_due(NOW + 1.5, 9)


def test_what_has_left_leaves_little_behind(make_frame: MakeFrame) -> None:
    queue = HeldQueue()
    stays = keep(queue, make_frame(sequence_number=0))

    for n in range(1, 1000):
        queue.remove(keep(queue, make_frame(sequence_number=n, time_to_live=TIME_MAX)))
        assert 2 * len(queue._deadlines) <= 3 * len(queue) + 2
    queue.remove(stays)

    assert (0, []) == (len(queue), queue._deadlines)


PLAIN = Header(
    kind=Kind.MESSAGE,
    flags=0,
    message_id=NO_GUID,
    conversation_id=NO_GUID,
    to_service="//to",
    from_service="//from",
    from_broker_instance=NO_GUID,
)


class Queue(RuleBasedStateMachine):
    """The queue does what a list does that is looked through from end to end; time moves in exact eighths."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = HeldQueue()
        self.model: list[Held] = []
        self.now = NOW

    @rule(number=st.integers(0, 9), eighths=st.integers(1, 40))
    def frame_comes(self, number: int, eighths: int) -> None:
        frame = encode_dialog(replace(PLAIN, sequence_number=number, time_to_live=eighths * 125), b"")
        is_copy = any(copy_key(frame) == copy_key(held.frame) for held in self.model)
        assert is_copy == (copy_key(frame) in self.queue)
        if not is_copy:
            self.model.append(keep(self.queue, frame, self.now))

    @rule(data=st.data())
    def frame_leaves(self, data: st.DataObject) -> None:
        if self.model:
            held = self.model.pop(data.draw(st.integers(0, len(self.model) - 1)))
            self.queue.remove(held)

    @rule(eighths=st.integers(1, 12))
    def time_passes(self, eighths: int) -> None:
        self.now += eighths / 8
        due = [held for held in self.model if held.deadline <= self.now]
        self.model = [held for held in self.model if held.deadline > self.now]
        taken = self.queue.take_due(self.now, 1000)
        assert {copy_key(held.frame) for held in due} == {copy_key(held.frame) for held in taken}
        assert [held.deadline for held in taken] == sorted(held.deadline for held in due)

    @invariant()
    def both_hold_the_same_in_the_same_order(self) -> None:
        assert (self.model, len(self.model)) == (list(self.queue), len(self.queue))


Queue.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestQueue = Queue.TestCase
