"""
The tables of a database: made by `schema.sql`, and migrated from any older version to the one of this release.

Every old version is migrated to the present one at once, in one transaction: killed at any moment, nothing has changed.
The tables that have changed are renamed and made as in a new file. Then their rows are copied, and the old tables are
dropped. So a migrated file has the same schema as a new one, to the letter. Indexes and triggers that an application
has put on these tables are made again, its own tables are not touched, and its views that read ours still do.

From version 1, whose tables have all changed, it needs free disk of up to three times the file. The log needs twice the
size of the file, for the new rows and the pages of the old ones. The file needs it once, and later uses the space of
the old tables for new rows. No other connection can write during the migration; readers see the old file. 600 MB with
200,000 messages and 100,000 closed conversations took 16 s, in 44 MB of memory.

Version 1 had no tombstones, ledger or parts. Closed sides become tombstones, and large bodies become parts. Messages
that were not acknowledged and are no longer in any row count in the ledger under `BEFORE`. Version 2 had no epoch,
version 3 no certificate, permissions, bindings or session keys, version 4 no headers of messages, version 5 no handles
in its tombstones, version 6 no services there. Only rows that wait are copied; parts and fragments of large
messages stay. Version 7 has the tables of version 8, but its daemons overlook a message that was sent with a number
which one before had (`NEXT_TRANSMISSION`).
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import structlog

from broker.conversation.message_types import ERROR, ERROR_PRIORITY
from broker.errors import StoreUnavailableError
from broker.store.sqlite.ledger import close
from broker.store.sqlite.schema import LARGE_BYTES, PART_BYTES, SCHEMA_VERSION, schema_version
from broker.store.sqlite.side import NAMING_PROVES_NOTHING
from broker.store.sqlite.transaction import sentence, writing

BEFORE = "before schema version 2"  # the reason in the ledger
REPORT_SECONDS = 5.0  # between two lines of the log about a migration that takes long
_TABLE = r"^CREATE (?:TABLE|INDEX \w+ ON) broker_(\w+)"


def make_tables(db: sqlite3.Connection, names: Collection[str] | None = None) -> None:
    """Make the tables of the broker, all or those of these names, empty; inside the caller's transaction."""
    script = files("broker.store.sqlite").joinpath("schema.sql").read_text(encoding="utf-8")
    for statement in _statements(script):
        if names is None or re.findall(_TABLE, statement, re.MULTILINE)[0] in names:
            db.execute(statement)


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one: `executescript` would commit the transaction around it."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


# --- migration --------------------------------------------------------------------------------------------------

_ASIDE = "broker_migrated_"  # prefix of the old tables during the migration
_STEPS = 10_000  # instructions of SQLite between two readings of the clock, some hundred rows


def _copy(*columns: str, **computed: str) -> tuple[str, str]:
    """The columns that are filled in, and what with: the same columns, and those that are computed."""
    return ", ".join([*columns, *computed]), ", ".join([*columns, *computed.values()])


def _database(*columns: str) -> tuple[str, str]:
    return _copy("id, broker_instance, create_date, fragment_size", *columns, schema_version=str(SCHEMA_VERSION))


_STARTS = "file_number, starts"
_MESSAGE = (
    "queuing_order, queue_id, endpoint_id, message_sequence_number, message_type_name, message_enqueue_time,"
    " message_body"
)
_TRANSMISSION = "transmission_id, endpoint_id, message_sequence_number, flags, message_type_name, enqueue_time"
_TOMBSTONE = "conversation_id, is_initiator, receive_sequence, receive_sequence_frag, close_time, expire_time"
_SERVICE = {"service": _copy("service_id, name, queue_id, contracts")}
_WAITING = {
    "transmission": _copy(_TRANSMISSION, "message_body, body_length"),
    "message": _copy(_MESSAGE, "status, priority, body_fragments"),
    "tombstone": _copy(_TOMBSTONE),
}
_SINCE_4 = ("permission", "remote_service_binding", "session_key")  # tables that no version before had
_ROWS: dict[int, dict[str, tuple[str, str]]] = {  # of a version: the tables that have changed since
    1: {
        "database": _database(),
        "queue": _copy("queue_id, name, is_receive_enabled"),
        **_SERVICE,
        "route": _copy(
            "route_id, name, remote_service_name, broker_instance, lifetime, address, mirror_address, weight"
        ),
        "conversation": _copy(
            "endpoint_id, conversation_handle, conversation_id, is_initiator, conversation_group_id, state",
            "service_name, far_service, far_broker_instance, contract, lifetime, create_date, send_sequence",
            "acknowledged_sequence, receive_sequence, receive_sequence_frag, early_fragments, end_dialog_sequence",
            is_opening_acknowledged=f"CASE WHEN is_initiator THEN 0 ELSE {NAMING_PROVES_NOTHING} END",
        ),
        "transmission": _copy(
            _TRANSMISSION,
            message_body=f"CASE WHEN length(message_body) <= {LARGE_BYTES} THEN message_body END",
            body_length=f"CASE WHEN length(message_body) > {LARGE_BYTES} THEN length(message_body) END",
        ),
        "message": _copy(
            _MESSAGE, priority=f"CASE WHEN message_type_name = '{ERROR}' THEN {ERROR_PRIORITY} ELSE 5 END"
        ),
        "fragment": _copy("endpoint_id, message_sequence_number, fragment_number, flags, body"),
    },
    2: {"database": _database(_STARTS), **_SERVICE, **_WAITING},
    3: {"database": _database(_STARTS, "epoch"), **_SERVICE, **_WAITING},
    4: {"database": _database(_STARTS, "epoch, certificate"), **_SERVICE, **_WAITING},
    5: {"database": _database(_STARTS, "epoch, certificate"), **_SERVICE, "tombstone": _copy(_TOMBSTONE)},
    6: {
        "database": _database(_STARTS, "epoch, certificate"),
        **_SERVICE,
        "tombstone": _copy(_TOMBSTONE, "conversation_handle"),
    },
    7: {"database": _database(_STARTS, "epoch, certificate"), **_SERVICE},
}
_ON_TABLES = (
    "SELECT name, type, sql FROM sqlite_master WHERE type IN ('index', 'trigger') AND sql IS NOT NULL"
    " AND tbl_name IN (SELECT 'broker_' || value FROM json_each(?)) ORDER BY type, rowid"
)
_UNACCOUNTED = (
    "INSERT INTO broker_ledger (entry, messages) SELECT ?1, messages FROM (SELECT"
    " (SELECT coalesce(sum(send_sequence - acknowledged_sequence), 0) FROM broker_conversation)"
    " - (SELECT count(*) FROM broker_transmission) AS messages) WHERE messages > 0"
)

log = structlog.get_logger(__name__)


def migrate(db: sqlite3.Connection, path: Path, *, now: Callable[[], float] = time.time) -> None:
    """
    Bring the schema of a file up to `SCHEMA_VERSION`; nothing to do when it is there.

    Args:
        db: A connection to it, in WAL mode and in no transaction.
        path: Its file, for what is reported of it.
        now: UTC seconds since 1970.

    Raises:
        StoreUnavailableError: it failed, and nothing was changed.
    """
    before = schema_version(db)
    started = time.monotonic()
    log.info("database migrates", path=str(path), from_version=before, to_version=SCHEMA_VERSION, bytes=_size(path))
    try:
        with _reporting(db, path), _references_left(db), writing(db):
            version = schema_version(db)  # another process may have migrated it by now
            if version < SCHEMA_VERSION:
                _rebuild(db, version, now())
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        problem = (
            f"its schema could not be brought from version {before} to {SCHEMA_VERSION}, and nothing was changed:"
            f" {sentence(error)}; on the disk there have to be up to {3 * _size(path):,} bytes free"
        )
        raise StoreUnavailableError(str(path), problem) from error
    log.info("database migrated", path=str(path), version=SCHEMA_VERSION, seconds=round(time.monotonic() - started, 1))


def _rebuild(db: sqlite3.Connection, version: int, now: float) -> None:
    """Inside the transaction: the tables as in a new file, with what the old ones hold."""
    tables = list(_ROWS[version])
    extras = _put_aside(db, tables)
    make_tables(db, None if version == 1 else [*tables, *(_SINCE_4 if version < 4 else ())])
    known = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    for name, (columns, values) in _ROWS[version].items():
        db.execute(f"INSERT INTO broker_{name} ({columns}) SELECT {values} FROM {_ASIDE}{name}")  # noqa: S608 - names above
    if version == 1:
        _cut_large_bodies(db)
    _keep_numbers(db, tables)
    for name in reversed(tables):
        db.execute(f"DROP TABLE {_ASIDE}{name}")
    if version == 1:
        _bury_the_closed(db, now)
    for name, sql in extras:
        if name not in known:
            db.execute(sql)


def _bury_the_closed(db: sqlite3.Connection, now: float) -> None:
    """Closed sides become tombstones; what is missing then goes into the ledger."""
    db.execute(_UNACCOUNTED, (BEFORE,))
    for (endpoint_id,) in db.execute("SELECT endpoint_id FROM broker_conversation WHERE state = 'CD'").fetchall():
        close(db, endpoint_id, now, BEFORE)


def _put_aside(db: sqlite3.Connection, tables: list[str]) -> list[tuple[str, str]]:
    """Rename the old tables, and drop their indexes and triggers; those, each with its statement."""
    extras = db.execute(_ON_TABLES, (json.dumps(tables),)).fetchall()
    for name, kind, _ in extras:
        quoted = name.replace('"', '""')
        db.execute(f'DROP {kind} "{quoted}"')
    for name in tables:
        db.execute(f"ALTER TABLE broker_{name} RENAME TO {_ASIDE}{name}")
    return [(name, sql) for name, _, sql in extras]


def _cut_large_bodies(db: sqlite3.Connection) -> None:
    """Bodies above LARGE_BYTES become parts; no more than one part is in memory."""
    rows = db.execute("SELECT transmission_id FROM broker_transmission WHERE message_body IS NULL").fetchall()
    for (transmission_id,) in rows:
        with db.blobopen(f"{_ASIDE}transmission", "message_body", transmission_id, readonly=True) as body:
            for number in range(-(-len(body) // PART_BYTES)):
                part = (transmission_id, number, body.read(PART_BYTES))
                db.execute("INSERT INTO broker_transmission_part VALUES (?, ?, ?)", part)


def _keep_numbers(db: sqlite3.Connection, tables: list[str]) -> None:
    """Numbers that were used once are not used again."""
    for name in tables:
        row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (_ASIDE + name,)).fetchone()
        if row is not None:
            new = (row[0], f"broker_{name}")
            if not db.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = ?", new).rowcount:
                db.execute("INSERT INTO sqlite_sequence (seq, name) VALUES (?, ?)", new)


@contextmanager
def _references_left(db: sqlite3.Connection) -> Iterator[None]:
    """Leave references to our tables by name, in other objects of the schema, unchanged when the tables are renamed."""
    db.execute("PRAGMA legacy_alter_table = ON")
    try:
        yield
    finally:
        db.execute("PRAGMA legacy_alter_table = OFF")


@contextmanager
def _reporting(db: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Log how far it is, by the bytes in the write-ahead log."""
    wal = Path(f"{path}-wal")
    reported = time.monotonic()

    def report() -> int:
        nonlocal reported
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            log.info("database still migrates", path=str(path), bytes_written=_size(wal), bytes_of_file=_size(path))
        return 0

    db.set_progress_handler(report, _STEPS)
    try:
        yield
    finally:
        db.set_progress_handler(None, 0)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
