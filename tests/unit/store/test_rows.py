"""Rows and the file of a connection, whatever the application has set on it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker.store.sqlite.transaction import ask, path_of, plain


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.db"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection:
        yield connection


def test_rows_are_tuples_whatever_the_application_wants_of_its_own(db: sqlite3.Connection) -> None:
    db.row_factory = lambda cursor, row: {
        column[0]: value for column, value in zip(cursor.description, row, strict=True)
    }

    rows = ask(db, "SELECT 1 AS one, ? AS two", (2,)).fetchall()

    assert [(1, 2)] == rows
    assert [{"one": 1}] == db.execute("SELECT 1 AS one").fetchall()


def test_settings_of_the_application_are_aside_for_a_while_and_back_again(db: sqlite3.Connection) -> None:
    db.row_factory, db.text_factory = sqlite3.Row, bytes

    with plain(db):
        inside = db.execute("SELECT 'text'").fetchall()

    assert [("text",)] == inside
    assert b"text" == db.execute("SELECT 'text'").fetchone()[0]
    assert sqlite3.Row is db.row_factory


def test_settings_are_back_again_after_a_failure(db: sqlite3.Connection) -> None:
    db.row_factory = sqlite3.Row

    with pytest.raises(sqlite3.OperationalError), plain(db):
        db.execute("SELECT * FROM nothing")

    assert sqlite3.Row is db.row_factory


def test_the_file_is_text_also_where_texts_are_bytes(path: Path, db: sqlite3.Connection) -> None:
    db.text_factory = bytes

    assert str(path) == path_of(db)


def test_a_database_in_memory_has_no_file() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        assert "" == path_of(db)
