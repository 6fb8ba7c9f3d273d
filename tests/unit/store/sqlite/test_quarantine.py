"""Failures counted, rests between attempts, quarantine, and what can be done about it."""

import sqlite3
from typing import Any

import pytest

from broker.client.dialog import Dialog
from broker.protocol.frame import Envelope, encode_envelope
from broker.store.sqlite.failure import (
    ERROR_MAX,
    REST_MAX,
    TRACEBACK_MAX,
    Blame,
    Verdict,
    blame,
    forget,
    note_failure,
    note_queue_success,
    note_success,
    remove_message,
    rest_seconds,
)
from broker.store.sqlite.quarantine import (
    Failure,
    body_pieces,
    failures,
    find,
    quarantined_by_service,
    quarantined_dialogs,
    resume,
    skip,
)
from tests.support.dialog import put_message
from tests.support.shop import Shop

NOW = 1_000_000.0


@pytest.fixture
def db(shop: Shop) -> sqlite3.Connection:
    return shop.connect(isolation_level=None)


def arrived(shop: Shop, db: sqlite3.Connection, *bodies: bytes, **options: Any) -> tuple[int, Dialog]:
    """A dialog with messages that wait; its endpoint_id."""
    dialog = shop.begin(db)
    shop.arrive(dialog, *bodies, **options)
    return dialog.endpoint_id, dialog


def fail(db: sqlite3.Connection, endpoint_id: int, sequence: int = 0, *, now: float = NOW, **options: Any) -> Verdict:
    return note_failure(db, Blame(endpoint_id, sequence, "E: text", "Traceback"), now=now, **options)


def statuses(db: sqlite3.Connection, endpoint_id: int) -> list[int]:
    query = "SELECT status FROM broker_message WHERE endpoint_id = ? ORDER BY queuing_order"
    return [row[0] for row in db.execute(query, (endpoint_id,))]


def the(db: sqlite3.Connection) -> Failure:
    (failure,) = failures(db)
    return failure


def test_success_forgets_what_is_tried_again_but_not_what_is_in_quarantine(shop: Shop, db: sqlite3.Connection) -> None:
    retried, quarantined, other = (arrived(shop, db, b"one")[0] for _ in range(3))
    fail(db, retried)
    for endpoint_id in (quarantined, other):
        fail(db, endpoint_id, attempts=1)
    assert (2, {("Orders", 2), ("Billing", 0)}) == (quarantined_dialogs(db), set(quarantined_by_service(db)))
    db.execute("DELETE FROM broker_message")

    note_success(db, [retried, quarantined])

    assert {quarantined, other} == {failure.endpoint_id for failure in failures(db)}
    [failure, _] = failures(db)
    assert (None, None, 0, 0) == (
        failure.queuing_order,
        failure.message_type_name,
        failure.body_bytes,
        failure.messages_behind,
    )


@pytest.mark.parametrize(
    ("failed", "passed", "is_forgotten"),
    [
        (("poison", 0, 5), ("timer", 1, 12), False),
        (("poison", 0, 5), ("error", 1, 11), False),
        (("error", 0, 11), ("timer", 0, 12), False),
        (("timer", 0, 12), ("next", 0, 5), True),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_success_of_a_timer_or_an_error_forgets_no_failure_but_its_own(
    shop: Shop,
    db: sqlite3.Connection,
    failed: tuple[str, int, int],
    passed: tuple[str, int, int],
    *,
    is_forgotten: bool,
) -> None:
    """A timer that failed is no burden on the message that arrives later under its number."""
    endpoint_id, _ = arrived(shop, db)

    def put(what: tuple[str, int, int], now: float) -> int:
        """A message of the broker's own has the number of the next one that would come."""
        columns = {"message_sequence_number": what[1], "priority": what[2], "message_enqueue_time": now}
        return put_message(db, endpoint_id=endpoint_id, **columns)

    first = put(failed, NOW)
    fail(db, endpoint_id, now=NOW + 1)
    other = put(passed, NOW + 2)

    remove_message(db, first if is_forgotten else other)
    note_success(db, [endpoint_id])

    assert (1 if is_forgotten else 2) == fail(db, endpoint_id, now=NOW + 3).failures


def test_nothing_is_kept_of_a_dialog_that_is_gone(shop: Shop, db: sqlite3.Connection) -> None:
    endpoint_id, dialog = arrived(shop, db, b"one")
    dialog.end(cleanup=True)

    verdicts = [fail(db, endpoint_id, attempts=1) for _ in range(2)]

    assert [Verdict(0, 0.0, is_quarantined=False, is_queue_disabled=False)] * 2 == verdicts
    assert 0 == db.execute("SELECT count(*) FROM broker_failure").fetchone()[0]
    assert 0 == db.execute("SELECT count(*) FROM broker_group_lock").fetchone()[0]


def test_a_queue_that_asks_for_it_is_turned_off_after_five_failures_in_a_row(
    shop: Shop, db: sqlite3.Connection
) -> None:
    """A success ends the row; a queue that is turned on again has five failures to go."""
    db.execute("UPDATE broker_queue SET is_poison_message_handling_enabled = 1 WHERE name = 'OrdersQueue'")
    dialogs = [arrived(shop, db, b"one")[0] for _ in range(5)]
    (queue_id,) = db.execute("SELECT queue_id FROM broker_queue WHERE name = 'OrdersQueue'").fetchone()
    for _ in range(4):
        assert not fail(db, dialogs[0], attempts=100).is_queue_disabled
    note_queue_success(db, queue_id)

    verdicts = [fail(db, endpoint_id, attempts=1) for endpoint_id in dialogs]

    assert [False, False, False, False, True] == [verdict.is_queue_disabled for verdict in verdicts]
    assert [True, True, True, True, False] == [verdict.is_quarantined for verdict in verdicts]
    query = "SELECT name, is_receive_enabled, rollbacks FROM broker_queue ORDER BY name"
    assert [("BillingQueue", 1, 0), ("OrdersQueue", 0, 5)] == db.execute(query).fetchall()
    again = [fail(db, dialogs[0], attempts=100).is_queue_disabled for _ in range(5)]
    assert [False, False, False, False, True] == again


def test_an_exception_is_kept_with_the_end_of_its_traceback() -> None:
    """Also with half a character, as `json.loads` makes of what any far side may send."""
    with pytest.raises(ValueError, match="the end") as caught:
        raise ValueError("x" * 50_000 + " \ud800 the end")
    kept, short = blame(7, 3, caught.value), blame(7, 3, ValueError("no order \ud800"))

    assert (7, 3) == (kept.endpoint_id, kept.message_sequence_number)
    assert kept.error.startswith("ValueError: xxx")
    assert ERROR_MAX == len(kept.error)
    assert len(kept.traceback) < TRACEBACK_MAX + 100
    assert kept.traceback.endswith(" \\ud800 the end\n")
    assert "characters left out" in kept.traceback
    assert r"ValueError: no order \ud800" == short.error


def test_a_failure_tells_of_its_message_and_of_what_waits_behind_it(shop: Shop, db: sqlite3.Connection) -> None:
    endpoint_id, dialog = arrived(shop, db, b"12345", b"two", b"three", type_name="//shop/Invoice")
    fail(db, endpoint_id, attempts=1)

    failure = the(db)

    assert ("Orders", "//far/Billing", "OrdersQueue") == (failure.service_name, failure.far_service, failure.queue_name)
    assert ("//shop/Invoice", 5, 2, 1) == (
        failure.message_type_name,
        failure.body_bytes,
        failure.messages_behind,
        failure.failures,
    )
    assert ("E: text", "Traceback") == (failure.error, failure.traceback)
    assert failure == find(db, dialog.conversation_handle.bytes) == find(db, dialog.conversation_id.bytes)
    assert find(db, bytes(16)) is None


def test_resume_makes_all_of_the_dialog_ready_and_starts_counting_again(shop: Shop, db: sqlite3.Connection) -> None:
    endpoint_id, _ = arrived(shop, db, b"one", b"two")
    fail(db, endpoint_id, attempts=1)

    ready = resume(db, endpoint_id)

    assert (2, [1, 1], []) == (ready, statuses(db, endpoint_id), list(failures(db)))
    assert 1 == fail(db, endpoint_id).failures


def test_skip_drops_the_failed_message_alone(shop: Shop, db: sqlite3.Connection) -> None:
    endpoint_id, _ = arrived(shop, db, b"one", b"two", b"three")
    fail(db, endpoint_id, 1, attempts=1)

    skip(db, the(db))

    bodies = db.execute("SELECT message_body, status FROM broker_message ORDER BY queuing_order").fetchall()
    assert [(b"one", 1), (b"three", 1)] == bodies
    assert [] == list(failures(db))


def test_to_forget_ends_a_rest_but_not_a_lock(shop: Shop, db: sqlite3.Connection) -> None:
    rests, _ = arrived(shop, db, b"one")
    locked, dialog = arrived(shop, db, b"two")
    fail(db, rests)
    group = dialog.conversation_group_id.bytes
    db.execute("INSERT INTO broker_group_lock VALUES (?, 3, ?, NULL)", (group, NOW))

    forget(db, rests)
    forget(db, locked)

    assert [(group,)] == db.execute("SELECT conversation_group_id FROM broker_group_lock").fetchall()


@pytest.fixture
def large(shop: Shop, db: sqlite3.Connection) -> int:
    """A message in fragments; its queuing_order."""
    endpoint_id, _ = arrived(shop, db, b"")
    db.execute("UPDATE broker_message SET message_body = NULL, body_fragments = 2")
    opening = encode_envelope(Envelope(type="T"))
    pieces = [opening + b"first ", b"second"]
    for number, piece in enumerate(pieces):
        db.execute("INSERT INTO broker_fragment VALUES (?, 0, ?, 0, ?)", (endpoint_id, number, piece))
    fail(db, endpoint_id, attempts=1)
    order: int = db.execute("SELECT queuing_order FROM broker_message").fetchone()[0]
    return order


def test_a_large_body_is_measured_and_given_in_pieces(shop: Shop, db: sqlite3.Connection, large: int) -> None:
    """A small one is one piece, and a missing one none."""
    assert 12 == the(db).body_bytes
    assert [b"first ", b"second"] == list(body_pieces(db, large))
    arrived(shop, db, b"one")
    assert ([b"one"], []) == (list(body_pieces(db, large + 1)), list(body_pieces(db, 99)))


def test_a_large_message_that_leaves_its_queue_is_left_to_the_daemon(db: sqlite3.Connection, large: int) -> None:
    removed = [remove_message(db, large) for _ in range(2)]

    assert [True, False] == removed
    assert 1 == db.execute("SELECT count(*) FROM broker_received").fetchone()[0]
    assert 0 == db.execute("SELECT count(*) FROM broker_message").fetchone()[0]
    assert 2 == db.execute("SELECT count(*) FROM broker_fragment").fetchone()[0]


def test_rests_grow_by_two_up_to_a_limit_and_are_spread_by_a_quarter() -> None:
    group = b"g" * 16

    rests = [rest_seconds(count, group) for count in range(1, 40)]

    assert all(0.75 * 2.0**n <= rest <= 1.25 * 2.0**n for n, rest in enumerate(rests[:8]))
    assert all(0.75 * REST_MAX <= rest <= 1.25 * REST_MAX for rest in rests[9:])
    assert rests == [rest_seconds(count, group) for count in range(1, 40)]
    assert len({rest_seconds(1, bytes([n]) * 16) for n in range(50)}) > 40
