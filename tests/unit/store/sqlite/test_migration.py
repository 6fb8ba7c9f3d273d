"""The tables of a new file, and files of older schemas migrated with all they hold, as a whole or not at all."""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import structlog

from broker.client.dialog import get_dialog
from broker.client.receiving import receive
from broker.client.transaction import check_schema
from broker.conversation.frames import Contact, Travel, ack_frame
from broker.errors import StoreUnavailableError
from broker.protocol.frame import decode_dialog
from broker.store.sqlite import migration
from broker.store.sqlite.database import open_store
from broker.store.sqlite.ledger import ACKNOWLEDGED, REPLAY_GUARD, SENT
from broker.store.sqlite.migration import make_tables
from broker.store.sqlite.schema import (
    LARGE_BYTES,
    OLDEST_VERSION,
    PART_BYTES,
    SCHEMA_VERSION,
    has_schema,
    schema_version,
)
from broker.store.sqlite.side import SideTable
from broker.store.sqlite.transaction import writing
from tests.support import version_1
from tests.support.dialog import put_message, rows

NOW = 1_800_000_000.0
SINCE_4 = ("permission", "remote_service_binding", "session_key")
SINCE_7 = ("service_name", "far_service", "far_broker_instance")  # of tombstones
MASTER = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "orders.db"
    version_1.make(path)
    return path


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """A migrated file, which is only read."""
    path = tmp_path_factory.mktemp("migrated") / "orders.db"
    version_1.make(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        migration.migrate(db, path, now=lambda: NOW)
        yield db


def content(path: Path) -> list[str]:
    """Everything in a file."""
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


# --- what it is then ----------------------------------------------------------------------------------------


def test_schema_is_that_of_a_new_file(db: sqlite3.Connection, tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "new.db")) as new:
        assert rows(new, MASTER) == rows(db, MASTER)


# What a file of version 1 held, by the query that finds it. A target does not believe that its answer is known: for a
# dialog that was begun with the name of this database that would not be true.
STAYS: dict[str, list[object]] = {
    "SELECT id, schema_version, create_date, fragment_size, file_number, starts FROM broker_database": [
        (1, SCHEMA_VERSION, 1700000000.5, 65536, None, 0)
    ],
    "SELECT broker_instance FROM broker_database": [version_1.INSTANCE.bytes],
    "SELECT * FROM broker_queue": [(3, "Inbox", 1, 0, 0), (4, "Off", 0, 0, 0)],
    "SELECT * FROM broker_service": [(2, version_1.HERE, 3, '["C"]', 0)],
    "SELECT name, address FROM broker_route": [("AutoCreatedLocal", "LOCAL")],
    "SELECT endpoint_id, is_initiator, state, far_broker_instance IS NOT NULL, send_sequence, acknowledged_sequence,"
    " receive_sequence, receive_sequence_frag, early_fragments, end_dialog_sequence FROM broker_conversation": [
        one for one in version_1.CONVERSATIONS if one[2] != "CD"
    ],
    "SELECT conversation_handle FROM broker_conversation ORDER BY endpoint_id": [
        version_1.handle(number).bytes for number in range(1, 8)
    ],
    "SELECT DISTINCT priority, lifetime, contract, service_name, far_service FROM broker_conversation": [
        (5, version_1.LIFETIME, "C", version_1.HERE, version_1.FAR)
    ],
    "SELECT DISTINCT is_initiator, is_opening_acknowledged FROM broker_conversation ORDER BY 1": [(0, -1), (1, 0)],
    "SELECT endpoint_id, message_sequence_number, message_type_name, message_body FROM broker_message"
    " ORDER BY queuing_order": [*version_1.QUEUED],
    "SELECT queuing_order, status, priority FROM broker_message ORDER BY 1": [(21, 1, 5), (22, 1, 5), (23, 1, 11)],
    "SELECT endpoint_id, message_sequence_number, fragment_number, flags FROM broker_fragment": [
        (3, 0, 0, 0),
        (4, 6, 1, 2),
    ],
}


@pytest.mark.parametrize("query", STAYS)
def test_what_the_file_held_stays(db: sqlite3.Connection, query: str) -> None:
    assert STAYS[query] == rows(db, query)


def test_closed_conversations_become_tombstones(db: sqlite3.Connection) -> None:
    query = "SELECT is_initiator, receive_sequence, close_time, expire_time FROM broker_tombstone ORDER BY is_initiator"

    assert [(0, 2, NOW, version_1.LIFETIME + REPLAY_GUARD), (1, 3, NOW, NOW + REPLAY_GUARD)] == rows(db, query)
    (closed,) = [one for one in version_1.CONVERSATIONS if one[0] == 8]
    far = Contact((0xB000 + closed[0]).to_bytes(16, "big"), False, "//any/Far", b"f" * 16, "//any/Here")
    header, _ = decode_dialog(ack_frame(far, Travel(), bytes(16), (0, 0)))
    tombstone = SideTable(db, bytes(16), NOW).find_tombstone(header)
    assert tombstone is not None
    assert (3, 0) == tombstone.expected
    assert "//shop/Billing" == tombstone.contact.far_service


def test_what_waits_to_be_sent_stays_and_large_bodies_become_parts(db: sqlite3.Connection) -> None:
    small = [one for one in version_1.WAITING if len(one[3]) <= LARGE_BYTES]
    query = (
        "SELECT endpoint_id, message_sequence_number, flags, message_body FROM broker_transmission"
        " WHERE message_body IS NOT NULL ORDER BY transmission_id"
    )

    assert small == rows(db, query)
    ((number, length),) = rows(
        db, "SELECT transmission_id, body_length FROM broker_transmission WHERE message_body IS NULL"
    )
    parts = rows(db, "SELECT body FROM broker_transmission_part WHERE transmission_id = ? ORDER BY part_number", number)
    assert (13, len(version_1.LARGE)) == (number, length)
    assert {PART_BYTES} == {len(part) for part in parts[:-1]}
    assert version_1.LARGE == b"".join(parts)


def test_ledger_adds_up(db: sqlite3.Connection) -> None:
    """Version 1 did not note what it gave up: two messages of the failed dialog."""
    entries = dict(rows(db, "SELECT entry, messages FROM broker_ledger"))
    ((sent, acknowledged),) = rows(db, "SELECT sum(send_sequence), sum(acknowledged_sequence) FROM broker_conversation")
    held = rows(db, "SELECT count(*) FROM broker_transmission")[0]

    assert {migration.BEFORE: 2, SENT: 3, ACKNOWLEDGED: 3} == entries
    assert sent + entries[SENT] == acknowledged + entries[ACKNOWLEDGED] + held + entries[migration.BEFORE]


def test_numbers_of_what_is_gone_are_never_given_again(old: Path) -> None:
    with closing(sqlite3.connect(old)) as db, db:
        db.execute("DELETE FROM broker_message")

    with closing(open_store(old)) as db:
        assert [123] == rows(db, "SELECT seq FROM sqlite_sequence WHERE name = 'broker_message'")


def test_the_application_keeps_what_it_made(old: Path) -> None:
    own = (
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, dialog BLOB REFERENCES broker_conversation(conversation_handle));"
        "CREATE VIEW waiting AS SELECT count(*) AS n FROM broker_transmission;"
        "CREATE INDEX by_type ON broker_message (message_type_name);"
        "CREATE TABLE noted (n INTEGER);"
        "CREATE TRIGGER note AFTER INSERT ON broker_message BEGIN INSERT INTO noted VALUES (new.queuing_order); END"
    )
    with closing(sqlite3.connect(old)) as db:
        db.executescript(own)

    with closing(open_store(old)) as db:
        put_message(db, queue_id=3, endpoint_id=5)
        kept = rows(db, "SELECT sql FROM sqlite_master WHERE name IN ('orders', 'waiting', 'by_type', 'note', 'noted')")

        assert set(own.split(";")[:4]) <= set(kept)
        assert 5 == len(kept)
        assert [124] == rows(db, "SELECT n FROM noted"), "and the trigger did not see the rows that were copied"
        assert [5] == rows(db, "SELECT n FROM waiting")


# --- how it is done -----------------------------------------------------------------------------------------


def test_opening_migrates_and_opening_again_does_not(old: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        open_store(old).close()
        open_store(old).close()

    assert ["database migrates", "database migrated"] == [entry["event"] for entry in logs]
    assert 1 == logs[0]["from_version"]


def test_progress_is_told_while_it_lasts(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(migration, "_STEPS", 10)

    with structlog.testing.capture_logs() as logs:
        open_store(old).close()

    told = [entry for entry in logs if entry["event"] == "database still migrates"]
    assert told
    assert all(entry["bytes_of_file"] > len(version_1.LARGE) for entry in told)
    assert told[-1]["bytes_written"] > 0


def test_what_another_has_migrated_meanwhile_is_left_alone(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(old).close()
    before = content(old)
    versions = iter([1, SCHEMA_VERSION])
    monkeypatch.setattr(migration, "schema_version", lambda _: next(versions))

    with closing(sqlite3.connect(old, isolation_level=None)) as db:
        migration.migrate(db, old)

    assert before == content(old)


KILLED = """
import os, signal, sys
from broker.store.sqlite import migration
from broker.store.sqlite.database import open_store

STEP = sys.argv[2]
real = getattr(migration, STEP)

def kill(*arguments):
    real(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(migration, STEP, kill)
open_store(sys.argv[1])
"""


@pytest.mark.parametrize("step", ["_put_aside", "_cut_large_bodies", "_rebuild"])
def test_killed_in_the_middle_nothing_has_changed(old: Path, step: str) -> None:
    before = content(old)

    done = subprocess.run([sys.executable, "-c", KILLED, str(old), step], check=False, capture_output=True)

    assert -signal.SIGKILL == done.returncode, done.stderr
    assert before == content(old)
    with closing(open_store(old)) as db:
        assert SCHEMA_VERSION == schema_version(db)


def test_a_failure_changes_nothing_and_says_what_to_do(old: Path) -> None:
    before = content(old)
    with closing(sqlite3.connect(old, isolation_level=None)) as db:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages + 10}")
        with pytest.raises(StoreUnavailableError) as caught:
            migration.migrate(db, old)

    assert (
        f"from version 1 to {SCHEMA_VERSION}, and nothing was changed: the disk is full: free some space"
        in caught.value.problem
    )
    assert "bytes free" in caught.value.problem
    assert before == content(old)


def test_a_table_of_the_application_with_a_new_name_of_ours_is_refused(old: Path) -> None:
    with closing(sqlite3.connect(old)) as db:
        db.execute("CREATE TABLE broker_ledger (n)")
    before = content(old)

    with pytest.raises(StoreUnavailableError, match="table broker_ledger already exists"):
        open_store(old)

    assert before == content(old)


def test_another_identity_than_the_configured_is_refused_before_anything_is_changed(old: Path) -> None:
    before = content(old)

    with pytest.raises(StoreUnavailableError, match="its broker instance is 11111111"):
        open_store(old, broker_instance=version_1.FAR_INSTANCE)

    assert before == content(old)


@pytest.mark.parametrize(
    "call",
    [
        check_schema,
        lambda db: get_dialog(db, version_1.handle(1)),
        lambda db: receive(db, queue="Inbox"),
        lambda db: receive(db, queue="Unknown"),
    ],
)
@pytest.mark.parametrize(
    ("version", "what"), [(1, "start the daemon of this release on it"), (SCHEMA_VERSION + 1, "use that release")]
)
def test_an_application_on_another_version_is_told_what_to_do(
    old: Path, version: int, what: str, call: Callable[[sqlite3.Connection], object]
) -> None:
    with closing(sqlite3.connect(old, isolation_level=None)) as db:
        db.execute("UPDATE broker_database SET schema_version = ?", (version,))
        with pytest.raises(StoreUnavailableError, match=f"its schema has version {version}, .*{what}"):
            call(db)


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, -1])
def test_a_version_that_is_not_known_is_refused_and_the_file_stays(old: Path, version: int) -> None:
    with closing(sqlite3.connect(old, isolation_level=None)) as db, writing(db):
        db.execute("UPDATE broker_database SET schema_version = ?", (version,))
    before = content(old)

    with pytest.raises(StoreUnavailableError, match="nothing was changed: use a newer release, or put back the backup"):
        open_store(old)

    assert before == content(old)


# --- later versions -------------------------------------------------------------------------------------------

GROWN = {"broker_transmission": 1, "broker_message": 1, "broker_tombstone": 1 + len(SINCE_7)}  # columns since version 4
COLUMNS = "schema_version, starts, file_number, epoch, fragment_size, certificate"


def older(path: Path, version: int) -> Path:
    """A file of such a version with what it held, made of a migrated one."""
    version_1.make(path)
    open_store(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE broker_database SET starts = 5, file_number = 77, epoch = 9, certificate = 'CN=orders'")
        db.execute("INSERT INTO broker_permission VALUES (NULL, 'SEND', '*', 'public', 'GRANT')")
        db.execute("UPDATE broker_message SET status = 4, body_fragments = 17 WHERE queuing_order = 22")
        if version <= 4:
            drop(db, "transmission", "headers")
            drop(db, "message", "headers")
        if version <= 6:
            drop(db, "tombstone", *SINCE_7, *["conversation_handle"] * (version <= 5))
        if version <= 3:
            for name in SINCE_4:
                db.execute(f"DROP TABLE broker_{name}")
        columns = "id, broker_instance, create_date, fragment_size, file_number, starts"
        columns += ", epoch" * (version > 2) + ", certificate" * (version > 3)
        db.execute(f"CREATE TABLE kept AS SELECT {version} AS schema_version, {columns} FROM broker_database")
        db.execute("DROP TABLE broker_database")
        db.execute("ALTER TABLE kept RENAME TO broker_database")
    return path


def drop(db: sqlite3.Connection, table: str, *columns: str) -> None:
    for column in columns:
        db.execute(f"ALTER TABLE broker_{table} DROP COLUMN {column}")


@pytest.mark.parametrize("version", range(OLDEST_VERSION + 1, SCHEMA_VERSION))
def test_later_versions_get_what_is_new_and_keep_everything_else(tmp_path: Path, version: int) -> None:
    path = older(tmp_path / "older.db", version)
    grown = GROWN if version <= 4 else {"broker_tombstone": {5: 1 + len(SINCE_7), 6: len(SINCE_7)}.get(version, 0)}
    with closing(sqlite3.connect(path)) as db:
        tables = rows(db, "SELECT name FROM sqlite_master WHERE type = 'table'")
        before = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in tables if name != "broker_database"}
    numbers = set(before.pop("sqlite_sequence"))

    with closing(open_store(path)) as db, closing(open_store(tmp_path / "new.db")) as new:
        assert rows(new, MASTER) == rows(db, MASTER)
        assert len(before["broker_tombstone"]) > 0
        for name, found in before.items():
            expected = [(*row, *[None] * grown.get(name, 0)) for row in found]
            assert expected == db.execute(f"SELECT * FROM {name}").fetchall(), name
        assert numbers == set(db.execute("SELECT * FROM sqlite_sequence"))
        known = (9 if version > 2 else 0, 65536, "CN=orders" if version > 3 else None)
        assert [(SCHEMA_VERSION, 5, 77, *known)] == rows(db, f"SELECT {COLUMNS} FROM broker_database")


def _tables(db: sqlite3.Connection) -> set[str]:
    """The owners of all tables and indexes."""
    return {name for (name,) in db.execute("SELECT tbl_name FROM sqlite_master WHERE name LIKE 'broker_%'")}


def test_tables_are_made_in_the_transaction_of_the_caller_and_only_those_that_are_named() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute("BEGIN")
        make_tables(db)
        during = has_schema(db), len(_tables(db)) > 20
        db.execute("ROLLBACK")

        assert ((True, True), False, set()) == (during, has_schema(db), _tables(db))
        make_tables(db, ["queue", "message"])
        kinds = dict(db.execute("SELECT type, count(*) FROM sqlite_master WHERE sql IS NOT NULL GROUP BY type"))
        assert ({"broker_queue", "broker_message"}, True) == (_tables(db), kinds.get("index", 0) > 0)
