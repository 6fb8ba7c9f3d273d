"""A file under a name on somebody else's connection: read only, and only if it is a database of the broker."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker.store.sqlite.metadata import queues
from broker.store.sqlite.views import COUNTED, attach, queue_numbers
from tests.support.shop import Shop


@pytest.fixture
def asking() -> Iterator[sqlite3.Connection]:
    """A connection that holds nothing of its own."""
    with closing(sqlite3.connect(":memory:", uri=True, isolation_level=None)) as db:
        yield db


def test_the_queues_of_an_attached_file_have_their_numbers(shop: Shop, asking: sqlite3.Connection) -> None:
    attach(asking, shop.path, "one")

    assert {name: queue.queue_id for name, queue in queues(shop.connect()).items()} == queue_numbers(asking, "one")


def test_an_attached_file_cannot_be_written(shop: Shop, asking: sqlite3.Connection) -> None:
    attach(asking, shop.path, "one")

    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        asking.execute("DELETE FROM one.broker_route")


@pytest.mark.parametrize("content", [None, b"", b"no database, and longer than the header of one" * 20])
def test_what_is_no_database_of_the_broker_is_not_attached(
    tmp_path: Path, asking: sqlite3.Connection, content: bytes | None
) -> None:
    path = tmp_path / "other.db"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(sqlite3.Error):
        attach(asking, path, "one")


def test_tables_whose_rows_may_be_counted_are_tables(shop: Shop) -> None:
    assert set(shop.look("SELECT name FROM sqlite_schema WHERE type = 'table'")) >= COUNTED
