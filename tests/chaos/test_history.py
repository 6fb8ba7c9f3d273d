"""A history cannot lie, whenever the application that writes it is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.history import (
    APPLIED,
    NOTE,
    Event,
    History,
    OpenQuestionError,
    What,
    answer_open_question,
    read_history,
    read_text,
)

ROOT = Path(__file__).parents[2]
SENT = Event(What.SENT, "dialog", number=1, digest="d")


def shop(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(APPLIED)
        db.execute("CREATE TABLE work (number INTEGER)")
    return path


def test_what_was_committed_is_read_as_it_was_written(tmp_path: Path) -> None:
    history = History(tmp_path / "h", "orders", "orders.db")
    number = history.intend([SENT, Event(What.ENDED, "dialog", is_initiator=False)])
    history.settle(number, is_committed=True)
    history.settle(history.intend([SENT]), is_committed=False)

    entries = list(read_history(tmp_path / "h"))

    assert [SENT, Event(What.ENDED, "dialog", is_initiator=False)] == [entry.event for entry in entries]
    assert {("orders", "orders.db", 1)} == {(entry.application, entry.database, entry.line) for entry in entries}


def test_what_was_sent_and_rolled_back_is_read_as_such_when_it_is_asked_for(tmp_path: Path) -> None:
    history = History(tmp_path / "h", "orders", "orders.db")
    history.settle(history.intend([SENT, Event(What.ENDED, "dialog")]), is_committed=False)
    history.tell(SENT)

    entries = list(read_history(tmp_path / "h", with_undone=True))

    assert [replace(SENT, what=What.UNDONE), SENT] == [entry.event for entry in entries]


def test_a_question_that_is_open_is_no_answer(tmp_path: Path) -> None:
    History(tmp_path / "h", "orders", "orders.db").intend([SENT])

    with pytest.raises(OpenQuestionError):
        list(read_history(tmp_path / "h"))


def test_what_is_under_way_counts_for_nothing_yet(tmp_path: Path) -> None:
    history = History(tmp_path / "h", "orders", "orders.db")
    history.tell(SENT)
    history.intend([SENT])

    assert [SENT] == [entry.event for entry in read_history(tmp_path / "h", may_be_open=True)]


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_question_that_was_left_is_answered_by_the_database(tmp_path: Path, *, is_committed: bool) -> None:
    db = shop(tmp_path / "shop.db")
    history = History(tmp_path / "h", "orders", "orders.db")
    number = history.intend([SENT])
    if is_committed:
        with closing(sqlite3.connect(db)) as connection, connection:
            connection.execute(NOTE, (history.name, number))

    answer_open_question(tmp_path / "h", "orders", db)

    assert [SENT] * is_committed == [entry.event for entry in read_history(tmp_path / "h")]


def test_what_was_committed_in_another_phase_is_no_answer(tmp_path: Path) -> None:
    db = shop(tmp_path / "shop.db")
    first, second = (tmp_path / phase / "h" for phase in ("001-kill", "002-freeze"))
    for path in (first, second):
        path.parent.mkdir()
    history = History(first, "orders", str(db))
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute(NOTE, (history.name, history.intend([SENT])))
    History(second, "orders", str(db)).intend([SENT])  # and rolled back

    for path in (first, second):
        answer_open_question(path, "orders", db)

    assert [[SENT], []] == [[entry.event for entry in read_history(path)] for path in (first, second)]


def test_half_a_line_counts_for_nothing_and_is_written_over(tmp_path: Path) -> None:
    whole = History(tmp_path / "h", "orders", "orders.db")
    whole.tell(SENT)
    text = (tmp_path / "h").read_bytes()
    with (tmp_path / "h").open("ab") as file:
        file.write(b'{"kind": "intent", "num')

    half = list(read_history(tmp_path / "h"))
    History(tmp_path / "h", "orders", "orders.db").tell(SENT)

    assert [SENT] == [entry.event for entry in half]
    assert [SENT, SENT] == [entry.event for entry in read_history(tmp_path / "h")]
    assert (tmp_path / "h").read_bytes().startswith(text)


def test_a_history_cut_anywhere_tells_no_more_than_was_committed(tmp_path: Path) -> None:
    history = History(tmp_path / "h", "orders", "orders.db")
    for number in range(3):
        history.settle(history.intend([Event(What.SENT, number=number)]), is_committed=number != 1)
    text = (tmp_path / "h").read_bytes()

    for end in range(len(text) + 1):
        try:
            told = [entry.event.number for entry in read_text(text[:end], "h")]
        except OpenQuestionError:
            continue
        assert told == [0, 2][: len(told)]


KILLED = """
import os, random, signal, sqlite3, sys, threading
from pathlib import Path
from tests.chaos.history import NOTE, Event, History, What
directory = Path(sys.argv[1])
db = sqlite3.connect(directory / "shop.db", isolation_level=None, timeout=60)
db.execute("PRAGMA synchronous = OFF")  # the process dies, not the machine
history = History(directory / "h", "orders", "orders.db")
number = db.execute("SELECT coalesce(max(number), -1) + 1 FROM work").fetchone()[0]
print("up", flush=True)
while True:
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO work VALUES (?)", (number,))
    told = history.intend([Event(What.SENT, "dialog", number=number)])
    db.execute(NOTE, (history.name, told))
    is_committed = number % 5 != 4 or os.urandom(1) < b"\\x80"
    db.execute("COMMIT" if is_committed else "ROLLBACK")
    history.settle(told, is_committed=is_committed)
    number += is_committed
"""


def test_an_application_killed_at_any_moment_has_told_just_what_it_committed(tmp_path: Path) -> None:
    db = shop(tmp_path / "shop.db")

    for _ in range(6):
        command = [sys.executable, "-c", KILLED, str(tmp_path)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert b"up\n" == process.stdout.readline()
        with closing(sqlite3.connect(db)) as watcher:
            first = watcher.execute("SELECT count(*) FROM work").fetchone()[0]
            while watcher.execute("SELECT count(*) FROM work").fetchone()[0] < first + 50:
                assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        answer_open_question(tmp_path / "h", "orders", db)

    with closing(sqlite3.connect(db)) as connection:
        committed = [row[0] for row in connection.execute("SELECT number FROM work ORDER BY number")]
    assert committed == [entry.event.number for entry in read_history(tmp_path / "h")]
