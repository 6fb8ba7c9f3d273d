"""
What an application did, written by itself to a file that is no part of the system.

A history is a text of JSON objects, one a line, only ever appended to. A transaction is told in two lines: what it is
about to do, before its commit (`intent`), and what became of it (`outcome`). In the same transaction the application
puts the number of the intent into a table of its own, under the name of this history, as each counts from one. So a
process that is killed between the two lines leaves a question that the file of the database answers, whoever asks
later: SQLite has committed all of the transaction or nothing of it. A process that is killed while it writes a line
leaves half of one at the end; what it was about to do had not been committed then, or is answered like any other open
question, so that half counts for nothing.

`write` goes to the page cache: it outlives the process, not the machine, and nothing here kills the machine.

What an application is told is in files as well: its own `Job`, and the `Orders` of the moment.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """
    What one application is.

    Shape: `kind` "initiator", "target", "reader" or "mirror"; `histories` directory with one for each phase; `orders`
    the file; `targets` services to which dialogs are begun, `sealed` those with which they have to be sealed, `given`
    those of which a reader is given the messages; `mark` the queuing_order up to which a mirror's queue is known;
    `seed` of what it leaves to chance.
    """

    name: str
    kind: str
    database: str
    histories: str
    orders: str
    queue: str
    service: str = ""
    targets: list[str] = field(default_factory=list)
    sealed: list[str] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    mark: int = 0
    seed: int = 0

    def write(self, path: Path) -> None:
        """Write it to a file that `read` reads."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read one."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Orders:
    """What all applications are to do now."""

    phase: str
    is_sending: bool

    def write(self, path: Path) -> None:
        """Replace the file as a whole."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)), encoding="utf-8")
        new.replace(path)

    @classmethod
    def read(cls, path: Path) -> Orders:
        """Read them."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def history_of(histories: Path, phase: str, application: str) -> Path:
    """Where the history of an application in a phase is."""
    return histories / phase / f"{application}.history"


BUSY_SECONDS = 60.0
APPLIED = "CREATE TABLE IF NOT EXISTS applied (history TEXT PRIMARY KEY, number INTEGER NOT NULL)"
NOTE = "INSERT OR REPLACE INTO applied (history, number) VALUES (?, ?)"


class What(StrEnum):
    """
    What an application does, or is told. FOUND: it saw that something was stored where nothing may be. CLEANED: it
    ended its side WITH CLEANUP. SET: a conversation timer, whose message is TIMER. UNDONE: sent, and rolled back.
    """

    BEGAN = "began"
    SENT = "sent"
    RECEIVED = "received"
    FOUND = "found"
    END = "end"  # the far side's
    ENDED = "ended"  # its own
    CLEANED = "cleaned up"
    ERROR = "error"
    SET = "set a timer"
    TIMER = "timer"
    UNDONE = "undone"
    ROLE = "role"


@dataclass(frozen=True, slots=True)
class Event:
    """
    One thing that was done.

    Shape: `conversation` the conversation id, the same at both sides; `is_initiator` the side on which it was done;
    `number` the message's sequence number, or the code of an ERROR, or that of the error with which it ENDED, -1 = with
    none; `digest` of its body, and `beside` that, as JSON: its type and its headers. Of BEGAN: `until`, `until_most`
    UTC seconds between which the lifetime of the dialog is over, as its application asked for it by its own clock,
    before the call and behind it; `said_until` as it was told. Of SET: the same, of the instant at which the timer is
    due. Of what came: `stored_at` UTC seconds at which the daemon had it, as it says; `idle_at` monotonic seconds at
    which its application last began a look that found nothing in its queue, 0 = it knows of none; `call` those at which
    the RECEIVE that gave it began, another for each, 0 = it is not known; of TIMER `until` UTC seconds at which it was
    received, by its application's clock. Of BEGAN and of what came: `priority` 1 .. 10, 0 = nothing is known; `group`
    the conversation group. `asked_group` the one that was asked for, where it was received by group. `note` the far
    service of BEGAN and the handle of its own side, the role of ROLE, what is said beside an error.
    """

    what: What
    conversation: str = ""
    is_initiator: bool = True
    number: int = -1
    digest: str = ""
    until: float = 0.0
    until_most: float = 0.0
    said_until: float = 0.0
    stored_at: float = 0.0
    idle_at: float = 0.0
    call: float = 0.0
    priority: int = 0
    group: str = ""
    asked_group: str = ""
    beside: str = ""
    note: str = ""

    @property
    def side(self) -> tuple[str, bool]:
        """The side of the dialog on which it was done."""
        return self.conversation, self.is_initiator


@dataclass(frozen=True, slots=True)
class Entry:
    """
    An event that was committed.

    Shape: `application` whose history it stands in, on `line` (from 1); `database` in which it was done; `at` monotonic
    seconds of this machine, just before the commit.
    """

    application: str
    database: str
    line: int
    at: float
    event: Event


_DEFAULTS = {one.name: one.default for one in fields(Event)}


class OpenQuestionError(Exception):
    """A history has an intent of which nobody has asked what became of it."""


class History:
    """
    The history of one application, for appending.

    A half line at the end is cut off. Nothing else may write to the file meanwhile.

    Shape: `name` what a database knows it by, with the number of what was committed last: that of the phase, and of the
    application.
    """

    def __init__(self, path: Path, application: str, database: str) -> None:
        self.application = application
        self.name = name_of(path, application)
        self._database = database
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        text = path.read_bytes()
        whole = text.rfind(b"\n") + 1
        os.ftruncate(self._file, whole)
        os.lseek(self._file, whole, os.SEEK_SET)
        self._number = max((line["number"] for line in _lines(text[:whole])), default=0)

    def intend(self, events: Iterable[Event]) -> int:
        """Say what the transaction that is about to be committed does; the number to be noted in it."""
        self._number += 1
        told = [{key: value for key, value in asdict(event).items() if value != _DEFAULTS.get(key)} for event in events]
        self._write(
            kind="intent",
            number=self._number,
            at=time.monotonic(),
            application=self.application,
            database=self._database,
            events=told,
        )
        return self._number

    def settle(self, number: int, *, is_committed: bool) -> None:
        """Say what became of it."""
        self._write(kind="outcome", number=number, is_committed=is_committed)

    def tell(self, *events: Event) -> None:
        """What is no transaction: it is so at once."""
        self.settle(self.intend(events), is_committed=True)

    def close(self) -> None:
        """Nothing more is written."""
        os.close(self._file)

    def _write(self, **line: Any) -> None:
        data = json.dumps(line).encode() + b"\n"
        while data:
            data = data[os.write(self._file, data) :]


def name_of(path: Path, application: str) -> str:
    """What a database knows the history of an application at a path by."""
    return f"{path.parent.name}/{application}"


def is_applied(database: Path, history: str, number: int) -> bool:
    """Whether the transaction with this number of this history was committed, as the file of the database says."""
    with closing(sqlite3.connect(database, timeout=BUSY_SECONDS)) as db:
        row = db.execute("SELECT number FROM applied WHERE history = ?", (history,)).fetchone()
    return row is not None and row[0] >= number


def answer_open_question(path: Path, application: str, database: Path) -> None:
    """Settle the intent that a process left behind when it was killed, if it did; the process has to be gone."""
    if not path.exists():
        return
    history = History(path, application, str(database))
    try:
        text = path.read_bytes()
        for number in _open(text):
            history.settle(number, is_committed=is_applied(database, history.name, number))
    finally:
        history.close()


def read_history(path: Path, *, may_be_open: bool = False, with_undone: bool = False) -> Iterator[Entry]:
    """
    What was committed, in order.

    Args:
        path: Of the history.
        may_be_open: What is under way counts for nothing yet: whoever writes may be in the middle of it.
        with_undone: And what was sent by transactions that were not committed, as UNDONE.

    Raises:
        OpenQuestionError: it is not known of an intent what became of it.
    """
    yield from read_text(path.read_bytes(), str(path), may_be_open=may_be_open, with_undone=with_undone)


def read_text(text: bytes, name: str, *, may_be_open: bool = False, with_undone: bool = False) -> Iterator[Entry]:
    """The same of a text; `name` for the error."""
    text = text[: text.rfind(b"\n") + 1]
    if not may_be_open and (still := _open(text)):
        raise OpenQuestionError(f"{name}: it is not known what became of {sorted(still)}")
    lines = list(_lines(text))
    outcomes = {line["number"]: line["is_committed"] for line in lines if line["kind"] == "outcome"}
    for place, line in enumerate(lines, 1):
        if line["kind"] != "intent" or line["number"] not in outcomes:
            continue
        is_committed = outcomes[line["number"]]
        for told in line["events"]:
            what = What(told["what"])
            if not is_committed and not (with_undone and what is What.SENT):
                continue
            event = Event(**{**told, "what": what if is_committed else What.UNDONE})
            yield Entry(line["application"], line["database"], place, line["at"], event)


def together(histories: Sequence[Iterable[Entry]]) -> list[Entry]:
    """Entries of all, by time; those of one application stay in their order."""
    return sorted((entry for history in histories for entry in history), key=lambda entry: entry.at)


def _open(text: bytes) -> set[int]:
    lines = list(_lines(text[: text.rfind(b"\n") + 1]))
    numbers = {kind: {line["number"] for line in lines if line["kind"] == kind} for kind in ("intent", "outcome")}
    return numbers["intent"] - numbers["outcome"]


def _lines(text: bytes) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        yield json.loads(line)
