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
from broker.store.port import MaintenanceResult
from broker.store.sqlite import expiry as module
from broker.store.sqlite.expiry import (
    LINGER_SECONDS,
    PIECES,
    Expired,
    Expiry,
    Maintenance,
    Purge,
    fire_timers,
    next_timer,
)
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


# --- test_housekeeping ---
# Everything that the writer does of itself, in one slice; and what is rolled back is done again.


NOW = 1_750_000_000.0


@pytest.fixture
def db_of_housekeeping(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db_of_housekeeping = open_database(tmp_path / "shop.db", "Orders")
    yield db_of_housekeeping
    db_of_housekeeping.close()


def make_work(db_of_housekeeping: sqlite3.Connection) -> None:
    """A timer that is due, a dialog past its lifetime, and a tombstone and a fragment that have served."""
    for _ in range(2):
        begin_dialog(db_of_housekeeping, from_service="Orders", to_service="//far/Billing").send(b"a")
    db_of_housekeeping.execute(
        "UPDATE broker_conversation SET dialog_timer = ?, lifetime = ? WHERE endpoint_id = 1", (NOW, NOW + 9)
    )
    db_of_housekeeping.execute("UPDATE broker_conversation SET lifetime = ? WHERE endpoint_id = 2", (NOW,))
    db_of_housekeeping.execute(
        "INSERT INTO broker_tombstone VALUES (x'00', 0, 1, 0, 0, ?, NULL, NULL, NULL, NULL)", (NOW,)
    )
    db_of_housekeeping.execute("INSERT INTO broker_fragment VALUES (99, 0, 0, 0, x'')")


def test_slice_does_something_of_everything(db_of_housekeeping: sqlite3.Connection) -> None:
    make_work(db_of_housekeeping)
    keeper = Maintenance()

    assert keeper.has_work(db_of_housekeeping, NOW)
    kept = keeper.run(db_of_housekeeping, NOW)

    assert ([2], True) == (kept.finished, kept.has_more)
    assert [DIALOG_TIMER, ERROR] == [name for name, _ in queued(db_of_housekeeping)]
    assert [] == rows(db_of_housekeeping, "SELECT 1 FROM broker_tombstone UNION ALL SELECT 1 FROM broker_fragment")
    assert MaintenanceResult() == keeper.run(db_of_housekeeping, NOW)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE broker_conversation SET dialog_timer = 1 WHERE endpoint_id = 1",
        "UPDATE broker_conversation SET lifetime = 1 WHERE endpoint_id = 1",
        "INSERT INTO broker_tombstone VALUES (x'00', 0, 1, 0, 0, 1, NULL, NULL, NULL, NULL)",
        "INSERT INTO broker_received VALUES (1, 1)",
        "INSERT INTO broker_fragment VALUES (99, 0, 0, 0, x'')",
        "INSERT INTO broker_transmission_part VALUES (99, 0, x'')",
    ],
)
def test_each_kind_of_work_is_seen(db_of_housekeeping: sqlite3.Connection, statement: str) -> None:
    begin_dialog(db_of_housekeeping, from_service="Orders", to_service="//far/Billing")
    assert not Maintenance().has_work(db_of_housekeeping, NOW)

    db_of_housekeeping.execute(statement)

    assert Maintenance().has_work(db_of_housekeeping, NOW)


def test_what_was_rolled_back_is_done_again_of_housekeeping(db_of_housekeeping: sqlite3.Connection) -> None:
    make_work(db_of_housekeeping)
    keeper = Maintenance()
    db_of_housekeeping.execute("BEGIN")
    keeper.run(db_of_housekeeping, NOW)
    db_of_housekeeping.execute("ROLLBACK")

    keeper.forget()

    assert [2] == keeper.run(db_of_housekeeping, NOW).finished


# --- test_purge ---
# What has served is removed in slices; what is still of use stays.


@pytest.fixture
def db_of_purge(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A database with the conversation 1, which has one message to send."""
    db_of_purge = open_database(tmp_path / "bank.db", "Orders")
    begin_dialog(db_of_purge, from_service="Orders", to_service="//far/Billing").send(b"a")
    yield db_of_purge
    db_of_purge.close()


def keep(db_of_purge: sqlite3.Connection, endpoint_id: int, sequence: int, count: int) -> None:
    db_of_purge.executemany(
        "INSERT INTO broker_fragment VALUES (?, ?, ?, 0, x'aa')", [(endpoint_id, sequence, n) for n in range(count)]
    )


def keep_parts(db_of_purge: sqlite3.Connection, transmission_id: int, count: int) -> None:
    db_of_purge.executemany(
        "INSERT INTO broker_transmission_part VALUES (?, ?, x'aa')", [(transmission_id, n) for n in range(count)]
    )


def fragments(db_of_purge: sqlite3.Connection) -> dict[tuple[int, int], int]:
    found = rows(
        db_of_purge, "SELECT endpoint_id, message_sequence_number, count(*) FROM broker_fragment GROUP BY 1, 2"
    )
    return {(endpoint_id, sequence): count for endpoint_id, sequence, count in found}


def run(db_of_purge: sqlite3.Connection) -> int:
    """Slices until there is nothing more to do."""
    purge, slices = Purge(), 1
    while purge.run(db_of_purge, NOW):
        slices += 1
        assert slices < 1000
    return slices


def test_nothing_to_remove_is_no_work(db_of_purge: sqlite3.Connection) -> None:
    keep(db_of_purge, 1, 0, 3)
    keep_parts(db_of_purge, 1, 3)

    assert not Purge().has_work(db_of_purge, NOW)
    assert 1 == run(db_of_purge)
    assert {(1, 0): 3} == fragments(db_of_purge)
    assert 3 == len(rows(db_of_purge, "SELECT 1 FROM broker_transmission_part"))


def test_fragments_of_a_received_message_are_removed_and_others_stay(db_of_purge: sqlite3.Connection) -> None:
    keep(db_of_purge, 1, 4, 2 * PIECES + 1)
    keep(db_of_purge, 1, 5, 3)
    db_of_purge.execute("INSERT INTO broker_received VALUES (1, 4)")

    assert Purge().has_work(db_of_purge, NOW)
    Purge().run(db_of_purge, NOW)
    assert {(1, 4): PIECES + 1, (1, 5): 3} == fragments(db_of_purge)

    run(db_of_purge)
    assert {(1, 5): 3} == fragments(db_of_purge)
    assert [] == rows(db_of_purge, "SELECT * FROM broker_received")


def test_fragments_of_conversations_that_are_gone_are_removed(db_of_purge: sqlite3.Connection) -> None:
    keep(db_of_purge, 1, 0, 3)
    keep(db_of_purge, 7, 0, PIECES)
    keep(db_of_purge, 7, 9, PIECES)
    keep(db_of_purge, 8, 0, 1)

    assert Purge().has_work(db_of_purge, NOW)
    assert run(db_of_purge) > 2
    assert {(1, 0): 3} == fragments(db_of_purge)


def test_parts_of_messages_that_are_gone_are_removed(db_of_purge: sqlite3.Connection) -> None:
    keep_parts(db_of_purge, 1, 3)
    keep_parts(db_of_purge, 7, PIECES + 1)

    assert Purge().has_work(db_of_purge, NOW)
    run(db_of_purge)
    assert [1] * 3 == rows(db_of_purge, "SELECT transmission_id FROM broker_transmission_part")


def test_failures_of_conversations_that_are_gone_are_removed(db_of_purge: sqlite3.Connection) -> None:
    for endpoint_id in (1, 7, 8):
        db_of_purge.execute("INSERT INTO broker_failure VALUES (?, 0, 1, 0, 0, NULL, 'E', '')", (endpoint_id,))

    assert Purge().has_work(db_of_purge, NOW)
    run(db_of_purge)
    assert [1] == rows(db_of_purge, "SELECT endpoint_id FROM broker_failure")
    assert not Purge().has_work(db_of_purge, NOW)


def test_what_is_gone_is_found_behind_many_that_are_not(
    db_of_purge: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOKS", 2)
    for endpoint_id in range(2, 7):
        begin_dialog(db_of_purge, from_service="Orders", to_service="//far/Billing")
        keep(db_of_purge, endpoint_id, 0, 1)
    keep(db_of_purge, 9, 0, 1)
    purge = Purge()

    looks = 0
    while not purge.has_work(db_of_purge, NOW):
        looks += 1
        assert looks < 10
    purge.run(db_of_purge, NOW)

    assert looks == 2
    assert (9, 0) not in fragments(db_of_purge)


def test_tombstones_are_removed_when_they_have_served(db_of_purge: sqlite3.Connection) -> None:
    for number, at in enumerate((NOW, NOW + 1)):
        db_of_purge.execute(
            "INSERT INTO broker_tombstone VALUES (?, 0, 1, 0, 0, ?, NULL, NULL, NULL, NULL)", (bytes([number] * 16), at)
        )

    assert not Purge().has_work(db_of_purge, NOW - 1)
    assert Purge().has_work(db_of_purge, NOW)
    run(db_of_purge)
    assert [NOW + 1] == rows(db_of_purge, "SELECT expire_time FROM broker_tombstone")
