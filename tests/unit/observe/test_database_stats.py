"""The census as an answer: every database that is asked for."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

import broker
from broker.errors import StoreUnavailableError
from broker.observe import database_stats as side
from broker.observe.database_stats import (
    QUEUES_MAX,
    CensusAnswer,
    DatabaseStats,
    QuickStats,
    SideCounter,
    SideCounts,
    age_samples,
    census_of,
    find_conversation,
    ledger_status,
    read_database_stats,
    read_quick_stats,
    state_samples,
)
from broker.protocol.layout import NO_GUID
from broker.store.sqlite.database import broker_instance, open_store
from broker.store.sqlite.inspect import QUEUES_MAX as COUNTED_QUEUES_MAX
from broker.store.sqlite.inspect import Backlog, LedgerBalance
from broker.store.sqlite.metadata import put_queue, put_service
from tests.support.scraped import samples_of
from tests.support.shop import Shop


def quick(path: Path) -> QuickStats:
    found = read_quick_stats({"one": path})["one"]
    assert found is not None
    return found


def counted(path: Path) -> DatabaseStats:
    found = read_database_stats({"one": path})["one"]
    assert found is not None
    return found


def test_each_database_is_counted(tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.db" for name in ("orders", "billing")}
    for path in paths.values():
        open_store(path).close()

    answer = census_of(paths, 5.0)

    assert ["orders", "billing"] == [one.database for one in answer.databases]
    assert 5.0 == answer.databases[0].census.now
    assert answer == msgspec.convert(msgspec.to_builtins(answer), CensusAnswer)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "bad.db").write_bytes(b"x" * 4096)

    with pytest.raises(StoreUnavailableError, match=r"bad\.db.*no SQLite database"):
        census_of({"bad": tmp_path / "bad.db"}, 5.0)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "orders.db"
    with closing(open_store(path)) as db:
        put_queue(db, "Q", is_receive_enabled=True)
        put_service(db, "//a", 1, frozenset())
    return path


def test_nothing_waits(database: Path) -> None:
    assert Backlog(0, 0.0) == quick(database).backlog


def test_messages_are_counted_and_the_first_has_an_age(database: Path) -> None:
    with closing(sqlite3.connect(database)) as db, db:
        dialog = broker.begin_dialog(db, from_service="//a", to_service="//b")
        for _ in range(3):
            dialog.send(b"x")
        db.execute(
            "UPDATE broker_transmission SET enqueue_time = ? WHERE message_sequence_number = 0", (time.time() - 60,)
        )

    backlog = quick(database).backlog

    assert backlog.messages == 3
    assert 60 <= backlog.oldest_s < 90


def test_clock_that_was_set_back_gives_no_negative_age(database: Path) -> None:
    with closing(sqlite3.connect(database)) as db, db:
        broker.begin_dialog(db, from_service="//a", to_service="//b").send(b"x")
        db.execute("UPDATE broker_transmission SET enqueue_time = ?", (time.time() + 3600,))

    assert Backlog(1, 0.0) == quick(database).backlog


def test_file_that_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    assert {"absent": None} == read_quick_stats({"absent": tmp_path / "absent.db"})


# --- test_conversation ---
# Conversations are found in the file of their database, by handle or by id.


FAR = UUID(int=7)


@pytest.fixture
def database_of_conversation(tmp_path: Path) -> Path:
    path = tmp_path / "orders.db"
    with closing(open_store(path)) as db:
        put_queue(db, "Q", is_receive_enabled=True)
        put_service(db, "//a", 1, frozenset())
    return path


def begin(database_of_conversation: Path, broker_instance: UUID | None = None) -> broker.Dialog:
    with closing(sqlite3.connect(database_of_conversation)) as db, db:
        return broker.begin_dialog(db, from_service="//a", to_service="//b", broker_instance=broker_instance)


@pytest.mark.parametrize("which", ["conversation_handle", "conversation_id"])
def test_both_guids_of_a_conversation_find_it(database_of_conversation: Path, which: str) -> None:
    dialog = begin(database_of_conversation)

    contact = find_conversation(database_of_conversation, getattr(dialog, which))

    assert contact is not None
    assert (dialog.conversation_id.bytes, True, "//a", "//b", NO_GUID) == (
        contact.conversation_id,
        contact.is_initiator,
        contact.service_name,
        contact.far_service,
        contact.far_broker_instance,
    )
    with closing(sqlite3.connect(database_of_conversation)) as db:
        assert broker_instance(db) == contact.broker_instance


def test_the_instance_that_it_names_is_told(database_of_conversation: Path) -> None:
    contact = find_conversation(database_of_conversation, begin(database_of_conversation, FAR).conversation_handle)

    assert contact is not None
    assert FAR.bytes == contact.far_broker_instance


def test_of_both_sides_in_one_file_the_id_means_the_initiator_and_a_handle_its_own(
    database_of_conversation: Path,
) -> None:
    dialog = begin(database_of_conversation)
    handle = uuid4()
    with closing(sqlite3.connect(database_of_conversation)) as db, db:
        db.execute(
            "INSERT INTO broker_conversation (conversation_handle, conversation_id, is_initiator,"
            " conversation_group_id, state, service_name, far_service, contract, lifetime, create_date)"
            " VALUES (?, ?, 0, ?, 'CO', '//b', '//a', 'DEFAULT', 0, 0)",
            (handle.bytes, dialog.conversation_id.bytes, handle.bytes),
        )

    by_id = find_conversation(database_of_conversation, dialog.conversation_id)
    by_handle = find_conversation(database_of_conversation, handle)

    assert by_id is not None
    assert by_handle is not None
    assert (True, False) == (by_id.is_initiator, by_handle.is_initiator)


def test_an_unknown_guid_finds_nothing(database_of_conversation: Path) -> None:
    begin(database_of_conversation)

    assert find_conversation(database_of_conversation, uuid4()) is None


def test_a_file_that_is_not_there_or_no_database_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database")

    assert find_conversation(tmp_path / "none.db", uuid4()) is None
    assert find_conversation(tmp_path / "text.db", uuid4()) is None


# --- test_ledger ---
# Ledgers of files: told in status, in one line, and left out where a file cannot be read.


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
def test_one_line_says_whether_it_adds_up(balance: LedgerBalance, sentence: str) -> None:
    assert sentence == ledger_status(balance).sentence


# --- test_side ---
# Sides of conversations are counted by service and state, in walks that are bounded and rest.


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    with closing(Shop(tmp_path / "shop.db")) as opened:
        yield opened


class Clock:
    """Stands still unless it is told to go on. Shape: `step` added at every look."""

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


def test_the_oldest_of_several_databases_counts_and_sides_add_up() -> None:
    young, old = SideCounts(states=[("S", "CO", 2, 1e9)]), SideCounts(states=[("S", "CO", 3, 1000.0)])

    assert {("S", "CONVERSING"): 5} == state_samples({"a": young, "b": old})
    assert age_samples({"a": young, "b": old})["CONVERSING",] > 1.5e9


def test_sides_are_counted_by_service_and_state(shop: Shop) -> None:
    first, *_ = begin_of_side(shop, 3)
    shop.change(first, "state", "CO")

    counts = SideCounter().count({"shop": shop.path})

    assert {("Orders", "STARTED_OUTBOUND"): 2, ("Orders", "CONVERSING"): 1} == state_samples(counts)
    assert {("STARTED_OUTBOUND",), ("CONVERSING",)} == age_samples(counts).keys()


def test_age_is_that_of_the_oldest(shop: Shop) -> None:
    old, _ = begin_of_side(shop, 2)
    shop.change(old, "create_date", 1000.0)

    (age,) = age_samples(SideCounter().count({"shop": shop.path})).values()

    assert age > 1e9


def test_every_service_has_its_quarantine(shop: Shop) -> None:
    """Though it is empty, so that the first dialog in it is a change from 0."""
    dialog, *_ = begin_of_side(shop, 2)
    shop.connect(isolation_level=None).execute(
        "INSERT INTO broker_failure SELECT endpoint_id, 0, 5, 1.0, 2.0, 3.0, 'ValueError', '' FROM broker_conversation"
        " WHERE conversation_handle = ?",
        (dialog.conversation_handle.bytes,),
    )

    counts = SideCounter().count({"shop": shop.path})

    assert {"Orders": 1, "Billing": 0} == dict(counts["shop"].quarantined)


def test_queues_have_depth_and_age(shop: Shop) -> None:
    dialog, *_ = begin_of_side(shop, 1)
    shop.arrive(dialog, b"a", b"b")

    counts = SideCounter().count({"shop": shop.path})

    assert [("OrdersQueue", 2, True), ("BillingQueue", 0, False)] == [
        (one.name, one.ready, one.oldest_s > 1e9) for one in counts["shop"].queues
    ]


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

    assert (0, 1) == (len(state_samples(at_once)), sum(state_samples(later).values()))


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

    assert [3] == list(state_samples(counts).values())


@pytest.mark.parametrize("content", [None, b"no database, and longer than the header of one" * 20])
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


def test_lock_of_an_application_does_not_matter(shop: Shop) -> None:
    begin_of_side(shop, 1)
    with closing(sqlite3.connect(shop.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")

        counts = SideCounter().count({"shop": shop.path})

    assert [1] == list(state_samples(counts).values())


async def test_metrics_have_them(start: Any, send: Any) -> None:
    instance = await start("near")
    send(instance, "//target")

    samples = await samples_of(instance)

    assert sum(samples["broker_dialogs"].values()) == 1
    assert samples["broker_quarantined_dialogs"] == {("//near",): 0}
    assert samples["broker_queue_messages"]["near", "Q"] == 0


MESSAGE = (
    "INSERT INTO broker_message (queue_id, status, priority, message_enqueue_time, endpoint_id,"
    " message_sequence_number, message_type_name) SELECT queue_id, ?, ?, ?, 1, 0, 'x' FROM broker_queue WHERE name = ?"
)


async def test_queues_that_are_off_come_first_and_then_the_one_that_waits_longest(start: Callable[..., Any]) -> None:
    """One in which nothing waits is left out, and what was received or is in quarantine does not wait."""
    instance = await start("one", "CREATE QUEUE Old; CREATE QUEUE [New]; CREATE QUEUE [Off] WITH STATUS = OFF;")
    path, now = instance.endpoints["one"].path, time.time()
    with closing(sqlite3.connect(path)) as db, db:
        rows = [(1, 5, now - 30, "New"), (1, 1, now - 400, "Old"), (1, 9, now - 9, "Old"), (4, 5, now - 999, "Q")]
        db.executemany(MESSAGE, rows)

    found = quick(path)

    assert [("Off", False), ("Old", True), ("New", True)] == [
        (one.name, one.is_receive_enabled) for one in found.queues
    ]
    assert 400 <= found.queues[1].oldest_s < 500


async def test_dialogs_in_quarantine_are_counted(start: Callable[..., Any], send: Callable[..., bytes]) -> None:
    instance = await start("one")
    path = instance.endpoints["one"].path
    send(instance, "//nowhere")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "INSERT INTO broker_failure SELECT endpoint_id, 0, 5, 1.0, 2.0, 2.0, 'ValueError: x', ''"
            " FROM broker_conversation"
        )

    found = quick(path)

    assert 1 == found.quarantined


async def test_of_many_queues_some_are_told(start: Callable[..., Any]) -> None:
    script = "".join(f"CREATE QUEUE Q{number} WITH STATUS = OFF;" for number in range(QUEUES_MAX + 10))
    instance = await start("one", script)

    found = quick(instance.endpoints["one"].path)

    assert QUEUES_MAX == len(found.queues)


async def test_what_lies_in_a_queue_is_counted_and_its_age_told(start: Callable[..., Any]) -> None:
    instance = await start("one")
    path = instance.endpoints["one"].path
    now = time.time()
    with closing(sqlite3.connect(path)) as db, db:
        (queue,) = db.execute("SELECT queue_id FROM broker_queue WHERE name = 'Q'").fetchone()
        rows = [(queue, 1, 5, now - 30), (queue, 1, 10, now - 90), (queue, 4, 5, now - 500), (queue, 1, 5, now)]
        db.executemany(
            "INSERT INTO broker_message (queue_id, status, priority, message_enqueue_time, endpoint_id,"
            " message_sequence_number, message_type_name) VALUES (?, ?, ?, ?, 1, 0, 'x')",
            rows,
        )

    stock = counted(path)

    first = stock.queues[0]
    assert ("Q", 3, 1, True) == (first.name, first.ready, first.quarantined, first.is_receive_enabled)
    assert 90 <= first.oldest_s < 150


async def test_what_waits_to_leave_is_told_with_its_reason(
    start: Callable[..., Any], send: Callable[..., bytes]
) -> None:
    instance = await start("one")
    path = instance.endpoints["one"].path
    handle = send(instance, "//nowhere", messages=3)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "UPDATE broker_conversation SET transmission_status = 'no way' WHERE conversation_handle = ?", (handle,)
        )

    stock = counted(path)

    assert (3, 3) == (stock.backlog.messages, stock.ledger.held)
    [reason] = stock.reasons
    assert ("//nowhere", 3) == (reason.far_service, reason.messages)
    assert reason.oldest_s >= 0


async def test_of_many_queues_the_fullest_are_told(start: Callable[..., Any]) -> None:
    script = "".join(f"CREATE QUEUE Q{number};" for number in range(COUNTED_QUEUES_MAX + 10))
    instance = await start("one", script)

    stock = counted(instance.endpoints["one"].path)

    assert (COUNTED_QUEUES_MAX, COUNTED_QUEUES_MAX + 11) == (len(stock.queues), stock.queue_count)


def test_a_file_that_cannot_be_read_has_no_stock(tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"no database" * 100)

    assert {"absent": None, "broken": None} == read_database_stats({"absent": tmp_path / "absent.db", "broken": broken})
