"""The tables: all of them or those that are named, in the transaction of whoever asks."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from broker.store.sqlite.schema import has_schema, make_tables


def _tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'broker_%'")}


def test_the_tables_are_made_in_the_transaction_of_the_caller() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute("BEGIN")
        make_tables(db)
        during = has_schema(db), len(_tables(db)) > 20
        db.execute("ROLLBACK")

        assert ((True, True), False, set()) == (during, has_schema(db), _tables(db))


def test_only_the_tables_that_are_named_are_made_with_their_indexes() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        make_tables(db, ["queue", "message"])
        kinds = dict(db.execute("SELECT type, count(*) FROM sqlite_master WHERE sql IS NOT NULL GROUP BY type"))
        owners = {owner for (owner,) in db.execute("SELECT tbl_name FROM sqlite_master WHERE name LIKE 'broker_%'")}

        assert {"broker_queue", "broker_message"} == owners
        assert kinds.get("index", 0) > 0
