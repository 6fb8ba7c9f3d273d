"""Frames wait in their order, within a bound, and it is known which of them came from inside."""

import pytest

from broker.dialog import inbox as module
from broker.dialog.inbox import Inbox


def test_frames_are_taken_in_the_order_of_arrival() -> None:
    inbox = Inbox()
    for number, is_inside in enumerate((False, True, False, True)):
        assert inbox.put(b"%d" % number, is_inside=is_inside)

    waiting = inbox.take()

    assert ([b"0", b"1", b"2", b"3"], {1, 3}) == waiting
    assert ([], set()) == inbox.take()


def test_crowd_is_taken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_FRAMES", 2)
    monkeypatch.setattr(module, "INBOX_MAX_BYTES", 5)
    inbox = Inbox()
    for number in range(5):
        assert inbox.put(b"%d" % number, is_inside=number in {1, 2, 4})

    first = inbox.take()
    has_room = [inbox.put(b"5", is_inside=True), inbox.put(b"6", is_inside=True), inbox.put(b"7", is_inside=True)]

    assert ([b"0", b"1"], {1}) == first
    assert [True, True, False] == has_room
    assert [([b"2", b"3"], {0}), ([b"4", b"5"], {0, 1}), ([b"6"], {0})] == [inbox.take() for _ in range(3)]
    assert not inbox


def test_whether_something_waits() -> None:
    inbox = Inbox()
    assert not inbox

    inbox.put(b"frame", is_inside=False)
    assert inbox

    inbox.take()
    assert not inbox


def test_what_there_is_no_room_for_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INBOX_MAX_BYTES", 10)
    inbox = Inbox()

    taken = [inbox.put(b"12345", is_inside=True) for _ in range(4)]
    waiting = inbox.take()

    assert [True, True, False, False] == taken
    assert {0, 1} == waiting.inside
    assert inbox.put(b"again", is_inside=False)
