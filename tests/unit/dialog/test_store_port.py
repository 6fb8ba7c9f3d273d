"""The store that there is fits the port."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from broker.store.port import Store, WriteBatch
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.write_batch import SqliteStore
from tests.support.dialog import open_database


def test_the_sqlite_store_is_one(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"
    opened = SqliteStore(path, open_database(path), fragment_size=1000)
    store: Store = opened  # mypy compares all of it

    with closing(store):
        result = store.turn_in_writer(WriteBatch(now=0.0, frames=[], find_after=0, wants=[], load_max_bytes=0))

        assert 0 == result.found_up_to
        assert broker_instance(store.lend()) == store.broker_instance
        assert isinstance(store.version(), int)
