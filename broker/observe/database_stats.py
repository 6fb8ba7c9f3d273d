"""Part of `broker.admin.api`."""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from broker.client.transaction import check_schema
from broker.conversation.frames import Contact
from broker.conversation.state import ConversationState
from broker.errors import StoreUnavailableError
from broker.observe.health import ledger_sentence
from broker.observe.samples import Labels, MetricDefinition
from broker.store.sqlite import metadata
from broker.store.sqlite.database import open_watch
from broker.store.sqlite.inspect import (
    Backlog,
    Census,
    LedgerBalance,
    QueueStock,
    WaitReason,
    backlog_of,
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
from broker.store.sqlite.transaction import sentence

DatabaseName = Annotated[
    str | None, Meta(description="The database; left out: the only one the instance hosts, else msdb.")
]


# --- ledger ---
# The ledgers of databases, read from their files beside the daemons' own connections, for status, metrics and views.
#
# Blocking, so for a thread. A reader never waits for a writer.


def read_ledger(path: Path) -> LedgerBalance | None:
    """The ledger of the database in this file; None when the file cannot be read now."""
    import sqlite3  # noqa: PLC0415

    from broker.store.sqlite.database import open_watch  # noqa: PLC0415
    from broker.store.sqlite.inspect import read_balance  # noqa: PLC0415

    try:
        with closing(open_watch(path)) as db:
            return read_balance(db)
    except sqlite3.Error:
        return None


def ledger_values(balance: LedgerBalance) -> dict[str, Any]:
    """A ledger as the JSON of `/v1/status`."""
    return {
        "sent": balance.sent,
        "acknowledged": balance.acknowledged,
        "held": balance.held,
        "failed": dict(balance.failed),
        "unaccounted": balance.unaccounted,
    }


def add_ledgers(status: dict[str, Any], ledgers: Mapping[str, LedgerBalance | None]) -> dict[str, Any]:
    """Put the ledgers into what `/v1/status` tells, by database; null where a file could not be read."""
    for name, balance in ledgers.items():
        status["databases"][name]["ledger"] = None if balance is None else ledger_values(balance)
    return status


# --- census ---
# The census as a value: of each database what lives in it, and its ledger.


class CensusRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Which databases are counted."""

    database: DatabaseName = None


class Ledger(msgspec.Struct, frozen=True):
    """sent = acknowledged + held + failed + unaccounted, since the file was made."""

    sent: int
    acknowledged: int
    held: int
    failed: Annotated[dict[str, int], Meta(description="By reason.")]
    unaccounted: Annotated[int, Meta(description="0 unless somebody changed the file, or the program has a fault.")]
    sentence: Annotated[str, Meta(description="The same in one line.")]


class DatabaseCensus(msgspec.Struct, frozen=True):
    """One database."""

    database: str
    census: Census
    meaning: Annotated[list[str], Meta(description="Always empty; earlier versions had sentences here.")]
    ledger: Ledger


class CensusAnswer(msgspec.Struct, frozen=True):
    """What lives in the databases of an instance."""

    databases: list[DatabaseCensus]


def census_of(paths: Mapping[str, Path], now: float) -> CensusAnswer:
    """
    Count the databases in these files. Blocking.

    Raises:
        StoreUnavailableError: a file cannot be read, is no database of the broker, or one of another release.
    """
    databases = []
    for name, path in paths.items():
        try:
            with closing(open_watch(path)) as db:
                check_schema(db)
                census = take_census(db, now)
                ledger = ledger_values(read_balance(db))
        except sqlite3.Error as error:
            raise StoreUnavailableError(str(path), sentence(error)) from error
        told = ledger_sentence(ledger)
        databases.append(DatabaseCensus(name, census, [], Ledger(**ledger, sentence=told)))
    return CensusAnswer(databases)


# --- backlog ---
# What waits in the transmission queue of a database, read from its file beside the daemon's own connection.
#
# Blocking, so for a thread. A reader never waits for a writer, and no message is looked at.


def read_backlog(path: Path) -> Backlog | None:
    """The backlog of the database in this file; None when the file cannot be read now."""
    try:
        with closing(open_watch(path)) as db:
            return backlog_of(db, time.time())
    except sqlite3.Error:
        return None


# --- conversation ---
# Which conversation a GUID names, read from the file of its database beside the daemon's own connection.
#
# Blocking, so for a thread; one look at an index.


def find_conversation(path: Path, conversation: UUID) -> Contact | None:
    """
    The side of a dialog that lives in this file and has this handle or this id; of two sides, the initiator's.

    Returns:
        None when there is none, and when the file cannot be read now.
    """
    try:
        with closing(open_watch(path)) as db:
            return find_contact(db, conversation.bytes)
    except sqlite3.Error:
        return None


# --- side ---
# Sides of conversations by service and state, those in quarantine, and what waits in queues, for the metrics.
#
# Counting them walks the tables, and after a leak those have millions of rows. So a walk has a limit, and behind one
# there is a rest of many times what it took: a scrape that comes earlier has what was counted last. Blocking, so for
# a
# thread.


WALK_SECONDS = 2.0  # for one database; a walk that takes longer is given up
REST_FACTOR = 20  # times what the last walk took, until the next one: a twentieth of one core at most
_STEPS = 10_000  # of SQLite's machine between two looks at the clock

SIDE_METRICS: tuple[MetricDefinition, ...] = (
    MetricDefinition(
        "broker_dialogs",
        "Sides of conversations in the databases here, by service and state.",
        ("service", "state"),
    ),
    MetricDefinition(
        "broker_dialog_oldest_age_seconds",
        "Age of the oldest of them in this state.",
        ("state",),
        fold=max,
    ),
    MetricDefinition(
        "broker_quarantined_dialogs",
        "Dialogs whose next message has failed too often, so that it waits for somebody to decide.",
        ("service",),
    ),
    MetricDefinition(
        "broker_queue_messages",
        "Messages in the queues of the databases here that an application may receive; of a database the 50 fullest"
        " queues.",
        ("database", "queue"),
    ),
    MetricDefinition(
        "broker_queue_oldest_seconds", "Age of the first of them, 0 when there is none.", ("database", "queue")
    ),
)


@dataclass(slots=True)
class _Walked:
    """What was counted in one database. Shape: `due` monotonic seconds at which it is counted again."""

    due: float = 0.0
    states: list[tuple[str, str, int, float]] = field(default_factory=list)
    quarantined: list[tuple[str, int]] = field(default_factory=list)
    queues: list[QueueStock] = field(default_factory=list)


class Sides:
    """What was counted last, by file; changed by one thread. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._walked: dict[Path, _Walked] = {}

    def samples(self, paths: Mapping[str, Path]) -> dict[str, list[tuple[Labels, float]]]:
        """By metric, of the databases in these files; one that cannot be read now is left out."""
        self._walked = {path: walked for path, walked in self._walked.items() if path in paths.values()}
        for path in paths.values():
            self._look(path)
        counts: defaultdict[Labels, float] = defaultdict(float)
        ages: defaultdict[Labels, float] = defaultdict(float)
        quarantined: defaultdict[Labels, float] = defaultdict(float)
        now = time.time()
        for walked in self._walked.values():
            for service, code, count, since in walked.states:
                state = ConversationState(code).name
                counts[service, state] += count
                ages[(state,)] = max(ages[(state,)], now - since)
            for service, count in walked.quarantined:
                quarantined[(service,)] += count
        queues = [
            ((name, one.name), one) for name, path in paths.items() for one in self._walked.get(path, _Walked()).queues
        ]
        ready: dict[Labels, float] = {labels: float(one.ready) for labels, one in queues}
        oldest: dict[Labels, float] = {labels: one.oldest_s for labels, one in queues}
        found: tuple[dict[Labels, float], ...] = (counts, ages, quarantined, ready, oldest)
        return {metric.name: list(some.items()) for metric, some in zip(SIDE_METRICS, found, strict=True)}

    def _look(self, path: Path) -> None:
        began = self._clock()
        walked = self._walked.get(path)
        if walked is not None and began < walked.due:
            return
        try:
            with closing(open_watch(path)) as db:
                db.set_progress_handler(lambda: self._clock() - began > WALK_SECONDS, _STEPS)
                states, quarantined = sides_by_service(db), quarantined_by_service(db)
                walked = _Walked(0.0, states, quarantined, fullest_queues(db, time.time()))
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                self._walked.pop(path, None)
                return
            walked = walked or _Walked()  # what was counted before is better than nothing
        except sqlite3.Error:
            self._walked.pop(path, None)
            return
        walked.due = self._clock() + REST_FACTOR * (self._clock() - began)
        self._walked[path] = walked


# --- standstill ---
# What stands still in a database: dialogs in quarantine, queues that are off, messages that nobody receives.
#
# Read from its file beside the daemon's own connection. Blocking, so for a thread. No message is counted: of each
# queue
# the first one is looked up, so it costs the queues and not what lies in them.


QUEUES_MAX = 50  # told of a database: those that are off, then those whose first message has waited the longest


@dataclass(frozen=True, slots=True)
class StillQueue:
    """One queue. Shape: `oldest_s` age of the first message that an application may receive, 0 when there is none."""

    name: str
    is_receive_enabled: bool
    oldest_s: float


@dataclass(frozen=True, slots=True)
class Standstill:
    """One database. Shape: `quarantined` dialogs; `queues` that are off, or in which something waits."""

    quarantined: int = 0
    queues: tuple[StillQueue, ...] = ()


def read_standstill(path: Path) -> Standstill | None:
    """What stands still in this file; None when it cannot be read now."""
    now = time.time()
    try:
        with closing(open_watch(path)) as db:
            quarantined = quarantined_dialogs(db)
            queues = [
                StillQueue(name, queue.is_receive_enabled, oldest_ready_s(db, queue.queue_id, now))
                for name, queue in sorted(metadata.queues(db).items())
            ]
    except sqlite3.Error:
        return None
    still = [queue for queue in queues if queue.oldest_s or not queue.is_receive_enabled]
    still.sort(key=lambda queue: (queue.is_receive_enabled, -queue.oldest_s))
    return Standstill(quarantined, tuple(still[:QUEUES_MAX]))


def add_standstills(status: dict[str, Any], found: Mapping[str, Standstill | None]) -> dict[str, Any]:
    """Put it into what `/v1/status` tells, by database; null where a file could not be read."""
    for name, one in found.items():
        database = status["databases"][name]
        database["quarantined"] = None if one is None else one.quarantined
        database["queues"] = None if one is None else [_told(queue) for queue in one.queues]
    return status


def _told(queue: StillQueue) -> dict[str, Any]:
    return {
        "name": queue.name,
        "is_receive_enabled": queue.is_receive_enabled,
        "oldest_s": round(queue.oldest_s, 3),
    }


# --- stock ---
# What lies in the file of a database: what waits to leave and why, what waits in its queues, what is in quarantine.
#
# Blocking, so for a thread. A reader never waits for a writer. Counting walks an index from end to end, so whoever
# asks
# again and again rests in between.


@dataclass(frozen=True, slots=True)
class Stock:
    """
    One database.

    Shape: `queues` the fullest first, `queue_count` all of them; `quarantined` dialogs; `reasons` the most frequent
    first.
    """

    backlog: Backlog
    ledger: LedgerBalance
    queues: tuple[QueueStock, ...] = ()
    queue_count: int = 0
    quarantined: int = 0
    reasons: tuple[WaitReason, ...] = ()


def read_stock(path: Path) -> Stock | None:
    """What lies in this file; None when it cannot be read now. Blocking. Cost: the messages that lie there."""
    backlog, ledger = read_backlog(path), read_ledger(path)
    if backlog is None or ledger is None:
        return None
    now = time.time()
    try:
        with closing(open_watch(path)) as db:
            queues, count = fullest_queues(db, now), queue_count(db)
            dialogs = quarantined_dialogs(db)
            reasons = reasons_of(db, now) if backlog.messages else []
    except sqlite3.Error:
        return None
    return Stock(backlog, ledger, tuple(queues), count, dialogs, tuple(reasons))


def read_stocks(paths: Mapping[str, Path]) -> dict[str, Stock | None]:
    """The same of several databases. Blocking."""
    return {name: read_stock(path) for name, path in paths.items()}
