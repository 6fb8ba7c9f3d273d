"""Claims of conversation groups: whose turn it is, who may not have it, and what a dead reader leaves."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from broker.client import queue as claim_module
from broker.client.dialog import Dialog
from broker.client.queue import (
    Claim,
    ClaimLostError,
    RetryRule,
    claim_group,
    give_back,
    next_rest_end,
    note_crashes,
    settle,
)
from broker.store.sqlite.quarantine import Blame, failures, note_failure
from broker.store.sqlite.queues import ReaderSlot
from tests.support.shop import Shop

NOW = 1_000_000.0


@pytest.fixture
def slot(shop: Shop) -> Iterator[int]:
    """A slot that lives."""
    held = ReaderSlot(str(shop.path))
    yield held.number
    held.close()


@pytest.fixture
def db(shop: Shop) -> sqlite3.Connection:
    return shop.connect(isolation_level=None)


def arrived(shop: Shop, db: sqlite3.Connection, *bodies: bytes) -> Dialog:
    dialog = shop.begin(db)
    shop.arrive(dialog, *bodies)
    return dialog


def take(db: sqlite3.Connection, slot: int, *, top: int = 100, now: float = NOW) -> Claim | None:
    return claim_group(db, "OrdersQueue", slot=slot, top=top, now=now)


def test_groups_are_claimed_in_the_order_of_their_messages_and_only_once(
    shop: Shop, db: sqlite3.Connection, slot: int
) -> None:
    first, second = arrived(shop, db, b"1", b"2"), arrived(shop, db, b"3")

    claims = [take(db, slot) for _ in range(3)]

    groups = [first.conversation_group_id.bytes, second.conversation_group_id.bytes]
    assert groups == [one.conversation_group_id for one in claims if one is not None]
    assert [(1, 2), (3,)] == [one.queuing_orders for one in claims if one is not None]
    assert claims[2] is None
    assert 3 == db.execute("SELECT count(*) FROM broker_message WHERE status = 1").fetchone()[0]


def test_the_group_of_the_highest_priority_comes_first(shop: Shop, db: sqlite3.Connection, slot: int) -> None:
    arrived(shop, db, b"1", b"2")
    arrived(shop, db, b"3")
    db.execute("UPDATE broker_message SET priority = 9 WHERE message_body = x'33'")

    claim = take(db, slot)

    assert claim is not None
    assert (3,) == claim.queuing_orders


def test_a_batch_holds_no_more_than_top_and_than_its_bytes(
    shop: Shop, db: sqlite3.Connection, slot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived(shop, db, b"x" * 60, b"x" * 60, b"x" * 60)
    arrived(shop, db, b"1", b"2", b"3")
    arrived(shop, db, b"x" * 1000, b"2")
    monkeypatch.setattr(claim_module, "BATCH_MAX_BYTES", 130)

    sizes = [len(one.queuing_orders) for one in (take(db, slot), take(db, slot, top=2), take(db, slot)) if one]

    assert [2, 2, 1] == sizes


def test_a_group_whose_message_failed_gives_its_first_message_alone(
    shop: Shop, db: sqlite3.Connection, slot: int
) -> None:
    arrived(shop, db, b"1", b"2")
    verdict = note_failure(db, Blame(1, 0, "E"), now=NOW)

    resting = take(db, slot)
    end = next_rest_end(db, NOW)
    claim = take(db, slot, now=NOW + verdict.rest_s)

    assert resting is None
    assert NOW + verdict.rest_s == end
    assert claim is not None
    assert (1,) == claim.queuing_orders
    assert next_rest_end(db, NOW) is None


def test_a_queue_that_is_off_or_gone_gives_nothing(shop: Shop, db: sqlite3.Connection, slot: int) -> None:
    arrived(shop, db, b"1")
    db.execute("UPDATE broker_queue SET is_receive_enabled = 0")

    assert take(db, slot) is None
    assert claim_group(db, "Nope", slot=slot, top=1, now=NOW) is None


def test_settled_messages_leave_the_queue_and_their_failures_are_forgotten(
    shop: Shop, db: sqlite3.Connection, slot: int
) -> None:
    arrived(shop, db, b"1", b"2")
    note_failure(db, Blame(1, 0, "E"), now=NOW, rest_first=0)
    claim = take(db, slot)
    assert claim is not None

    settle(db, claim, [1])

    assert [(b"2",)] == db.execute("SELECT message_body FROM broker_message").fetchall()
    assert [] == list(failures(db))
    assert [] == db.execute("SELECT * FROM broker_group_lock").fetchall()


def test_a_claim_that_is_lost_is_not_settled(shop: Shop, db: sqlite3.Connection, slot: int) -> None:
    arrived(shop, db, b"1")
    claim = take(db, slot)
    assert claim is not None
    given = give_back(db, claim)

    with pytest.raises(ClaimLostError):
        settle(db, claim, [1])

    assert given


def test_a_later_lock_of_the_same_process_is_not_removed(shop: Shop, db: sqlite3.Connection, slot: int) -> None:
    arrived(shop, db, b"1")
    lost = take(db, slot)
    db.execute("DELETE FROM broker_group_lock")
    claim = take(db, slot, now=NOW + 1)
    assert lost is not None
    assert claim is not None

    assert not give_back(db, lost)
    assert give_back(db, claim)


def test_the_lock_of_a_reader_that_died_is_not_taken_over_before_its_death_is_counted(
    shop: Shop, db: sqlite3.Connection, slot: int
) -> None:
    arrived(shop, db, b"1")
    take(db, slot + 1)

    assert take(db, slot) is None
    (crash,) = note_crashes(db, own=slot, rules={}, now=NOW)
    assert take(db, slot) is None
    assert take(db, slot, now=NOW + crash.verdict.rest_s) is not None


def test_a_claim_whose_message_somebody_else_removed_is_not_settled(
    shop: Shop, db: sqlite3.Connection, slot: int
) -> None:
    arrived(shop, db, b"1", b"2")
    claim = take(db, slot)
    assert claim is not None
    shop.connect(isolation_level=None).execute("DELETE FROM broker_message WHERE message_body = x'32'")
    db.execute("BEGIN IMMEDIATE")

    with pytest.raises(ClaimLostError, match="nothing of the work was committed"):
        settle(db, claim, [1])
    db.execute("ROLLBACK")

    assert 1 == db.execute("SELECT count(*) FROM broker_message").fetchone()[0]


def test_a_claim_whose_dialog_the_reader_itself_ended_is_settled(shop: Shop, db: sqlite3.Connection, slot: int) -> None:
    dialog = arrived(shop, db, b"1", b"2")
    claim = take(db, slot)
    assert claim is not None
    db.execute("BEGIN IMMEDIATE")
    dialog.end(cleanup=True)

    settle(db, claim, [1])
    db.execute("COMMIT")

    for table in ("message", "conversation", "group_lock"):
        assert 0 == db.execute(f"SELECT count(*) FROM broker_{table}").fetchone()[0]


def test_a_timer_in_front_of_a_message_that_fails_does_not_start_its_count_again(
    shop: Shop, db: sqlite3.Connection, slot: int
) -> None:
    arrived(shop, db, b"poison")
    note_failure(db, Blame(1, 0, "E"), now=NOW, rest_first=0)
    statement = (
        "INSERT INTO broker_message (queue_id, priority, endpoint_id, message_sequence_number, message_type_name,"
        " message_enqueue_time, message_body) SELECT queue_id, 12, 1, 1, 'timer', ?, x'' FROM broker_message"
    )
    db.execute(statement, (NOW,))
    claim = take(db, slot)
    assert claim is not None

    settle(db, claim, [1])

    assert (2,) == claim.queuing_orders
    assert 2 == note_failure(db, Blame(1, 0, "E"), now=NOW, rest_first=0).failures


def test_the_death_of_a_reader_is_a_failure_of_the_message_it_had(
    shop: Shop, db: sqlite3.Connection, slot: int
) -> None:
    arrived(shop, db, b"1", b"2")
    take(db, slot + 1)
    (queue_id,) = db.execute("SELECT queue_id FROM broker_queue WHERE name = 'OrdersQueue'").fetchone()

    crashes = note_crashes(db, own=slot, rules={queue_id: RetryRule(attempts=2, rest_first=0)}, now=NOW)
    take(db, slot + 1)
    more = note_crashes(db, own=slot, rules={queue_id: RetryRule(attempts=2, rest_first=0)}, now=NOW)

    (failure,) = failures(db)
    assert [(1, 0, 1, False)] == [
        (one.endpoint_id, one.message_sequence_number, one.verdict.failures, one.verdict.is_quarantined)
        for one in crashes
    ]
    assert [True] == [one.verdict.is_quarantined for one in more]
    assert "the process of its reader died" in failure.error


def test_a_message_that_came_after_the_claim_is_not_blamed(shop: Shop, db: sqlite3.Connection, slot: int) -> None:
    arrived(shop, db, b"1")
    take(db, slot + 1)
    db.execute("UPDATE broker_message SET message_enqueue_time = ?", (NOW + 1,))

    crashes = note_crashes(db, own=slot, rules={}, now=NOW + 2)

    assert [] == crashes
    assert [] == db.execute("SELECT * FROM broker_group_lock").fetchall()


def test_what_a_living_reader_has_is_not_touched(shop: Shop, db: sqlite3.Connection, slot: int) -> None:
    arrived(shop, db, b"1")
    take(db, slot)

    assert [] == note_crashes(db, own=None, rules={}, now=NOW)
    assert 1 == db.execute("SELECT count(*) FROM broker_group_lock").fetchone()[0]
