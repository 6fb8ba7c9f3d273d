"""What a census means: each leak in a sentence that says what grows and who has to do what."""

from __future__ import annotations

from typing import Any

import pytest

from broker.observe.census import meaning
from broker.store.census import OLDEST_AGE, Census, Group, QueueDepth

NOW = 1_700_000_000.0


def census(**more: Any) -> Census:
    nothing: dict[str, Any] = {
        "now": NOW,
        "groups": [],
        "tombstones": 0,
        "tombstones_due": 0,
        "quarantined_dialogs": 0,
        "failing_dialogs": 0,
        "sending": 0,
        "sending_since": None,
        "queues": [],
        "tables": [],
        "file_bytes": 100 << 20,
        "free_bytes": 0,
        "is_estimated": False,
    }
    return Census(**nothing | more)


def crowd(state: str, age: str, count: int, *, unread: int = 0, unsent: int = 0) -> Group:
    return Group("//shop/Orders", state, age, count, unread, unsent, NOW)


def test_where_nothing_grows_it_says_so() -> None:
    assert ["nothing grows: no old half-closed conversations, nothing in quarantine, nothing waits long"] == meaning(
        census()
    )


def test_a_crowd_of_half_closed_conversations_is_a_leak() -> None:
    [sentence, _] = meaning(
        census(groups=[crowd("DI", OLDEST_AGE, 12_000, unread=7), crowd("DI", "under a week", 408)])
    )

    assert (
        "12,408 conversations of //shop/Orders that began more than a day ago are DI: the far side has ended and nobody"
        " here does (7 of them have unread messages); the application of //shop/Orders should RECEIVE the EndDialog"
        " message and END CONVERSATION (dialog.end()); else the first of those that have read everything goes after its"
        " lifetime, at 2023-11-14 22:13 UTC"
    ) == sentence


@pytest.mark.parametrize("state", ["DI", "ER"])
def test_what_stays_for_ever_because_nobody_reads_it_is_told_with_what_to_do(state: str) -> None:
    [first, second] = meaning(census(groups=[crowd(state, OLDEST_AGE, 1_200, unread=1_200)]))

    assert first.endswith("; else none of them goes")
    assert (
        f"1,200 conversations of //shop/Orders that are {state} stay whatever their lifetime until somebody receives"
        " their messages, for nothing unread is thrown away: when nobody will, broker dialogs end"
        f" --state {state} --service //shop/Orders --older-than 30d --dry-run tells what ending them loses"
    ) == second


@pytest.mark.parametrize(
    ("state", "end"),
    [
        ("CO", "fails after its lifetime, at 2023-11-14 22:13 UTC, and stays until its Error message is read"),
        ("DO", "goes after its lifetime, at 2023-11-14 22:13 UTC"),
        ("ER", "goes after its lifetime, at 2023-11-14 22:13 UTC"),
    ],
)
def test_what_becomes_of_them_by_itself_is_told(state: str, end: str) -> None:
    [sentence] = meaning(census(groups=[crowd(state, OLDEST_AGE, 10)]))

    assert sentence.endswith(f"; else the first {end}")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("SO", "nothing was ever sent"),
        ("SI", "has not come whole yet"),
        ("CO", "neither has ended"),
        ("DO", "the far side has not confirmed it (3 have messages that are not acknowledged)"),
        ("ER", "look at its code, and END CONVERSATION"),
    ],
)
def test_each_state_has_its_remedy(state: str, words: str) -> None:
    [sentence] = meaning(census(groups=[crowd(state, OLDEST_AGE, 10, unsent=3)]))

    assert f"10 conversations of //shop/Orders that began more than a day ago are {state}: " in sentence
    assert words in sentence


@pytest.mark.parametrize("group", [crowd("DI", OLDEST_AGE, 9), crowd("DI", "under a day", 9999)])
def test_a_few_and_young_ones_are_no_leak(group: Group) -> None:
    assert "nothing grows" in meaning(census(groups=[group]))[0]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"quarantined_dialogs": 1}, "1 dialog is in quarantine until somebody"),
        ({"failing_dialogs": 2}, "2 dialogs are tried again after a failure"),
        (
            {"queues": [QueueDepth("Q", False, 3, 0, NOW - 7200)]},
            "3 messages wait in the queue Q, the oldest for 2 hours: the queue is OFF, nobody can receive: ALTER QUEUE",
        ),
        (
            {"queues": [QueueDepth("Q", True, 1, 0, NOW - 90_000)]},
            "1 message waits in the queue Q, the oldest for 1 day",
        ),
        ({"queues": [QueueDepth("Q", True, 5000, 0, NOW)]}, "its readers do not run, or are too slow"),
        ({"sending": 4, "sending_since": NOW - 600}, "4 messages wait for the far side, the oldest for 10 minutes"),
        ({"tombstones_due": 11}, "11 tombstones have served and are still there"),
        ({"free_bytes": 90 << 20}, "VACUUM with everything stopped gives them back"),
    ],
)
def test_what_should_be_looked_at_is_told(more: dict[str, Any], words: str) -> None:
    [sentence] = meaning(census(**more))

    assert words in sentence


@pytest.mark.parametrize(
    "more",
    [
        {"queues": [QueueDepth("Q", True, 1, 0, NOW - 60)]},
        {"queues": [QueueDepth("Q", False, 0, 0, None)]},
        {"sending": 4, "sending_since": NOW - 10},
        {"tombstones_due": 10},
        {"free_bytes": 10 << 20},
    ],
)
def test_what_is_usual_is_not_told(more: dict[str, Any]) -> None:
    assert "nothing grows" in meaning(census(**more))[0]


def test_a_lifetime_beyond_the_calendar_is_far_away() -> None:
    group = Group("S", "CO", OLDEST_AGE, 10, 0, 0, 1e15)

    assert "in a far future" in meaning(census(groups=[group]))[0]
