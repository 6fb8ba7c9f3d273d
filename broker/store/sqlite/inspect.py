"""
Counts of the contents of a database, for people: its ledger, its census, its backlog and its queues.

This module only reads, on any connection to the database. Next to a running daemon it uses a separate connection
(`open_watch`), which waits for no writer. Each function states its cost: callers that ask repeatedly pause in between.
The ledger is one statement, so its figures are those of one moment; `broker.store.sqlite.side` writes it.

The census reads no body; on a file of any size it takes as long as counting its rows. The bytes of each table are
counted page by page where that is quick (`dbstat`, in a file of at most COUNTED_MAX_BYTES). In a larger file they are
estimated from a sample of rows.

Source: Service Broker documentation, "sys.conversation_endpoints"; SQLite documentation, "The DBSTAT Virtual Table".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from broker.conversation.message_types import ERROR_PRIORITY
from broker.store.sqlite.failure import IN_QUARANTINE, READY
from broker.store.sqlite.ledger import ACKNOWLEDGED, SENT

HELD, FAILED, UNACCOUNTED = "held", "failed", "unaccounted"
_READ = f"""
    WITH live AS MATERIALIZED (
     SELECT coalesce(sum(send_sequence), 0) AS sent, coalesce(sum(acknowledged_sequence), 0) AS acknowledged
     FROM broker_conversation
    )
    SELECT entry, messages FROM broker_ledger
    UNION ALL SELECT '{SENT}', sent FROM live
    UNION ALL SELECT '{ACKNOWLEDGED}', acknowledged FROM live
    UNION ALL SELECT '{HELD}', count(*) FROM broker_transmission
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class LedgerBalance:
    """Messages of one database since its file was made; `failed` by reason: never sent, or never acknowledged."""

    sent: int = 0
    acknowledged: int = 0
    held: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)

    @property
    def unaccounted(self) -> int:
        """The part of `sent` that is in no other entry: 0, unless the program is wrong or others changed the file."""
        return self.sent - self.acknowledged - self.held - sum(self.failed.values())

    def entries(self) -> Iterator[tuple[str, str | None, int]]:
        """(entry, reason, messages), the reason only of what failed, as the view shows them."""
        yield SENT, None, self.sent
        yield ACKNOWLEDGED, None, self.acknowledged
        yield HELD, None, self.held
        yield from ((FAILED, reason, messages) for reason, messages in sorted(self.failed.items()))
        yield UNACCOUNTED, None, self.unaccounted


def read_balance(db: sqlite3.Connection) -> LedgerBalance:
    """
    Return the ledger of the database of this connection.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    sums: dict[str, int] = {}
    for entry, messages in db.execute(_READ):
        sums[entry] = sums.get(entry, 0) + messages
    sent, acknowledged, held = (sums.pop(entry, 0) for entry in (SENT, ACKNOWLEDGED, HELD))
    return LedgerBalance(sent, acknowledged, held, sums)


# --- the census -------------------------------------------------------------------------------------------------

HOUR, DAY, WEEK = 3600.0, 86_400.0, 7 * 86_400.0
AGES = ((HOUR, "under an hour"), (DAY, "under a day"), (WEEK, "under a week"))  # since the conversation was made
OLDEST_AGE = "a week and more"
COUNTED_MAX_BYTES = 256 * 1024 * 1024  # of a file whose pages are counted: about a second
SAMPLE_ROWS = 500  # of each table, for the estimate
OTHER_TABLES = "everything else"  # tables of the application, and the schema


@dataclass(frozen=True, slots=True)
class Group:
    """
    Sides of conversations that have the same service, state and age.

    Attributes:
        age: One of the words above.
        unread: The number of them that have messages waiting in a queue.
        unsent: The number of them that have messages that are not acknowledged.
        first_lifetime: UTC seconds when the first of them expires.
    """

    service_name: str
    state: str
    age: str
    conversations: int
    unread: int
    unsent: int
    first_lifetime: float


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Numbers of messages in a queue; `oldest_time` is that of the oldest ready message, None when none is ready."""

    queue_name: str
    is_receive_enabled: bool
    ready: int
    quarantined: int
    oldest_time: float | None


@dataclass(frozen=True, slots=True)
class TableSize:
    """How much of the file a table takes, with its indexes; `rows` is None where they were not counted."""

    table: str
    rows: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Census:
    """
    The census of a database.

    Attributes:
        now: UTC seconds, like all times.
        sending: Messages that are not acknowledged.
        sending_since: When the first of them was sent.
        free_bytes: The unused bytes of the file.
        is_estimated: The sizes come from samples.
    """

    now: float
    groups: list[Group]
    tombstones: int
    tombstones_due: int
    quarantined_dialogs: int
    failing_dialogs: int
    sending: int
    sending_since: float | None
    queues: list[QueueDepth]
    tables: list[TableSize]
    file_bytes: int
    free_bytes: int
    is_estimated: bool


def take_census(db: sqlite3.Connection, now: float) -> Census:
    """
    Count everything, at one moment.

    Args:
        db: A separate connection, in no transaction.
        now: UTC seconds since 1970.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    db.execute("BEGIN")
    try:
        tombstones, due = db.execute(_TOMBSTONES, (now,)).fetchone()
        quarantined, failing = db.execute(_FAILURES).fetchone()
        page, pages, free = (db.execute(f"PRAGMA {what}").fetchone()[0] for what in _PRAGMAS)
        sending, sending_since = db.execute(_SENDING).fetchone()
        is_estimated = page * pages > COUNTED_MAX_BYTES or not db.execute(_HAS_DBSTAT).fetchone()
        tables = _estimated_tables(db, page * (pages - free)) if is_estimated else _counted_tables(db)
        return Census(
            now=now,
            groups=[Group(*row) for row in db.execute(_GROUPS, {"now": now})],
            tombstones=tombstones,
            tombstones_due=due,
            quarantined_dialogs=quarantined,
            failing_dialogs=failing,
            sending=sending,
            sending_since=sending_since,
            queues=[
                QueueDepth(name, bool(is_enabled), ready, quarantined, _oldest_ready(db, queue_id))
                for name, is_enabled, queue_id, ready, quarantined in sorted(db.execute(_COUNTS, (-1,)).fetchall())
            ],
            tables=tables,
            file_bytes=page * pages,
            free_bytes=page * free,
            is_estimated=is_estimated,
        )
    finally:
        db.execute("ROLLBACK")


_PRAGMAS = ("page_size", "page_count", "freelist_count")
_AGE = "CASE " + " ".join(f"WHEN :now - create_date < {limit} THEN '{word}'" for limit, word in AGES)
_GROUPS = f"""
    SELECT service_name, state, {_AGE} ELSE '{OLDEST_AGE}' END AS age, count(*),
     sum(EXISTS (SELECT 1 FROM broker_message m WHERE m.endpoint_id = c.endpoint_id)),
     sum(EXISTS (SELECT 1 FROM broker_transmission t WHERE t.endpoint_id = c.endpoint_id)), min(lifetime)
    FROM broker_conversation c GROUP BY 1, 2, 3 ORDER BY 1, 2, max(:now - create_date)
"""  # noqa: S608
_TOMBSTONES = "SELECT count(*), coalesce(sum(expire_time <= ?), 0) FROM broker_tombstone"
_FAILURES = "SELECT count(quarantine_time), count(*) - count(quarantine_time) FROM broker_failure"
_HAS_DBSTAT = "SELECT 1 FROM pragma_module_list WHERE name = 'dbstat'"  # whether this SQLite can count pages
_PAGES = """
    SELECT CASE WHEN s.tbl_name LIKE 'broker\\_%' ESCAPE '\\' THEN s.tbl_name ELSE ? END AS owner, sum(d.pgsize)
    FROM dbstat d LEFT JOIN sqlite_schema s ON s.name = d.name WHERE d.aggregate = TRUE GROUP BY 1 ORDER BY 2 DESC
"""
_OWN = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'broker\\_%' ESCAPE '\\'"


def _counted_tables(db: sqlite3.Connection) -> list[TableSize]:
    own = {name for (name,) in db.execute(_OWN)}
    return [
        TableSize(owner, _rows(db, owner) if owner in own else None, size)
        for owner, size in db.execute(_PAGES, (OTHER_TABLES,)).fetchall()
    ]


def _estimated_tables(db: sqlite3.Connection, used_bytes: int) -> list[TableSize]:
    """Rows times the mean of a sample; indexes and the space between rows are not in it."""
    tables = []
    for (name,) in db.execute(_OWN).fetchall():
        rows = _rows(db, name)
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({name})")]
        row_bytes = " + ".join(f"coalesce(length(CAST({column} AS BLOB)), 0)" for column in columns)
        sample = f"SELECT {row_bytes} AS size FROM {name} LIMIT {SAMPLE_ROWS}"  # noqa: S608 - names of the schema
        mean = db.execute(f"SELECT coalesce(avg(size), 0) FROM ({sample})").fetchone()[0]  # noqa: S608 - as above
        tables.append(TableSize(name, rows, int(rows * mean)))
    tables.sort(key=lambda table: -table.size_bytes)
    rest = used_bytes - sum(table.size_bytes for table in tables)
    return [*tables, TableSize(f"{OTHER_TABLES}, and indexes", None, max(0, rest))]


def _rows(db: sqlite3.Connection, table: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - a name of the schema


# --- messages to be sent ----------------------------------------------------------------------------------------

QUEUES_MAX = 50  # reported of a database, the fullest
LOOKED_AT = 1000  # of the messages that wait to be sent, the oldest are read for the reasons
REASONS_MAX = 5


@dataclass(frozen=True, slots=True)
class Backlog:
    """Messages sent by applications and not yet acknowledged, and the age of the first, 0 when none."""

    messages: int = 0
    oldest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WaitReason:
    """Why messages to one service wait, among the oldest `LOOKED_AT`; `why` is empty where nothing is known."""

    far_service: str
    why: str
    messages: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class QueueStock:
    """One queue: its ready and quarantined messages, and the age of the first ready one, or 0."""

    name: str
    ready: int
    quarantined: int
    oldest_s: float
    is_receive_enabled: bool


# Neither part reads a message: the count walks an index, the oldest row is the first.
_SENDING = """
    SELECT count(*), (SELECT enqueue_time FROM broker_transmission ORDER BY transmission_id LIMIT 1)
    FROM broker_transmission
"""
_REASONS = f"""
    SELECT c.far_service, c.transmission_status, count(*), min(t.enqueue_time)
    FROM (SELECT endpoint_id, enqueue_time FROM broker_transmission ORDER BY transmission_id LIMIT {LOOKED_AT}) AS t
    JOIN broker_conversation AS c ON c.endpoint_id = t.endpoint_id
    GROUP BY c.far_service, c.transmission_status ORDER BY count(*) DESC LIMIT {REASONS_MAX}
"""  # noqa: S608


def backlog_of(db: sqlite3.Connection, now: float) -> Backlog:
    """Return the backlog of messages to be sent, at this UTC time. Cost: a walk through an index."""
    messages, since = db.execute(_SENDING).fetchone()
    return Backlog(messages, 0.0 if since is None else max(0.0, now - since))


def reasons_of(db: sqlite3.Connection, now: float) -> list[WaitReason]:
    """Why the oldest of it wait, at this UTC time, the most frequent first. Cost: `LOOKED_AT` rows at most."""
    return [
        WaitReason(service, why or "", messages, max(0.0, now - since))
        for service, why, messages, since in db.execute(_REASONS).fetchall()
    ]


# --- messages in queues -------------------------------------------------------------------------------------

_COUNTS = f"""
    SELECT q.name, q.is_receive_enabled, q.queue_id,
        coalesce(sum(m.count) FILTER (WHERE m.status = {READY}), 0) AS ready,
        coalesce(sum(m.count) FILTER (WHERE m.status = {IN_QUARANTINE}), 0) AS quarantined
    FROM broker_queue AS q
    LEFT JOIN (SELECT queue_id, status, count(*) AS count FROM broker_message GROUP BY queue_id, status) AS m
        ON m.queue_id = q.queue_id
    GROUP BY q.queue_id ORDER BY ready + quarantined DESC, q.name LIMIT ?
"""  # noqa: S608
# One look into the index for each priority, 1 to 12, instead of a walk over all that is ready.
_OLDEST = f"""
    WITH RECURSIVE level (priority) AS (SELECT 1 UNION ALL SELECT priority + 1 FROM level WHERE priority < 12)
    SELECT min(m.message_enqueue_time) FROM level JOIN broker_message AS m ON m.queuing_order = (
        SELECT first.queuing_order FROM broker_message AS first
        WHERE first.queue_id = ? AND first.status = {READY} AND first.priority = level.priority
        ORDER BY first.queuing_order LIMIT 1)
"""  # noqa: S608

_ERRORS = f"""
    SELECT count(*) FROM broker_queue AS q JOIN broker_message AS m
    ON m.queue_id = q.queue_id AND m.status = {READY} AND m.priority = {ERROR_PRIORITY}
"""  # noqa: S608


def queue_count(db: sqlite3.Connection) -> int:
    """How many queues there are."""
    return int(db.execute("SELECT count(*) FROM broker_queue").fetchone()[0])


def fullest_queues(db: sqlite3.Connection, now: float) -> list[QueueStock]:
    """The `QUEUES_MAX` fullest queues, at this UTC time. Cost: a walk through an index of all that lies in queues."""
    return [
        QueueStock(name, ready, quarantined, oldest_ready_s(db, queue_id, now) if ready else 0.0, bool(is_enabled))
        for name, is_enabled, queue_id, ready, quarantined in db.execute(_COUNTS, (QUEUES_MAX,)).fetchall()
    ]


def failed_dialogs(db: sqlite3.Connection) -> int:
    """How many dialogs have failed with an error that no application has received. Cost: a walk through those."""
    return int(db.execute(_ERRORS).fetchone()[0])


def oldest_ready_s(db: sqlite3.Connection, queue_id: int, now: float) -> float:
    """The age, at this UTC time, of the first message of a queue that an application may receive; 0 without one."""
    since = _oldest_ready(db, queue_id)
    return 0.0 if since is None else max(0.0, now - since)


def _oldest_ready(db: sqlite3.Connection, queue_id: int) -> float | None:
    since: float | None = db.execute(_OLDEST, (queue_id,)).fetchone()[0]
    return since


# --- conversations ------------------------------------------------------------------------------------------

_STATES = "SELECT service_name, state, count(*), min(create_date) FROM broker_conversation GROUP BY 1, 2"


def sides_by_service(db: sqlite3.Connection) -> list[tuple[str, str, int, float]]:
    """(service, state, sides, begin of the oldest in UTC seconds). Cost: a walk through all conversations."""
    return db.execute(_STATES).fetchall()
