from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from broker.catalog.dry_run import read_contents
from broker.routing.address import LOCAL
from broker.routing.route import AUTO_CREATED_LOCAL, Route, row_of
from broker.store.sqlite import database, metadata, transaction

INSTANCE = UUID(int=7)
EXPIRED = Route("Old", LOCAL, "S", lifetime=datetime(2020, 1, 1, tzinfo=UTC))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with a queue, a service and an expired route."""
    path = tmp_path / "a.db"
    with closing(database.open_store(path, broker_instance=INSTANCE)) as db:
        metadata.put_queue(db, "Q", is_receive_enabled=True)
        metadata.put_service(db, "S", metadata.queues(db)["Q"].queue_id, frozenset())
        metadata.put_routes(db, [row_of(EXPIRED)])
    return path


def test_everything_a_check_needs_is_read(path: Path) -> None:
    found = read_contents(path)

    assert found is not None
    assert INSTANCE.bytes == found.broker_instance
    assert ({"Q"}, {"S": "Q"}) == (set(found.queues), dict(found.services))
    assert {AUTO_CREATED_LOCAL, EXPIRED} == set(found.routes)


def test_a_database_in_use_is_read(path: Path) -> None:
    with closing(database.open_store(path)) as db, transaction.writing(db):
        metadata.put_queue(db, "R", is_receive_enabled=True)
        found = read_contents(path)

    assert found is not None
    assert {"Q"} == found.queues


def test_reading_changes_nothing(path: Path) -> None:
    before = path.read_bytes()

    read_contents(path)

    assert before == path.read_bytes()


def test_what_is_no_database_of_the_broker_tells_nothing(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as db:
        db.execute("CREATE TABLE t (x)")
    (tmp_path / "text.db").write_text("this is no database, and longer than a hundred characters" * 4)

    assert [None] * 4 == [read_contents(tmp_path / name) for name in ("other.db", "text.db", "none.db", ".")]
