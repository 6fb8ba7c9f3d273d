"""How far the acknowledgements of a service have got."""

from __future__ import annotations

import pytest

from broker.conversation.window import NEVER
from broker.dialog import send_queue as module
from broker.dialog.send_queue import SILENCE, Frontier


def test_who_sent_later_waits_while_acknowledgements_come_in() -> None:
    frontier = Frontier()
    turns = [frontier.turn_at("A", 2.0, -NEVER)]

    frontier.note("A", sent_at=1.0, now=5.0)

    turns += [frontier.turn_at("A", sent_at, -NEVER) for sent_at in (0.5, 1.0, 2.0)]
    assert turns == [-NEVER, -NEVER, -NEVER, 5.0 + SILENCE]
    assert frontier.turn_at("B", 2.0, -NEVER) == -NEVER


@pytest.mark.parametrize(("sent_at", "heard_at"), [(5.0, -NEVER), (6.0, 2.0), (2.0, 5.0)])
def test_who_has_heard_of_nobody_else_since_is_alone(sent_at: float, heard_at: float) -> None:
    """It was acknowledged something itself, or sent only then."""
    frontier = Frontier()

    frontier.note("A", sent_at=1.0, now=5.0)

    assert frontier.turn_at("A", sent_at, heard_at) == -NEVER


def test_what_comes_late_takes_nothing_back_and_shows_that_the_line_moves() -> None:
    frontier = Frontier()
    frontier.note("A", sent_at=3.0, now=5.0)

    frontier.note("A", sent_at=1.0, now=6.0)

    assert [frontier.turn_at("A", sent_at, -NEVER) for sent_at in (2.0, 4.0)] == [-NEVER, 6.0 + SILENCE]


def test_services_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was not heard of for longest is forgotten."""
    monkeypatch.setattr(module, "SERVICES_MAX", 2)
    frontier = Frontier()

    for service in "ABAC":
        frontier.note(service, sent_at=1.0, now=5.0)

    assert len(frontier) == 2
    assert [frontier.turn_at(service, 2.0, -NEVER) > 0 for service in "ABC"] == [True, False, True]
