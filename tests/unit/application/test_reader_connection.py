"""The connection of a reader's function: begun by its first write, committed by the reader alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from broker.client.reader_worker import ReaderConnection, open_connection
from tests.support.shop import Shop


@pytest.fixture
def db(shop: Shop) -> Iterator[ReaderConnection]:
    db = open_connection(shop.path, is_async=False)
    db.hand_out()
    yield db
    db.take_back()
    db.close_all()


def test_the_first_write_begins_a_transaction_that_has_the_write_lock(shop: Shop, db: ReaderConnection) -> None:
    db.execute("SELECT * FROM orders")
    before = db.in_transaction

    db.execute("INSERT INTO orders (state) VALUES ('x')")

    assert (False, True) == (before, db.in_transaction)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        shop.connect(timeout=0).execute("INSERT INTO orders (state) VALUES ('y')")


@pytest.mark.parametrize(
    ("misdeed", "sentence"),
    [
        (lambda db: db.commit(), r"rolls back when it raises: leave out commit\(\)"),
        (lambda db: db.__enter__(), 'leave out "with db:"'),
        (lambda db: db.executescript("SELECT 1"), "leave out executescript"),
        (lambda db: db.close(), r"leave out close\(\)"),
        (lambda db: db.execute("COMMIT"), "not authorized"),
        (lambda db: db.execute("END TRANSACTION"), "not authorized"),
    ],
    ids=["commit", "with", "executescript", "close", "COMMIT", "END"],
)
def test_what_ends_the_transaction_is_refused(shop: Shop, db: ReaderConnection, misdeed: Any, sentence: str) -> None:
    db.execute("INSERT INTO orders (state) VALUES ('x')")

    with pytest.raises(sqlite3.DatabaseError, match=sentence):
        misdeed(db)

    assert [] == shop.connect().execute("SELECT * FROM orders").fetchall()


def test_a_function_may_take_back_its_own_writes(shop: Shop, db: ReaderConnection) -> None:
    db.execute("INSERT INTO orders (state) VALUES ('x')")

    db.rollback()

    assert not db.in_transaction


def test_the_reader_commits_and_undoes_what_the_function_set(shop: Shop, db: ReaderConnection) -> None:
    db.execute("INSERT INTO orders (state) VALUES ('x')")
    db.row_factory = sqlite3.Row
    db.text_factory = bytes

    db.take_back()
    db.begin()
    db.commit_all()

    assert [("x",)] == shop.connect().execute("SELECT state FROM orders").fetchall()
    assert [("x",)] == db.execute("SELECT state FROM orders").fetchall()
    assert "IMMEDIATE" == db.isolation_level


def test_a_file_that_is_not_there_is_not_made(shop: Shop) -> None:
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        open_connection(shop.path.with_name("none.db"), is_async=True)

    assert not shop.path.with_name("none.db").exists()
