"""What time does: timers, lifetimes, and sides that nobody ends."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from broker.client.dialog import Dialog, begin_dialog
from broker.client.receiving import receive
from broker.conversation.message_types import DIALOG_TIMER, ERROR, error_body
from broker.store.sqlite import expiry as module
from broker.store.sqlite.expiry import LINGER_SECONDS, Expired, Expiry, fire_timers, next_timer
from broker.store.sqlite.metadata import drop_service
from broker.store.sqlite.reassembly import Delivery
from broker.store.sqlite.side import REPLAY_GUARD
from tests.support.dialog import QUEUE, open_database, queued, rows, states

TOO_LATE = error_body(-8489, "the dialog has exceeded its LIFETIME")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "shop.db", "Orders")
    yield db
    db.close()


def begin(db: sqlite3.Connection, *bodies: bytes, **more: Any) -> Dialog:
    dialog = begin_dialog(db, from_service="Orders", to_service="//far/Billing", **more)
    for body in bodies:
        dialog.send(body)
    return dialog


def lifetime_of(db: sqlite3.Connection) -> float:
    lifetime: float = rows(db, "SELECT max(lifetime) FROM broker_conversation")[0]
    return lifetime


def expire(db: sqlite3.Connection, now: float, expiry: Expiry | None = None) -> Expired:
    return (expiry or Expiry()).run(db, Delivery(db, now), now)


def ledger(db: sqlite3.Connection) -> dict[str, int]:
    return dict(rows(db, "SELECT entry, messages FROM broker_ledger"))


# --- lifetimes --------------------------------------------------------------------------------------------------


def test_dialog_within_its_lifetime_is_left_alone(db: sqlite3.Connection) -> None:
    begin(db, b"a", lifetime=60)
    now = lifetime_of(db) - 0.001

    assert not Expiry().has_work(db, now)
    assert Expired() == expire(db, now)
    assert ["CO"] == states(db)


def test_dialog_past_its_lifetime_fails_and_its_application_reads_it(db: sqlite3.Connection) -> None:
    begin(db, b"a", lifetime=60)

    assert Expiry().has_work(db, lifetime_of(db))
    expired = expire(db, lifetime_of(db))

    assert ([1], ["ER"]) == (expired.finished, states(db))
    assert [(ERROR, TOO_LATE)] == queued(db)
    assert [11] == rows(db, "SELECT priority FROM broker_message")
    assert [] == rows(db, "SELECT 1 FROM broker_transmission")
    assert {"lifetime exceeded": 1} == ledger(db)


def test_target_fails_just_so_and_its_pieces_are_left_for_removal(db: sqlite3.Connection) -> None:
    begin(db)
    db.execute("UPDATE broker_conversation SET is_initiator = 0, state = 'SI', receive_sequence = 2")
    for sequence in (1, 2, 4):
        db.execute("INSERT INTO broker_fragment VALUES (1, ?, 0, 0, x'')", (sequence,))

    expire(db, lifetime_of(db))

    assert (["ER"], 1) == (states(db), len(queued(db)))
    assert [2, 4] == rows(db, "SELECT message_sequence_number FROM broker_received ORDER BY 1")


def test_application_that_has_ended_hears_nothing_and_the_side_is_closed(db: sqlite3.Connection) -> None:
    begin(db, b"a").end()
    lifetime = lifetime_of(db)

    expired = expire(db, lifetime)

    assert ([1], [], []) == (expired.finished, states(db), queued(db))
    assert {"sent": 2, "lifetime exceeded": 2} == ledger(db)
    assert [lifetime + REPLAY_GUARD] == rows(db, "SELECT expire_time FROM broker_tombstone")


def test_expiry_of_a_dialog_whose_service_is_gone_is_no_trouble(db: sqlite3.Connection) -> None:
    begin(db, b"a")
    drop_service(db, "Orders")

    expire(db, lifetime_of(db))

    assert (["ER"], []) == (states(db), queued(db))


# --- sides that nobody ends -------------------------------------------------------------------------------------


def test_failed_side_stays_as_long_as_its_error_is_unread(db: sqlite3.Connection) -> None:
    begin(db, b"a")
    expire(db, lifetime_of(db))

    assert [] == expire(db, lifetime_of(db) + 365 * 86_400).finished
    assert (["ER"], 1) == (states(db), len(queued(db)))


@pytest.mark.parametrize("state", ["ER", "DI"])
@pytest.mark.parametrize(("seconds", "left"), [(LINGER_SECONDS - 1, 1), (LINGER_SECONDS, 0)])
def test_half_closed_side_that_has_read_all_is_reaped_a_while_after_its_lifetime(
    db: sqlite3.Connection, state: str, seconds: float, left: int
) -> None:
    begin(db)
    db.execute("UPDATE broker_conversation SET state = ?", (state,))

    expire(db, lifetime_of(db) + seconds)

    assert left == len(states(db))


def test_half_closed_side_with_something_unsent_fails(db: sqlite3.Connection) -> None:
    """The far side has ended, and what is on its way to it will not arrive."""
    begin(db, b"a")
    db.execute("UPDATE broker_conversation SET state = 'DI'")

    expire(db, lifetime_of(db))

    assert (["ER"], [(ERROR, TOO_LATE)]) == (states(db), queued(db))


def test_side_that_lingers_is_looked_at_again(db: sqlite3.Connection) -> None:
    begin(db, b"a")
    expiry, lifetime = Expiry(), lifetime_of(db)
    expire(db, lifetime, expiry)
    expire(db, lifetime + LINGER_SECONDS, expiry)
    assert ["ER"] == states(db)

    receive(db, queue=QUEUE)
    expire(db, lifetime + LINGER_SECONDS, expiry)

    assert [] == states(db)


def test_many_are_done_in_slices_and_those_that_linger_keep_nobody_waiting(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLICE", 2)
    for _ in range(5):
        begin(db)
    lifetime = lifetime_of(db)
    expiry = Expiry()

    assert [True, True, False] == [expire(db, lifetime, expiry).has_more for _ in range(3)]
    assert ["ER"] * 5 == states(db)

    begin(db, lifetime=timedelta(days=8))
    assert [6] == expire(db, lifetime_of(db), expiry).finished


def test_what_was_rolled_back_is_done_again(db: sqlite3.Connection) -> None:
    begin(db)
    expiry, lifetime = Expiry(), lifetime_of(db)
    db.execute("BEGIN")
    expire(db, lifetime, expiry)
    db.execute("ROLLBACK")

    expiry.forget()

    assert [1] == expire(db, lifetime, expiry).finished


def test_clock_that_went_forward_and_back_makes_nobody_forgotten(db: sqlite3.Connection) -> None:
    begin(db, lifetime=1000)
    expiry, lifetime = Expiry(), lifetime_of(db)
    expire(db, lifetime + 5000, expiry)
    begin(db, lifetime=2000)
    assert ["ER", "SO"] == states(db)

    expire(db, lifetime, expiry)
    expire(db, lifetime_of(db), expiry)

    assert ["ER", "ER"] == states(db)
    assert 2 == len(queued(db))


def test_clock_that_goes_back_ends_nothing_early(db: sqlite3.Connection) -> None:
    begin(db, lifetime=1000)
    expiry = Expiry()
    expire(db, lifetime_of(db) - 1, expiry)

    expire(db, lifetime_of(db) - 1_000_000, expiry)
    assert ["SO"] == states(db)
    expire(db, lifetime_of(db), expiry)
    assert ["ER"] == states(db)


# --- timers -----------------------------------------------------------------------------------------------------


def fire(db: sqlite3.Connection, now: float) -> bool:
    return fire_timers(db, Delivery(db, now), now)


def set_timer(db: sqlite3.Connection, at: float | None, endpoint_id: int = 1) -> None:
    db.execute("UPDATE broker_conversation SET dialog_timer = ? WHERE endpoint_id = ?", (at, endpoint_id))


def test_timer_that_is_due_becomes_a_message_read_before_all_others_and_is_cleared(db: sqlite3.Connection) -> None:
    begin(db)
    at = lifetime_of(db) - 10
    set_timer(db, at)

    fire(db, at - 0.001)
    assert ([], at) == (queued(db), next_timer(db))
    fire(db, at)

    assert [(DIALOG_TIMER, b"")] == queued(db)
    assert [12] == rows(db, "SELECT priority FROM broker_message")
    assert next_timer(db) is None
    fire(db, at + 1)
    assert 1 == len(queued(db))


def test_next_timer_is_the_first(db: sqlite3.Connection) -> None:
    for endpoint_id in (1, 2, 3):
        begin(db)
        set_timer(db, 100.0 - endpoint_id, endpoint_id)
    set_timer(db, None, 3)

    assert 98.0 == next_timer(db)


@pytest.mark.parametrize(
    ("state", "count"), [("SO", 1), ("SI", 1), ("CO", 1), ("DI", 1), ("DO", 0), ("ER", 0), ("CD", 0)]
)
def test_side_that_has_ended_or_failed_has_no_timer(db: sqlite3.Connection, state: str, count: int) -> None:
    begin(db)
    db.execute("UPDATE broker_conversation SET state = ?", (state,))
    set_timer(db, lifetime_of(db) - 1)

    fire(db, lifetime_of(db))

    assert count == len(queued(db))
    assert next_timer(db) is None


def test_timer_beyond_the_lifetime_never_fires(db: sqlite3.Connection) -> None:
    begin(db)
    set_timer(db, lifetime_of(db) + 1)

    fire(db, lifetime_of(db) + 2)

    assert [] == queued(db)
    assert next_timer(db) is None


def test_many_timers_fire_in_slices(db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE", 2)
    for endpoint_id in range(1, 6):
        begin(db)
        set_timer(db, 100.0 + endpoint_id, endpoint_id)

    assert [True, True, False] == [fire(db, 200.0) for _ in range(3)]
    assert [1, 2, 3, 4, 5] == rows(db, "SELECT endpoint_id FROM broker_message ORDER BY queuing_order")
