"""Whose turn it is: by priority with a guard, in turn and by bytes within one."""

from __future__ import annotations

from collections import Counter

import pytest

from broker.conversation.frames import Contact
from broker.conversation.outbound import Outbound
from broker.conversation.window import Backoff, RoundTrip, Window
from broker.dialog.send_queue import GUARD_TURNS, QUANTUM_BYTES, Sender, Turns


def sender(endpoint_id: int, priority: int = 5) -> Sender:
    outbound = Outbound(RoundTrip(Backoff(1.0, 64.0)), Window(10, 1000))
    return Sender(endpoint_id, Contact(bytes(16), True, "A", bytes(16), "B"), outbound, (0, 0), priority)


def play(turns: Turns, count: int, frame: dict[int, int]) -> list[int]:
    """Turns of senders that always have more; each sends frames of its size while it has credit."""
    order = []
    for _ in range(count):
        one = turns.take()
        while one.credit > 0:
            one.credit -= frame[one.endpoint_id]
            order.append(one.endpoint_id)
        turns.add(one)
    return order


def test_nobody_has_a_turn_when_nobody_asks() -> None:
    turns = Turns()

    assert not turns


def test_sender_is_queued_once() -> None:
    turns = Turns()
    one = sender(1)

    turns.add(one)
    turns.add(one)

    assert turns.take() is one
    assert not turns


def test_senders_of_one_priority_come_in_turn() -> None:
    turns = Turns()
    for endpoint_id in (1, 2, 3):
        turns.add(sender(endpoint_id))

    assert play(turns, 6, dict.fromkeys((1, 2, 3), QUANTUM_BYTES)) == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("large", [3 * QUANTUM_BYTES // 2, 15 << 20])
def test_senders_get_the_same_bytes_whatever_the_size_of_their_frames(large: int) -> None:
    turns = Turns()
    frame = {1: 1000, 2: large}
    for endpoint_id in frame:
        turns.add(sender(endpoint_id))

    order = play(turns, 20 * large // QUANTUM_BYTES, frame)

    sent = {endpoint_id: frames * frame[endpoint_id] for endpoint_id, frames in Counter(order).items()}
    assert abs(sent[1] - sent[2]) <= large + QUANTUM_BYTES


def test_credit_is_not_saved_by_who_sends_nothing() -> None:
    turns = Turns()
    one = sender(1)

    for _ in range(5):
        turns.add(one)
        turns.take()

    assert one.credit == QUANTUM_BYTES


def test_higher_priority_is_first() -> None:
    turns = Turns()
    for endpoint_id in (1, 10, 5):
        turns.add(sender(endpoint_id, priority=endpoint_id))

    assert [turns.take().endpoint_id for _ in range(3)] == [10, 5, 1]


def test_lower_priorities_move_as_well() -> None:
    turns = Turns()
    for priority in (10, 5, 1):
        turns.add(sender(priority, priority=priority))

    turns_of = Counter(play(turns, 16 * GUARD_TURNS, dict.fromkeys((10, 5, 1), QUANTUM_BYTES)))

    assert turns_of == {10: 14 * GUARD_TURNS, 5: 8, 1: 8}


def test_guard_serves_the_highest_when_it_is_alone() -> None:
    turns = Turns()
    turns.add(sender(1, priority=3))

    assert play(turns, 2 * GUARD_TURNS, {1: QUANTUM_BYTES}) == [1] * 2 * GUARD_TURNS
