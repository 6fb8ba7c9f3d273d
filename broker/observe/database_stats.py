"""
Statistics read from the files of databases.

Separate connections are used, not the daemon's: a reader never waits for a writer. `QuickStats` is for a status: of
each queue only the first message is looked up. `DatabaseStats` counts, so a caller that reads it repeatedly pauses in
between. `SideCounter` counts sides of conversations for the metrics. After a leak there are millions of them, so each
walk has a time limit, and the pause that follows is many times as long as the walk. All of this blocks, so call it in
a thread; for a file that cannot be read now the result is None.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta

from broker.client.transaction import check_schema
from broker.conversation.frames import Contact
from broker.conversation.state import ConversationState
from broker.observe.status import LedgerStatus, QueueStatus, struct_from
from broker.store.sqlite import metadata
from broker.store.sqlite.inspect import (
    Backlog,
    Census,
    LedgerBalance,
    QueueStock,
    WaitReason,
    backlog_of,
    failed_dialogs,
    fullest_queues,
    oldest_ready_s,
    queue_count,
    read_balance,
    reasons_of,
    sides_by_service,
    take_census,
)
from broker.store.sqlite.lookup import find_contact
from broker.store.sqlite.quarantine import quarantined_by_service, quarantined_dialogs
from broker.store.sqlite.transaction import open_watch, translated

QUEUES_MAX = 50  # of a database in a status: those that are off, then those whose first message has waited longest
WALK_SECONDS = 2.0  # for counting the sides of one database; a walk that takes longer is given up
REST_FACTOR = 20  # times what the last walk took, until the next one: a twentieth of one core at most
_STEPS = 10_000  # of SQLite's machine between two readings of the clock

DatabaseName = Annotated[
    str | None, Meta(description="The database; left out: the only one that the instance hosts, or msdb.")
]
Labels = tuple[str, ...]
_T = TypeVar("_T")


class QuickStats(msgspec.Struct, frozen=True):
    """One database for a status; of each queue only the first message is looked up."""

    backlog: Backlog = Backlog()
    ledger: LedgerBalance = LedgerBalance()
    quarantined: int = 0
    queues: tuple[QueueStatus | QueueStock, ...] = ()
    failed: int = 0


class DatabaseStats(QuickStats, frozen=True):
    """One database for the events: `queues` the fullest first of `queue_count`, `reasons` the most frequent first."""

    queue_count: int = 0
    reasons: tuple[WaitReason, ...] = ()


def read_quick_stats(paths: Mapping[str, Path]) -> dict[str, QuickStats | None]:
    """Read statistics by database, for a status. Cost: the queues, and a walk through the index of unsent messages."""
    return {name: _read(path, _quick_stats) for name, path in paths.items()}


def read_database_stats(paths: Mapping[str, Path]) -> dict[str, DatabaseStats | None]:
    """Read statistics by database, for the events. Cost: the messages that are stored there."""
    return {name: _read(path, _database_stats) for name, path in paths.items()}


def read_ledger(path: Path) -> LedgerBalance | None:
    """Read the ledger of the database in this file."""
    return _read(path, read_balance)


def find_conversation(path: Path, conversation: UUID) -> Contact | None:
    """Find the side of a dialog in this file that has this handle or this id; of two sides, the initiator's."""
    return _read(path, lambda db: find_contact(db, conversation.bytes))


def _read(path: Path, read: Callable[[sqlite3.Connection], _T]) -> _T | None:
    try:
        with closing(open_watch(path)) as db:
            return read(db)
    except sqlite3.Error:
        return None


def _quick_stats(db: sqlite3.Connection) -> QuickStats:
    now = time.time()
    queues = (
        QueueStatus(name, queue.is_receive_enabled, round(oldest_ready_s(db, queue.queue_id, now), 3))
        for name, queue in sorted(metadata.queues(db).items())
    )
    still = [queue for queue in queues if queue.oldest_s or not queue.is_receive_enabled]
    first = sorted(still, key=lambda queue: (queue.is_receive_enabled, -queue.oldest_s))[:QUEUES_MAX]
    return QuickStats(backlog_of(db, now), read_balance(db), quarantined_dialogs(db), tuple(first), failed_dialogs(db))


def _database_stats(db: sqlite3.Connection) -> DatabaseStats:
    now = time.time()
    backlog = backlog_of(db, now)
    return DatabaseStats(
        backlog,
        read_balance(db),
        quarantined_dialogs(db),
        tuple(fullest_queues(db, now)),
        failed_dialogs(db),
        queue_count(db),
        tuple(reasons_of(db, now)) if backlog.messages else (),
    )


def ledger_status(balance: LedgerBalance) -> LedgerStatus:
    """Convert a ledger into its JSON form in a status."""
    return LedgerStatus(balance.sent, balance.acknowledged, balance.held, dict(balance.failed), balance.unaccounted)


# --- the census: the contents of each database, and its ledger ---


class CensusRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Which databases are counted."""

    database: DatabaseName = None


class Ledger(msgspec.Struct, frozen=True):
    """sent = acknowledged + held + failed + unaccounted, since the file was made."""

    sent: int
    acknowledged: int
    held: int
    failed: Annotated[dict[str, int], Meta(description="By reason.")]
    unaccounted: Annotated[
        int, Meta(description="0 unless the file was changed from outside, or the program has a fault.")
    ]
    sentence: Annotated[str, Meta(description="The same in one line.")]


class DatabaseCensus(msgspec.Struct, frozen=True):
    """One database."""

    database: str
    census: Census
    meaning: Annotated[list[str], Meta(description="Always empty; earlier versions had sentences here.")]
    ledger: Ledger


class CensusAnswer(msgspec.Struct, frozen=True):
    """Contents of the databases of an instance."""

    databases: list[DatabaseCensus]


def census_of(paths: Mapping[str, Path], now: float) -> CensusAnswer:
    """
    Count the databases in these files.

    Raises:
        StoreUnavailableError: a file cannot be read, is not a database of the broker, or is one of another release.
    """
    databases = []
    for name, path in paths.items():
        with translated(path), closing(open_watch(path)) as db:
            check_schema(db)
            census, balance = take_census(db, now), read_balance(db)
        databases.append(DatabaseCensus(name, census, [], struct_from(Ledger, ledger_status(balance))))
    return CensusAnswer(databases)


# --- sides of conversations, those in quarantine, and queues, for the metrics ---


@dataclass(slots=True)
class SideCounts:
    """
    Counts of one database.

    Attributes:
        due: When they are to be counted again.
        states: Service, state, number of sides, and when the oldest side began.
    """

    due: float = 0.0
    states: list[tuple[str, str, int, float]] = field(default_factory=list)
    quarantined: list[tuple[str, int]] = field(default_factory=list)
    queues: list[QueueStock] = field(default_factory=list)


class SideCounter:
    """Keeps the last counts by file; used by one thread. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: dict[Path, SideCounts] = {}

    def count(self, paths: Mapping[str, Path]) -> dict[str, SideCounts]:
        """Count by database; one that cannot be read now is left out, one that is not due has its last counts."""
        self._counts = {path: counts for path, counts in self._counts.items() if path in paths.values()}
        for path in paths.values():
            self._walk(path)
        return {name: self._counts[path] for name, path in paths.items() if path in self._counts}

    def _walk(self, path: Path) -> None:
        began = self._clock()
        counts = self._counts.get(path)
        if counts is not None and began < counts.due:
            return
        try:
            with closing(open_watch(path)) as db:
                db.set_progress_handler(lambda: self._clock() - began > WALK_SECONDS, _STEPS)
                states, quarantined = sides_by_service(db), quarantined_by_service(db)
                counts = SideCounts(0.0, states, quarantined, fullest_queues(db, time.time()))
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_INTERRUPT:
                self._counts.pop(path, None)
                return
            counts = counts or SideCounts()  # the previous counts are better than none
        counts.due = self._clock() + REST_FACTOR * (self._clock() - began)
        self._counts[path] = counts


def state_samples(counts: Mapping[str, SideCounts]) -> Iterator[tuple[Labels, int]]:
    """Sides by service and state, database by database."""
    for service, code, count, _ in (state for one in counts.values() for state in one.states):
        yield (service, ConversationState(code).name), count


def age_samples(counts: Mapping[str, SideCounts]) -> Iterator[tuple[Labels, float]]:
    """Age of the oldest side by state, likewise and for each service."""
    now = time.time()
    for _, code, _, since in (state for one in counts.values() for state in one.states):
        yield (ConversationState(code).name,), max(0.0, now - since)
