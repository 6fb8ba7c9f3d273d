"""Frames wait in their order, within a bound, and acknowledgements by themselves; who came from inside is known."""

import pytest

from broker.dialog import arrivals as module
from broker.dialog.arrivals import Inbox
from broker.security.session import Secured

INSIDE = Secured(None, "CN=orders")
ORIGIN = object()


def test_frames_are_taken_in_the_order_of_arrival() -> None:
    inbox = Inbox()
    for number, is_inside in enumerate((False, True, False, True)):
        assert inbox.put(b"%d" % number, ORIGIN, INSIDE if is_inside else None, is_ack=False)

    waiting = inbox.take()

    assert ([b"0", b"1", b"2", b"3"], {1: INSIDE, 3: INSIDE}, 0, [ORIGIN] * 4) == waiting
    assert ([], {}, 0, []) == inbox.take()


def test_crowd_is_taken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_FRAMES", 2)
    monkeypatch.setattr(module, "INBOX_MAX_BYTES", 5)
    inbox = Inbox()
    for number in range(5):
        assert inbox.put(b"%d" % number, ORIGIN, INSIDE if number in {1, 2, 4} else None, is_ack=False)

    first = inbox.take()
    has_room = [inbox.put(b"%d" % number, ORIGIN, INSIDE, is_ack=False) for number in (5, 6, 7)]

    assert ([b"0", b"1"], {1: INSIDE}, 0) == first[:3]
    assert [True, True, False] == has_room
    turns = [inbox.take() for _ in range(3)]
    assert [([b"2", b"3"], [0], 0), ([b"4", b"5"], [0, 1], 0), ([b"6"], [0], 0)] == [
        (frames, list(inside), acks) for frames, inside, acks, _ in turns
    ]
    assert not inbox


def test_neither_acknowledgements_nor_messages_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_FRAMES", 2)
    inbox = Inbox()
    for number in range(3):
        inbox.put(b"ack %d" % number, ORIGIN, INSIDE if number == 1 else None, is_ack=True)
    for number in range(3):
        inbox.put(b"message %d" % number, ORIGIN, INSIDE if number == 0 else None, is_ack=False)

    turns = [inbox.take(), inbox.take()]

    assert ([b"message 0", b"message 1", b"ack 0", b"ack 1"], {0: INSIDE, 3: INSIDE}, 2) == turns[0][:3]
    assert ([b"message 2", b"ack 2"], {}, 1) == turns[1][:3]


@pytest.mark.parametrize("is_ack", [False, True])
def test_whether_something_waits(is_ack: bool) -> None:  # noqa: FBT001  (a table's column)
    inbox = Inbox()
    assert not inbox

    inbox.put(b"frame", ORIGIN, None, is_ack=is_ack)
    assert inbox

    inbox.take()
    assert not inbox


def test_what_there_is_no_room_for_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INBOX_MAX_BYTES", 10)
    inbox = Inbox()

    taken = [inbox.put(b"12345", ORIGIN, INSIDE, is_ack=bool(number % 2)) for number in range(4)]
    waiting = inbox.take()

    assert [True, True, False, False] == taken
    assert {0: INSIDE, 1: INSIDE} == waiting.inside
    assert inbox.put(b"again", ORIGIN, None, is_ack=False)
