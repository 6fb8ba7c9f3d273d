"""Frames wait in their order, within a bound, and acknowledgements by themselves; who came from inside is known."""

import pytest

from broker.dialog import inbox as module
from broker.dialog.inbox import Inbox


def test_frames_are_taken_in_the_order_of_arrival() -> None:
    inbox = Inbox()
    for number, is_inside in enumerate((False, True, False, True)):
        assert inbox.put(b"%d" % number, is_ack=False, is_inside=is_inside)

    waiting = inbox.take()

    assert ([b"0", b"1", b"2", b"3"], {1, 3}, 0) == waiting
    assert ([], set(), 0) == inbox.take()


def test_crowd_is_taken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_FRAMES", 2)
    monkeypatch.setattr(module, "INBOX_MAX_BYTES", 5)
    inbox = Inbox()
    for number in range(5):
        assert inbox.put(b"%d" % number, is_ack=False, is_inside=number in {1, 2, 4})

    first = inbox.take()
    has_room = [inbox.put(b"%d" % number, is_ack=False, is_inside=True) for number in (5, 6, 7)]

    assert ([b"0", b"1"], {1}, 0) == first
    assert [True, True, False] == has_room
    turns = [inbox.take() for _ in range(3)]
    assert [([b"2", b"3"], {0}, 0), ([b"4", b"5"], {0, 1}, 0), ([b"6"], {0}, 0)] == turns
    assert not inbox


def test_neither_acknowledgements_nor_messages_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_FRAMES", 2)
    inbox = Inbox()
    for number in range(3):
        inbox.put(b"ack %d" % number, is_ack=True, is_inside=number == 1)
    for number in range(3):
        inbox.put(b"message %d" % number, is_ack=False, is_inside=number == 0)

    turns = [inbox.take(), inbox.take()]

    assert ([b"message 0", b"message 1", b"ack 0", b"ack 1"], {0, 3}, 2) == turns[0]
    assert ([b"message 2", b"ack 2"], set(), 1) == turns[1]


@pytest.mark.parametrize("is_ack", [False, True])
def test_whether_something_waits(is_ack: bool) -> None:  # noqa: FBT001  (a table's column)
    inbox = Inbox()
    assert not inbox

    inbox.put(b"frame", is_ack=is_ack, is_inside=False)
    assert inbox

    inbox.take()
    assert not inbox


def test_what_there_is_no_room_for_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INBOX_MAX_BYTES", 10)
    inbox = Inbox()

    taken = [inbox.put(b"12345", is_ack=bool(number % 2), is_inside=True) for number in range(4)]
    waiting = inbox.take()

    assert [True, True, False, False] == taken
    assert {0, 1} == waiting.inside
    assert inbox.put(b"again", is_ack=False, is_inside=False)
