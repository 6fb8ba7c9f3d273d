"""
The census of a database: what lives in it, how old that is, and how much of the file it takes.

Reads only, and looks at no body; on a file of any size it takes what counting its rows takes. The bytes of each table
are counted page by page where that is quick (`dbstat`, in a file of at most COUNTED_MAX_BYTES), else estimated from
rows of a sample.

Source: Service Broker documentation, "sys.conversation_endpoints"; SQLite documentation, "The DBSTAT Virtual Table".
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

HOUR, DAY, WEEK = 3600.0, 86_400.0, 7 * 86_400.0
AGES = ((HOUR, "under an hour"), (DAY, "under a day"), (WEEK, "under a week"))  # since the conversation was made
OLDEST_AGE = "a week and more"
COUNTED_MAX_BYTES = 256 * 1024 * 1024  # of a file whose pages are counted: about a second
SAMPLE_ROWS = 500  # of each table, for the estimate
OTHER_TABLES = "everything else"  # tables of the application, and the schema


@dataclass(frozen=True, slots=True)
class Group:
    """
    Sides of conversations that are alike.

    Shape: `age` one of the words above; `unread` of them have messages waiting in a queue, `unsent` have some that are
    not acknowledged; `first_lifetime` UTC seconds, when the first of them expires.
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
    """What waits in a queue. Shape: `oldest_time` UTC seconds of the oldest ready message, None when none is."""

    queue_name: str
    is_receive_enabled: bool
    ready: int
    quarantined: int
    oldest_time: float | None


@dataclass(frozen=True, slots=True)
class TableSize:
    """How much of the file a table takes, with its indexes. Shape: `rows` None where they were not counted."""

    table: str
    rows: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Census:
    """
    What lives in a database.

    Shape: `now` and all times UTC seconds; `sending` messages not acknowledged, the first since `sending_since`;
    `free_bytes` of the file that are in use by nothing; `is_estimated` when the sizes come from samples.
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
        db: A connection of its own, in no transaction.
        now: UTC seconds since 1970.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    db.execute("BEGIN")
    try:
        tombstones, due = db.execute(_TOMBSTONES, (now,)).fetchone()
        quarantined, failing = db.execute(_FAILURES).fetchone()
        page, pages, free = (db.execute(f"PRAGMA {what}").fetchone()[0] for what in _PRAGMAS)
        first = db.execute("SELECT enqueue_time FROM broker_transmission ORDER BY transmission_id LIMIT 1").fetchone()
        is_estimated = page * pages > COUNTED_MAX_BYTES or not _has_dbstat(db)
        tables = _estimated_tables(db, page * (pages - free)) if is_estimated else _counted_tables(db)
        return Census(
            now=now,
            groups=[Group(*row) for row in db.execute(_GROUPS, {"now": now})],
            tombstones=tombstones,
            tombstones_due=due,
            quarantined_dialogs=quarantined,
            failing_dialogs=failing,
            sending=db.execute("SELECT count(*) FROM broker_transmission").fetchone()[0],
            sending_since=None if first is None else first[0],
            queues=[QueueDepth(row[0], bool(row[1]), *row[2:]) for row in db.execute(_QUEUES)],
            tables=tables,
            file_bytes=page * pages,
            free_bytes=page * free,
            is_estimated=is_estimated,
        )
    finally:
        db.execute("ROLLBACK")


# --- parts ------------------------------------------------------------------------------------------------------

_PRAGMAS = ("page_size", "page_count", "freelist_count")
_AGE = "CASE " + " ".join(f"WHEN :now - create_date < {limit} THEN '{word}'" for limit, word in AGES)
_GROUPS = f"""
    SELECT service_name, state, {_AGE} ELSE '{OLDEST_AGE}' END AS age, count(*),
     sum(EXISTS (SELECT 1 FROM broker_message m WHERE m.endpoint_id = c.endpoint_id)),
     sum(EXISTS (SELECT 1 FROM broker_transmission t WHERE t.endpoint_id = c.endpoint_id)), min(lifetime)
    FROM broker_conversation c GROUP BY 1, 2, 3 ORDER BY 1, 2, max(:now - create_date)
"""  # noqa: S608 - own words
_TOMBSTONES = "SELECT count(*), coalesce(sum(expire_time <= ?), 0) FROM broker_tombstone"
_FAILURES = "SELECT count(quarantine_time), count(*) - count(quarantine_time) FROM broker_failure"
_QUEUES = """
    SELECT q.name, q.is_receive_enabled,
     (SELECT count(*) FROM broker_message m WHERE m.queue_id = q.queue_id AND m.status = 1),
     (SELECT count(*) FROM broker_message m WHERE m.queue_id = q.queue_id AND m.status = 4),
     (SELECT m.message_enqueue_time FROM broker_message m
      WHERE m.queuing_order = (SELECT min(o.queuing_order) FROM broker_message o
       WHERE o.queue_id = q.queue_id AND o.status = 1))
    FROM broker_queue q ORDER BY q.name
"""
_PAGES = """
    SELECT CASE WHEN s.tbl_name LIKE 'broker\\_%' ESCAPE '\\' THEN s.tbl_name ELSE ? END AS owner, sum(d.pgsize)
    FROM dbstat d LEFT JOIN sqlite_schema s ON s.name = d.name WHERE d.aggregate = TRUE GROUP BY 1 ORDER BY 2 DESC
"""
_OWN = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'broker\\_%' ESCAPE '\\'"


def _has_dbstat(db: sqlite3.Connection) -> bool:
    """Whether this build of SQLite can count pages."""
    return db.execute("SELECT 1 FROM pragma_module_list WHERE name = 'dbstat'").fetchone() is not None


def _counted_tables(db: sqlite3.Connection) -> list[TableSize]:
    own = {name for (name,) in db.execute(_OWN)}
    return [
        TableSize(owner, _rows(db, owner) if owner in own else None, size)
        for owner, size in db.execute(_PAGES, (OTHER_TABLES,)).fetchall()
    ]


def _estimated_tables(db: sqlite3.Connection, used_bytes: int) -> list[TableSize]:
    """Rows times the mean of a sample; indexes and the room between rows are not in it."""
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
    rows: int = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 - a name of the schema
    return rows
