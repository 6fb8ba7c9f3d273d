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

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from enum import StrEnum
from pathlib import Path

import msgspec


class Job(msgspec.Struct, frozen=True):
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
    service: str
    targets: list[str]
    sealed: list[str]
    given: list[str]
    seed: int
    mark: int = 0

    def write(self, path: Path) -> None:
        """Write it to a file that `read` reads."""
        path.write_bytes(msgspec.json.encode(self))

    @classmethod
    def read(cls, path: Path) -> "Job":
        """Read one."""
        return msgspec.json.decode(path.read_bytes(), type=cls)


class Orders(msgspec.Struct, frozen=True):
    """What all applications are to do now."""

    phase: str
    is_sending: bool

    def write(self, path: Path) -> None:
        """Replace the file as a whole."""
        new = path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(self))
        new.replace(path)

    @classmethod
    def read(cls, path: Path) -> "Orders":
        """Read them."""
        return msgspec.json.decode(path.read_bytes(), type=cls)


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


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
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


class Entry(msgspec.Struct, frozen=True):
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


class Intent(msgspec.Struct, frozen=True, tag_field="kind", tag="intent"):
    """A line: what a transaction is about to do."""

    number: int
    at: float
    application: str
    database: str
    events: list[Event]


class Outcome(msgspec.Struct, frozen=True, tag_field="kind", tag="outcome"):
    """A line: what became of it."""

    number: int
    is_committed: bool


_DECODER = msgspec.json.Decoder(Intent | Outcome)


def lines_of(text: bytes) -> list[Intent | Outcome]:
    """The whole lines of a history, or of a part of one."""
    return _DECODER.decode_lines(text[: text.rfind(b"\n") + 1])


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
        self.name = f"{path.parent.name}/{application}"
        self._database = database
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        text = path.read_bytes()
        whole = text.rfind(b"\n") + 1
        os.ftruncate(self._file, whole)
        os.lseek(self._file, whole, os.SEEK_SET)
        self._number = max((line.number for line in lines_of(text)), default=0)

    def intend(self, events: Iterable[Event]) -> int:
        """Say what the transaction that is about to be committed does; the number to be noted in it."""
        self._number += 1
        self._write(Intent(self._number, time.monotonic(), self.application, self._database, list(events)))
        return self._number

    def settle(self, number: int, *, is_committed: bool) -> None:
        """Say what became of it."""
        self._write(Outcome(number, is_committed))

    def tell(self, *events: Event) -> None:
        """What is no transaction: it is so at once."""
        self.settle(self.intend(events), is_committed=True)

    def close(self) -> None:
        """Nothing more is written."""
        os.close(self._file)

    def _write(self, line: Intent | Outcome) -> None:
        data = msgspec.json.encode(line) + b"\n"
        while data:
            data = data[os.write(self._file, data) :]


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
        for number in _open(lines_of(path.read_bytes())):
            history.settle(number, is_committed=is_applied(database, history.name, number))
    finally:
        history.close()


def read_history(path: Path, *, with_undone: bool = False) -> Iterator[Entry]:
    """
    What was committed, in order; `with_undone` also what was sent by transactions that were not, as UNDONE.

    Raises:
        OpenQuestionError: it is not known of an intent what became of it.
    """
    lines = lines_of(path.read_bytes())
    if still := _open(lines):
        raise OpenQuestionError(f"{path}: it is not known what became of {sorted(still)}")
    outcomes = {line.number: line.is_committed for line in lines if isinstance(line, Outcome)}
    for place, line in enumerate(lines, 1):
        if isinstance(line, Outcome):
            continue
        for event in line.events:
            if outcomes[line.number]:
                yield Entry(line.application, line.database, place, line.at, event)
            elif with_undone and event.what is What.SENT:
                undone = msgspec.structs.replace(event, what=What.UNDONE)
                yield Entry(line.application, line.database, place, line.at, undone)


def together(histories: Sequence[Iterable[Entry]]) -> list[Entry]:
    """Entries of all, by time; those of one application stay in their order."""
    return sorted((entry for history in histories for entry in history), key=lambda entry: entry.at)


def _open(lines: Iterable[Intent | Outcome]) -> set[int]:
    numbers = {kind: {line.number for line in lines if isinstance(line, kind)} for kind in (Intent, Outcome)}
    return numbers[Intent] - numbers[Outcome]
