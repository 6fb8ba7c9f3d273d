"""What the file says of why dialogs wait, and when it is written."""

from __future__ import annotations

import pytest

from broker.conversation.frames import Contact
from broker.conversation.outbound import Outbound
from broker.conversation.window import Backoff, RoundTrip, Window
from broker.dialog import status as module
from broker.dialog.send_queue import Sender
from broker.dialog.status import MOVING, TELL_SECONDS, Telling

LATER = 1.0 + TELL_SECONDS


class Desk:
    """A telling whose sentences are set by the test."""

    def __init__(self, count: int = 1, told: str | None = None) -> None:
        self.senders: dict[int, Sender] = {}
        self.sentence = "waits"
        self.telling = Telling(self.senders, lambda _: self.sentence)
        for endpoint_id in range(1, count + 1):
            self.watch(endpoint_id, told)

    def watch(self, endpoint_id: int, told: str | None = None, now: float = 1.0) -> None:
        outbound = Outbound(RoundTrip(Backoff(1.0, 64.0)), Window(10, 1000))
        contact = Contact(bytes(16), True, "A", bytes(16), "B")
        self.senders[endpoint_id] = Sender(endpoint_id, contact, outbound, (0, 0))
        self.telling.watch(self.senders[endpoint_id], told, now)


def test_dialog_that_waits_for_a_second_has_a_sentence() -> None:
    desk = Desk()

    assert [desk.telling.statuses(now) for now in (1.0, LATER)] == [{}, {1: "waits"}]


def test_sentence_is_written_when_it_changes_and_once_a_second() -> None:
    desk = Desk()
    written = [desk.telling.statuses(LATER)]

    for now in (LATER + 0.5, LATER + 1.0):
        desk.sentence = f"waits since {now}"
        written.append(desk.telling.statuses(now))
    written.append(desk.telling.statuses(LATER + 2.0))

    assert written == [{1: "waits"}, {}, {1: f"waits since {LATER + 1.0}"}, {}]


def test_what_the_file_says_already_is_not_written() -> None:
    assert Desk(told="waits").telling.statuses(LATER) == {}


def test_dialog_that_moves_has_a_sentence_that_stays() -> None:
    desk = Desk()
    written = []

    for step in range(1, 4):
        desk.senders[1].outbound.acknowledge((step, 0), 0.0)
        written.append(desk.telling.statuses(1.0 + step))

    assert written == [{1: MOVING}, {}, {}]


def test_sentence_is_removed_when_nothing_waits_any_more() -> None:
    desk = Desk(2)
    desk.telling.statuses(LATER)
    desk.watch(3, now=LATER)

    for endpoint_id in (1, 3, 99):
        desk.telling.forget(endpoint_id)

    assert [desk.telling.statuses(LATER), desk.telling.statuses(LATER)] == [{1: None}, {}]


def test_dialog_that_begins_again_before_its_sentence_was_removed_has_it_written_anew() -> None:
    desk = Desk()
    desk.telling.statuses(LATER)
    desk.telling.forget(1)

    desk.watch(1, now=LATER)

    assert desk.telling.statuses(LATER) == {}
    assert desk.telling.statuses(LATER + TELL_SECONDS) == {1: "waits"}


def test_what_could_not_be_written_is_written_later() -> None:
    desk = Desk(2)
    desk.telling.statuses(LATER)
    desk.telling.forget(2)
    lost = desk.telling.statuses(LATER + TELL_SECONDS) | {1: "waits"}

    desk.telling.untold(lost)

    assert desk.telling.statuses(LATER + 2 * TELL_SECONDS) == {1: "waits", 2: None}


def test_so_many_are_looked_at_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STATUSES_MAX", 3)
    desk = Desk(5)

    turns = [desk.telling.statuses(LATER).keys() for _ in range(3)]

    assert turns == [{1, 2, 3}, {4, 5}, set()]
