"""Watching a statement: time, temporary files, and whether anybody waits."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing

import pytest

from broker.observe.query import ResultTooLargeError, Texts, Watch, spilled_bytes


def test_a_statement_that_has_time_goes_on() -> None:
    watch = Watch(60.0, 1, lambda: True)

    assert not watch()
    assert "" == watch.problem


def test_a_statement_that_is_out_of_time_ends() -> None:
    watch = Watch(0.0, 1, lambda: True)

    assert next(filter(None, (watch() for _ in itertools.count())))
    assert (8649, "the query was cancelled: it took longer than 0 s; ask for less") == (watch.number, watch.problem)


def test_a_statement_ends_when_who_asked_has_gone() -> None:
    watch = Watch(60.0, 1, lambda: False)

    assert next(filter(None, (watch() for _ in itertools.count())))
    assert (8649, "the query was cancelled: who asked has gone") == (watch.number, watch.problem)


def test_what_sqlite_sorts_in_files_is_seen_and_ends_the_statement() -> None:
    rows = (
        "WITH q AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM q) SELECT hex(zeroblob(500)) || n AS x FROM q ORDER BY x"
    )
    watch = Watch(60.0, 1024 * 1024, lambda: True)
    with closing(sqlite3.connect(":memory:")) as db:
        db.set_progress_handler(watch, 1000)

        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            db.execute(rows).fetchone()

    assert (1105, True) == (watch.number, "more than 1 MiB" in watch.problem)
    assert 0 == spilled_bytes()


def test_texts_are_made_of_so_many_bytes_in_all() -> None:
    texts = Texts(4)

    assert ["ab", "c\ufffd"] == [texts(b"ab"), texts(b"c\xff")]
    with pytest.raises(ResultTooLargeError, match="one row has more than"):
        texts(b"d")
