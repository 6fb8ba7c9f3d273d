"""What stands in files that an instance reads again, and that anything may have been written into meanwhile."""

from __future__ import annotations

import atexit
import json
import sqlite3
import ssl
import tempfile
import uuid
from contextlib import closing
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from broker.config.admin_access import TokenFileError, find_token, read_tokens
from broker.errors import BrokerError, StoreUnavailableError
from broker.journal.reader import Wanted, newest
from broker.journal.schema import survey
from broker.net.tls import identify
from broker.observe.query import shown_value
from broker.observe.views import QUEUE_MONITORS, audit_rows
from broker.security.certificate_files import read_certificates, read_keys
from broker.security.identity import parse_own, parse_peers
from broker.store.sqlite.database import open_store
from broker.store.sqlite.file_identity import RECORD, compare_file
from broker.store.sqlite.reader_slots import RECORD_BYTES, QueueRecord, ReaderSlot, lock_file
from broker.store.sqlite.role_file import read_principal, recorded_epoch, role_path
from tests.fuzz.target import KIB, Target
from tests.support.identities import issued
from tests.support.journalled import visit, write

KNOWN = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"
NOW = datetime(2026, 11, 22, tzinfo=UTC)


@cache
def _directory() -> Path:
    """Files of this process; gone when it ends."""
    directory = tempfile.TemporaryDirectory(prefix="broker-fuzz-")
    atexit.register(directory.cleanup)
    return Path(directory.name)


def _file(name: str, data: bytes) -> Path:
    path = _directory() / name
    path.write_bytes(data)
    path.chmod(0o600)
    return path


# --- records of the instance itself ---


def _role(data: bytes) -> None:
    """Who took a database over: it is read, or the file is named as damaged; either way the next one may go on."""
    database = _directory() / "orders.db"
    role_path(database).write_bytes(data)
    assert recorded_epoch(database) >= 0
    read_principal(database)


def _tokens(data: bytes) -> None:
    """Of a file of tokens, what is read can be looked for and has an end that can be compared."""
    tokens = read_tokens(_file("tokens", data))
    assert find_token(tokens, "broker_none") is None
    assert all(token.is_valid_at(NOW) in {True, False} for token in tokens)


def _audit(data: bytes) -> None:
    """Of the audit, every line that is one is a row that SQLite takes, and the others are passed over."""
    rows = audit_rows(_file("audit.jsonl", data))
    with closing(sqlite3.connect(":memory:")) as db:
        for row in rows:
            db.execute(f"SELECT {', '.join('?' * len(row))}", tuple(map(shown_value, row)))


def _audit_seeds() -> list[bytes]:
    line = {"at": "2026-11-22T09:14:02+00:00", "request": "9f", "who": "user:a", "role": "operator", "from": "socket"}
    more = {
        "operation": "ALTER QUEUE",
        "database": "orders",
        "statement": "ALTER QUEUE [q] WITH STATUS = OFF;",
        "outcome": "done",
        "unsaid": 3,
    }
    return [
        json.dumps(line | more).encode() + b"\n",
        b'{"at": "2026-11-22", "unsaid": 99999999999999999999999}\n',
        b'{"at": "2026-11-22", "who": [1], "statement": {"a": [[]]}}\n[1]\n"at"\nnull\n',
        b'{"at": 5}\n{"at": "0001-01-01T00:00:00+23:59"}\n{"at": "9999-12-31T23:59:59-23:59"}\n',
        b"[" * 2000,
        b'{"at": "2026-11-22", "unsaid": ' + b"9" * 5000 + b"}",
        b'{"at": "2026-11-22", "who": "\\ud800", "unsaid": 1e999}\n',
    ]


@cache
def _database() -> Path:
    """A database that a reader of this process says that it reads."""
    path = _directory() / "seen.db"
    with closing(open_store(path, broker_instance=uuid.UUID(KNOWN))) as db:
        db.execute("INSERT INTO broker_queue (name) VALUES ('q')")
    slot = ReaderSlot(str(path))
    slot.record([QueueRecord("q", 1, 0.0, None)])
    atexit.register(slot.close)
    return path


def _seen(data: bytes) -> None:
    """What the instance has seen of its databases: it is read, or the file is named as damaged."""
    (_directory() / RECORD).write_bytes(data)
    with closing(sqlite3.connect(_database())) as db:
        sighting = compare_file(db, _database(), _directory())
    assert sighting.starts == 0
    assert "file" in sighting.problem or not sighting.problem


def _readers(data: bytes) -> None:
    """What readers say of themselves to the views: whatever stands there, the view has a row that SQLite takes."""
    database = _database()
    with Path(lock_file(str(database))).open("r+b") as file:
        file.write(data[:RECORD_BYTES].ljust(RECORD_BYTES))
    [row] = QUEUE_MONITORS.rows({"seen": database})
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute(f"SELECT {', '.join('?' * len(row))}", tuple(map(shown_value, row)))


# --- a journal ---


def _journal(data: bytes) -> None:
    """A file that is no Parquet, or not all of one, is told as unreadable, and the others are read."""
    directory = _directory() / "flows"
    directory.mkdir(exist_ok=True)
    path = directory / "000001-0123abcd.parquet"
    path.write_bytes(data)
    found = newest(directory, Wanted(), 10)
    assert len(found.visits) <= 10
    for state in survey([path]):
        assert state.path == path


@cache
def _parquet() -> bytes:
    path = write(_directory() / "good" / "one.parquet", visit(), visit(1, took=None, outcome="dropped"))
    return path.read_bytes()


# --- certificates, keys, routes ---


def _pem(data: bytes) -> None:
    """Certificates and keys in PEM: read by everything that reads them, each with its own refusal."""
    path = _file("any.pem", data)
    for read in (read_certificates, read_keys):
        try:
            read(path)
        except (ValueError, BrokerError) as error:
            assert str(error)  # noqa: PT017 - most inputs are refused, and the other readers are asked as well
    try:
        parse_own(data, data)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - most inputs are refused, and the other readers are asked as well
    for signing in parse_peers(data):
        assert signing.who.name


def _der(data: bytes) -> None:
    """A certificate as it comes in a handshake: names, hosts and days of it, or a ValueError."""
    identity = identify(data)
    assert len(identity.fingerprint) == 64
    assert identity.covers("gateway.example") in {True, False}


@cache
def targets() -> tuple[Target, ...]:
    """The targets of this file."""
    pem = issued("fuzzed")
    reign = b'{"broker_instance": "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11", "epoch": 3, "principal": "a", "since": 1.5}'
    seen = b'{"%s": {"starts": 3, "epoch": 3, "path": "/orders.db"}}' % KNOWN.encode()
    reader = b'[["q", 1, 0.0, null]]'
    token = (
        b'{"name": "ci", "role": "viewer", "sha256": "%s", "made_at": "2026-01-01T00:00:00+00:00", "expires_at": null}'
    )
    return (
        Target("role", _role, (StoreUnavailableError,), lambda: [reign, reign.replace(b"3", b"1e99"), b"[" * 999, b""]),
        Target(
            "tokens",
            _tokens,
            (TokenFileError,),
            lambda: [token % (b"0" * 64), (token % (b"0" * 64)).replace(b"null", b'"2026-01-01"'), b"[" * 999, b"\n\n"],
        ),
        Target(
            "seen", _seen, (StoreUnavailableError,), lambda: [seen, seen.replace(b"3", b"1e999"), b"[" * 999, b"{}"]
        ),
        Target("readers", _readers, (), lambda: [reader, reader.replace(b"0.0", b"1e99"), b"[" * RECORD_BYTES, b"5"]),
        Target("audit", _audit, (StoreUnavailableError,), _audit_seeds, input_max=8 * KIB),
        Target(
            "journal",
            _journal,
            (),
            lambda: [_parquet(), _parquet()[:200], b"PAR1PAR1", b""],
            input_max=32 * KIB,
            memory_max=32 * KIB * KIB,
        ),
        Target(
            "pem",
            _pem,
            (ValueError,),
            lambda: [pem.certificate_pem + pem.key_pem, pem.certificate_pem[:300], pem.key_pem, b"-----BEGIN"],
            words=("-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----", "-----BEGIN PRIVATE KEY-----"),
        ),
        Target("der", _der, (ValueError,), lambda: [*_ders(pem.certificate_pem), b"0\x80", b"0\x82\xff\xff"]),
    )


def _ders(pem: bytes) -> list[bytes]:
    """The first one, and the same of a version that there is not."""
    good = ssl.PEM_cert_to_DER_cert(
        pem.decode().partition("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n"
    )
    return [good, good.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x1c")]
