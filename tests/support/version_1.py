"""
A database file of schema version 1 with conversations in every state, as the release with that schema left it.

The statements are that release's `schema.sql` without its comments, and the rows that it wrote.
"""

import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

from broker.protocol.frame import Envelope, encode_envelope

INSTANCE = uuid.UUID("11111111-1111-4111-8111-111111111111")
FAR_INSTANCE = uuid.UUID("22222222-2222-4222-8222-222222222222")
LIFETIME = 4_000_000_000.0
LARGE = bytes(range(251)) * 8_000  # about 2 MB, which was one value then
QUEUE, HERE, FAR = "Inbox", "//shop/Orders", "//shop/Billing"
ERROR = "http://schemas.microsoft.com/SQL/ServiceBroker/Error"

SCHEMA = """
CREATE TABLE broker_database (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    schema_version INTEGER NOT NULL,
    broker_instance BLOB NOT NULL CHECK (length(broker_instance) = 16),
    create_date REAL NOT NULL,
    fragment_size INTEGER
);
CREATE TABLE broker_queue (
    queue_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    is_receive_enabled INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE broker_service (
    service_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    queue_id INTEGER NOT NULL REFERENCES broker_queue,
    contracts TEXT NOT NULL DEFAULT '[]'
);
CREATE TABLE broker_route (
    route_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    remote_service_name TEXT,
    broker_instance BLOB,
    lifetime REAL,
    address TEXT NOT NULL,
    mirror_address TEXT,
    weight INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE broker_conversation (
    endpoint_id INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation_handle BLOB NOT NULL UNIQUE,
    conversation_id BLOB NOT NULL,
    is_initiator INTEGER NOT NULL,
    conversation_group_id BLOB NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('SO', 'SI', 'CO', 'DI', 'DO', 'ER', 'CD')),
    service_name TEXT NOT NULL,
    far_service TEXT NOT NULL,
    far_broker_instance BLOB,
    contract TEXT NOT NULL,
    lifetime REAL NOT NULL,
    create_date REAL NOT NULL,
    send_sequence INTEGER NOT NULL DEFAULT 0,
    acknowledged_sequence INTEGER NOT NULL DEFAULT 0,
    receive_sequence INTEGER NOT NULL DEFAULT 0,
    receive_sequence_frag INTEGER NOT NULL DEFAULT 0,
    early_fragments INTEGER NOT NULL DEFAULT 0,
    end_dialog_sequence INTEGER,
    UNIQUE (conversation_id, is_initiator)
);
CREATE INDEX broker_conversation_lifetime ON broker_conversation (lifetime);
CREATE TABLE broker_transmission (
    transmission_id INTEGER PRIMARY KEY AUTOINCREMENT,
    endpoint_id INTEGER NOT NULL REFERENCES broker_conversation,
    message_sequence_number INTEGER NOT NULL,
    flags INTEGER NOT NULL DEFAULT 0,
    message_type_name TEXT NOT NULL,
    enqueue_time REAL NOT NULL,
    message_body BLOB NOT NULL,
    UNIQUE (endpoint_id, message_sequence_number)
);
CREATE TABLE broker_message (
    queuing_order INTEGER PRIMARY KEY AUTOINCREMENT,
    queue_id INTEGER NOT NULL,
    endpoint_id INTEGER NOT NULL,
    message_sequence_number INTEGER NOT NULL,
    message_type_name TEXT NOT NULL,
    message_enqueue_time REAL NOT NULL,
    message_body BLOB NOT NULL
);
CREATE INDEX broker_message_queue ON broker_message (queue_id, queuing_order);
CREATE INDEX broker_message_endpoint ON broker_message (endpoint_id);
CREATE TABLE broker_fragment (
    endpoint_id INTEGER NOT NULL,
    message_sequence_number INTEGER NOT NULL,
    fragment_number INTEGER NOT NULL,
    flags INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (endpoint_id, message_sequence_number, fragment_number)
) WITHOUT ROWID;
"""

# endpoint_id, is_initiator, state, is the far side known, send, acknowledged, receive, fragment, early, end
CONVERSATIONS = [
    (1, 1, "SO", False, 0, 0, 0, 0, 0, None),
    (2, 1, "CO", False, 3, 0, 0, 0, 0, None),  # nobody has answered yet
    (3, 0, "SI", True, 0, 0, 0, 1, 0, None),  # fragment 0 of its first message is here
    (4, 0, "CO", True, 2, 1, 5, 0, 1, None),  # fragment 1 of message 6 came early
    (5, 0, "DI", True, 0, 0, 2, 0, 0, None),
    (6, 1, "DO", True, 4, 3, 1, 0, 0, 3),  # its END DIALOG is on its way
    (7, 1, "ER", True, 3, 1, 0, 0, 0, None),  # two messages were given up
    (8, 1, "CD", True, 2, 2, 3, 0, 0, 1),
    (9, 0, "CD", True, 1, 1, 2, 0, 0, 0),
]
# endpoint_id, sequence, flags, body
WAITING = [(2, 0, 0, b"first"), (2, 1, 0, b""), (2, 2, 0, LARGE), (4, 1, 0, b"answer"), (6, 3, 8, b"")]
# endpoint_id, sequence, type, body
QUEUED = [(5, 0, "T", b"one"), (5, 1, "T", b"two"), (7, 0, ERROR, b"<Error/>")]


def handle(endpoint_id: int) -> uuid.UUID:
    """The handle of a conversation."""
    return uuid.UUID(int=0xA000 + endpoint_id)


def make(path: Path) -> None:
    """Write the file, in WAL mode and closed."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(SCHEMA)
        db.execute("BEGIN")
        db.execute("INSERT INTO broker_database VALUES (1, 1, ?, 1700000000.5, 65536)", (INSTANCE.bytes,))
        db.execute("INSERT INTO broker_queue VALUES (3, ?, 1), (4, 'Off', 0)", (QUEUE,))
        db.execute("INSERT INTO broker_service VALUES (2, ?, 3, '[\"C\"]')", (HERE,))
        db.execute("INSERT INTO broker_route (name, address, weight) VALUES ('AutoCreatedLocal', 'LOCAL', 1)")
        for conversation in CONVERSATIONS:
            db.execute(f"INSERT INTO broker_conversation VALUES ({', '.join('?' * 18)})", _conversation(*conversation))
        for number, (endpoint_id, sequence, flags, body) in enumerate(WAITING, 11):
            row = (number, endpoint_id, sequence, flags, "T", 1700000001.5, body)
            db.execute("INSERT INTO broker_transmission VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        for order, (endpoint_id, sequence, type_name, body) in enumerate(QUEUED, 21):
            row = (order, 3, endpoint_id, sequence, type_name, 1700000002.5, body)
            db.execute("INSERT INTO broker_message VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        opening = encode_envelope(Envelope(type="T", contract="C", lifetime=3600)) + b"begin"
        db.execute("INSERT INTO broker_fragment VALUES (3, 0, 0, 0, ?), (4, 6, 1, 2, x'33')", (opening,))
        # What was given once and is gone: numbers go on behind it.
        db.execute("UPDATE sqlite_sequence SET seq = seq + 100")
        db.execute("COMMIT")


def _conversation(endpoint_id: int, is_initiator: int, state: str, *rest: int | None) -> tuple[object, ...]:
    ids = (handle(endpoint_id).bytes, uuid.UUID(int=0xB000 + endpoint_id).bytes, is_initiator)
    is_known, *counts = rest
    far = FAR_INSTANCE.bytes if is_known else None
    group = uuid.UUID(int=0xC000 + endpoint_id).bytes
    return (endpoint_id, *ids, group, state, HERE, FAR, far, "C", LIFETIME, 1700000000.5, *counts)
