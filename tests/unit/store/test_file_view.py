"""A view over a file, as SQL."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime

from broker.observe.tsql import add_functions
from broker.store.sqlite.views import FileView, guid, instant

VIEW = FileView(
    {"name": "t.name", "id": guid("t.id"), "at": instant("t.at"), "is_over": "t.at <= {now}"},
    "{db}.thing t WHERE t.queue = {queue_id}",
)


def test_view_reads_the_file_it_is_rendered_for() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        add_functions(db, now=datetime.now(UTC))
        db.execute("CREATE TABLE thing (name, id, at, queue)")
        db.execute("INSERT INTO thing VALUES ('a', ?, 1.5, 7), ('b', NULL, 3, 8)", (b"\xab" * 16,))

        rows = db.execute(VIEW.render(db="main", now=2.0, queue_id=7)).fetchall()
        same = db.execute(
            f"SELECT 1 FROM ({VIEW.render(db='main', now=2.0, queue_id=7)}) WHERE id = ?", (rows[0][1].lower(),)
        )

        assert rows == [("a", "ABABABAB-ABAB-ABAB-ABAB-ABABABABABAB", "1970-01-01 00:00:01.500", 1)]
        assert same.fetchall() == [(1,)]


def test_view_without_a_file_has_its_columns_and_no_row() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        cursor = db.execute(VIEW.render_empty())

        assert (["name", "id", "at", "is_over"], []) == (
            [column[0] for column in cursor.description],
            cursor.fetchall(),
        )
