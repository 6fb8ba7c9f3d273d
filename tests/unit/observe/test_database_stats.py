"""Statistics of the files of databases: for a status, for events, and for metrics."""

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.conversation.message_types import ERROR_PRIORITY
from broker.observe import database_stats as side
from broker.observe.database_stats import (
    QUEUES_MAX,
    CensusAnswer,
    SideCounter,
    age_samples,
    census_of,
    ledger_status,
    read_database_stats,
    read_quick_stats,
    state_samples,
)
from broker.store.sqlite.database import open_store
from broker.store.sqlite.inspect import LedgerBalance
from broker.store.sqlite.metadata import put_queue
from tests.support.shop import Shop


@pytest.mark.promise("Conversations never end")
def test_each_database_is_counted(tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.db" for name in ("orders", "billing")}
    for path in paths.values():
        open_store(path).close()

    answer = census_of(paths, 5.0)

    assert ["orders", "billing"] == [one.database for one in answer.databases]
    assert 5.0 == answer.databases[0].census.now
    assert answer == msgspec.convert(msgspec.to_builtins(answer), CensusAnswer)


def test_statistics_of_a_status_and_of_an_event(tmp_path: Path) -> None:
    """The queries are tested with the store; None for a file that cannot be read."""
    (tmp_path / "broken.db").write_bytes(b"not a database" * 100)
    paths = {name: tmp_path / f"{name}.db" for name in ("shop", "broken", "absent")}
    with closing(Shop(paths["shop"])) as shop:
        db = shop.connect()
        with db:
            shop.begin(db).send(b"x")
            db.execute("UPDATE broker_conversation SET transmission_status = 'no way'")

        quick, counted = read_quick_stats(paths), read_database_stats(paths)

    assert (None, None, None, None) == (quick["broken"], quick["absent"], counted["broken"], counted["absent"])
    one, other = quick["shop"], counted["shop"]
    assert one is not None
    assert other is not None
    assert (1, 1, 0, ()) == (one.backlog.messages, one.ledger.held, one.quarantined, one.queues)
    assert (1, 1, 0, 2, 2) == (
        other.backlog.messages,
        other.ledger.held,
        other.quarantined,
        len(other.queues),
        other.queue_count,
    )
    assert [("//far/Billing", 1, "no way")] == [(why.far_service, why.messages, why.why) for why in other.reasons]


MESSAGE = (
    "INSERT INTO broker_message (queue_id, status, priority, message_enqueue_time, endpoint_id,"
    " message_sequence_number, message_type_name) SELECT queue_id, ?, ?, ?, 1, 0, 'x' FROM broker_queue WHERE name = ?"
)


def test_queues_that_are_off_come_first_and_then_the_one_that_waits_longest(tmp_path: Path) -> None:
    """One in which nothing waits is left out, and what was received or is in quarantine does not wait."""
    path, now = tmp_path / "orders.db", time.time()
    rows = [(1, 5, now - 30, "New"), (1, 1, now - 400, "Old"), (1, 9, now - 9, "Old"), (4, 5, now - 999, "Q")]
    rows += [(1, ERROR_PRIORITY, now, "New"), (4, ERROR_PRIORITY, now, "Q")]
    with closing(open_store(path)) as db:
        for name in ("Q", "Old", "New", *(f"Off{number:02}" for number in range(QUEUES_MAX + 5))):
            put_queue(db, name, is_receive_enabled=not name.startswith("Off"))
        db.executemany(MESSAGE, rows)
        many = read_quick_stats({"one": path})["one"]
        db.execute("DELETE FROM broker_queue WHERE name LIKE 'Off%' AND name > 'Off00'")

    few = read_quick_stats({"one": path})["one"]

    assert many is not None
    assert few is not None
    assert QUEUES_MAX == len(many.queues)
    assert [("Off00", False), ("Old", True), ("New", True)] == [
        (one.name, one.is_receive_enabled) for one in few.queues
    ]
    assert 400 <= few.queues[1].oldest_s < 500
    counted = read_database_stats({"one": path})["one"]
    assert counted is not None
    assert [1, 1] == [few.failed, counted.failed]  # an error that was received, or is in quarantine, does not count


@pytest.mark.parametrize(
    ("balance", "sentence"),
    [
        (LedgerBalance(), "0 sent = 0 acknowledged + 0 held + 0 failed"),
        (
            LedgerBalance(12_345, 12_340, 2, {"b": 1, "a": 2}),
            "12,345 sent = 12,340 acknowledged + 2 held + 3 failed (2 a, 1 b)",
        ),
        (LedgerBalance(3, 1, 1), "3 sent = 1 acknowledged + 1 held + 0 failed + 1 UNACCOUNTED"),
    ],
)
@pytest.mark.promise("The ledger does not add up")
def test_one_line_says_whether_it_adds_up(balance: LedgerBalance, sentence: str) -> None:
    assert sentence == ledger_status(balance).sentence


class Clock:
    """A clock that goes on by `step` each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0
        self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def begin_of_side(shop: Shop, dialogs: int) -> list[Any]:
    db = shop.connect()
    with db:
        return [shop.begin(db) for _ in range(dialogs)]


def test_sides_quarantine_and_queues_are_counted_while_another_connection_has_a_lock(shop: Shop) -> None:
    """Every service has its quarantine, though it is empty, so that the first dialog in it is a change from 0."""
    first, *_ = begin_of_side(shop, 3)
    shop.change(first, "state", "CO")
    shop.arrive(first, b"a", b"b")
    db = shop.connect(isolation_level=None)
    db.execute(
        "INSERT INTO broker_failure SELECT endpoint_id, 0, 5, 1.0, 2.0, 3.0, 'ValueError', '' FROM broker_conversation"
        " WHERE conversation_handle = ?",
        (first.conversation_handle.bytes,),
    )
    db.execute("BEGIN EXCLUSIVE")

    counts = SideCounter().count({"shop": shop.path})

    assert {("Orders", "STARTED_OUTBOUND"): 2, ("Orders", "CONVERSING"): 1} == dict(state_samples(counts))
    assert {("STARTED_OUTBOUND",), ("CONVERSING",)} == dict(age_samples(counts)).keys()
    assert {"Orders": 1, "Billing": 0} == dict(counts["shop"].quarantined)
    assert {"OrdersQueue", "BillingQueue"} == {one.name for one in counts["shop"].queues}


def test_walk_rests_for_many_times_what_it_took(shop: Shop) -> None:
    clock = Clock()
    sides = SideCounter(clock)
    clock.step = 0.01
    sides.count({"shop": shop.path})
    begin_of_side(shop, 1)
    clock.step = 0.0

    at_once = sides.count({"shop": shop.path})
    clock.now += 2 * 0.01 * side.REST_FACTOR
    later = sides.count({"shop": shop.path})

    assert [[], [1]] == [[count for _, count in state_samples(one)] for one in (at_once, later)]


def test_walk_that_takes_too_long_is_given_up_and_what_was_counted_stays(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    sides = SideCounter(clock)
    begin_of_side(shop, 3)
    sides.count({"shop": shop.path})
    begin_of_side(shop, 3)
    monkeypatch.setattr(side, "_STEPS", 1)
    clock.now += 1.0
    clock.step = side.WALK_SECONDS

    counts = sides.count({"shop": shop.path})

    assert [3] == [count for _, count in state_samples(counts)]


@pytest.mark.parametrize("content", [None, b"not a database, and longer than the header of one" * 20])
def test_file_that_cannot_be_read_is_left_out(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "shop.db"
    if content is not None:
        path.write_bytes(content)

    assert {} == SideCounter().count({"shop": path})


def test_database_that_has_gone_is_forgotten(shop: Shop) -> None:
    sides = SideCounter()
    begin_of_side(shop, 1)
    sides.count({"shop": shop.path})

    assert {} == sides.count({})
