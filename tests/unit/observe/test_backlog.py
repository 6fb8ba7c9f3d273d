from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

import broker
from broker.observe.database_stats import read_backlog
from broker.store.sqlite.database import open_store
from broker.store.sqlite.inspect import Backlog
from broker.store.sqlite.metadata import put_queue, put_service


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "orders.db"
    with closing(open_store(path)) as db:
        put_queue(db, "Q", is_receive_enabled=True)
        put_service(db, "//a", 1, frozenset())
    return path


def test_nothing_waits(database: Path) -> None:
    assert Backlog(0, 0.0) == read_backlog(database)


def test_messages_are_counted_and_the_first_has_an_age(database: Path) -> None:
    with closing(sqlite3.connect(database)) as db, db:
        dialog = broker.begin_dialog(db, from_service="//a", to_service="//b")
        for _ in range(3):
            dialog.send(b"x")
        db.execute(
            "UPDATE broker_transmission SET enqueue_time = ? WHERE message_sequence_number = 0", (time.time() - 60,)
        )

    backlog = read_backlog(database)

    assert backlog is not None
    assert backlog.messages == 3
    assert 60 <= backlog.oldest_s < 90


def test_clock_that_was_set_back_gives_no_negative_age(database: Path) -> None:
    with closing(sqlite3.connect(database)) as db, db:
        broker.begin_dialog(db, from_service="//a", to_service="//b").send(b"x")
        db.execute("UPDATE broker_transmission SET enqueue_time = ?", (time.time() + 3600,))

    assert Backlog(1, 0.0) == read_backlog(database)


def test_file_that_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    assert read_backlog(tmp_path / "absent.db") is None


def test_count_looks_at_no_message(database: Path) -> None:
    """A backlog of large messages is counted from an index."""
    with closing(sqlite3.connect(database)) as db:
        plan = db.execute("EXPLAIN QUERY PLAN SELECT count(*) FROM broker_transmission").fetchall()

    assert "USING COVERING INDEX" in plan[0][3]
