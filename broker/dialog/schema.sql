-- What a database of the broker keeps, version 1. The application's own tables live beside these in the same file.
-- GUIDs are blobs of 16 bytes (RFC 9562 order); instants are UTC seconds since 1970 as REAL; names compare byte for byte.

CREATE TABLE broker_database (
    id                INTEGER PRIMARY KEY CHECK (id = 1),
    schema_version    INTEGER NOT NULL,
    broker_instance   BLOB NOT NULL CHECK (length(broker_instance) = 16),
    create_date       REAL NOT NULL,
    fragment_size     INTEGER                           -- by which what waits here is cut; NULL before the first start
);

CREATE TABLE broker_queue (
    queue_id            INTEGER PRIMARY KEY,
    name                TEXT NOT NULL UNIQUE,
    is_receive_enabled  INTEGER NOT NULL DEFAULT 1      -- STATUS = ON
);

CREATE TABLE broker_service (
    service_id  INTEGER PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    queue_id    INTEGER NOT NULL REFERENCES broker_queue,
    contracts   TEXT NOT NULL DEFAULT '[]'              -- JSON list; empty = any contract
);

CREATE TABLE broker_route (
    route_id             INTEGER PRIMARY KEY,
    name                 TEXT NOT NULL UNIQUE,
    remote_service_name  TEXT,                          -- NULL = any
    broker_instance      BLOB,                          -- NULL = any
    lifetime             REAL,                          -- instant of expiry, NULL = never
    address              TEXT NOT NULL,
    mirror_address       TEXT,
    weight               INTEGER NOT NULL DEFAULT 1
);

-- One row for each side of a dialog that lives here; a closed one stays as the replay guard.
CREATE TABLE broker_conversation (
    endpoint_id            INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again: the daemon remembers by it
    conversation_handle    BLOB NOT NULL UNIQUE,        -- of this side
    conversation_id        BLOB NOT NULL,               -- shared by both sides
    is_initiator           INTEGER NOT NULL,
    conversation_group_id  BLOB NOT NULL,
    state                  TEXT NOT NULL CHECK (state IN ('SO', 'SI', 'CO', 'DI', 'DO', 'ER', 'CD')),
    service_name           TEXT NOT NULL,
    far_service            TEXT NOT NULL,
    far_broker_instance    BLOB,                        -- NULL = open
    contract               TEXT NOT NULL,
    lifetime               REAL NOT NULL,               -- instant at which the dialog expires
    create_date            REAL NOT NULL,
    send_sequence          INTEGER NOT NULL DEFAULT 0,  -- next to send
    acknowledged_sequence  INTEGER NOT NULL DEFAULT 0,  -- everything before it is stored at the far side
    receive_sequence       INTEGER NOT NULL DEFAULT 0,  -- next expected ...
    receive_sequence_frag  INTEGER NOT NULL DEFAULT 0,  -- ... and its next fragment
    early_fragments        INTEGER NOT NULL DEFAULT 0,  -- rows of broker_fragment that arrived out of order
    end_dialog_sequence    INTEGER,                     -- our END DIALOG
    UNIQUE (conversation_id, is_initiator)
);
CREATE INDEX broker_conversation_lifetime ON broker_conversation (lifetime);

-- Sent by an application here and not yet acknowledged by the far side.
CREATE TABLE broker_transmission (
    transmission_id          INTEGER PRIMARY KEY AUTOINCREMENT,  -- grows with every commit, so new rows are found by it
    endpoint_id              INTEGER NOT NULL REFERENCES broker_conversation,
    message_sequence_number  INTEGER NOT NULL,
    flags                    INTEGER NOT NULL DEFAULT 0,         -- END_DIALOG 8, ERROR 16
    message_type_name        TEXT NOT NULL,
    enqueue_time             REAL NOT NULL,
    message_body             BLOB NOT NULL,
    UNIQUE (endpoint_id, message_sequence_number)
);

-- Received whole and in order, waiting for RECEIVE.
CREATE TABLE broker_message (
    queuing_order            INTEGER PRIMARY KEY AUTOINCREMENT,
    queue_id                 INTEGER NOT NULL,
    endpoint_id              INTEGER NOT NULL,
    message_sequence_number  INTEGER NOT NULL,
    message_type_name        TEXT NOT NULL,
    message_enqueue_time     REAL NOT NULL,
    message_body             BLOB NOT NULL
);
CREATE INDEX broker_message_queue ON broker_message (queue_id, queuing_order);
CREATE INDEX broker_message_endpoint ON broker_message (endpoint_id);

-- Received, but not yet part of a whole message in order.
CREATE TABLE broker_fragment (
    endpoint_id              INTEGER NOT NULL,
    message_sequence_number  INTEGER NOT NULL,
    fragment_number          INTEGER NOT NULL,
    flags                    INTEGER NOT NULL,
    body                     BLOB NOT NULL,
    PRIMARY KEY (endpoint_id, message_sequence_number, fragment_number)
) WITHOUT ROWID;
