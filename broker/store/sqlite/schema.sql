-- What a database of the broker keeps, version 8. The application's own tables live beside these in the same file.
-- GUIDs are blobs of 16 bytes (RFC 9562 order); instants are UTC seconds since 1970 as REAL; names compare byte for byte.

CREATE TABLE broker_database (
    id                INTEGER PRIMARY KEY CHECK (id = 1),
    schema_version    INTEGER NOT NULL,
    broker_instance   BLOB NOT NULL CHECK (length(broker_instance) = 16),
    create_date       REAL NOT NULL,
    fragment_size     INTEGER,                          -- by which what waits here is cut; NULL before the first start
    file_number       INTEGER,                          -- of the file at the last start of a daemon: a copy has another
    starts            INTEGER NOT NULL DEFAULT 0,       -- and stops of daemons: an older copy, put back, has fewer
    epoch             INTEGER NOT NULL DEFAULT 0,       -- raised by every takeover: who has an older one commits nothing
    certificate       TEXT                              -- its subject, as the daemon last found it; NULL = it has none
);

-- --- what the statements make ---

CREATE TABLE broker_queue (
    queue_id                            INTEGER PRIMARY KEY,
    name                                TEXT NOT NULL UNIQUE,
    is_receive_enabled                  INTEGER NOT NULL DEFAULT 1,  -- STATUS = ON
    is_poison_message_handling_enabled  INTEGER NOT NULL DEFAULT 0,  -- five rollbacks in a row turn the queue off
    rollbacks                           INTEGER NOT NULL DEFAULT 0   -- in a row, counted only where that is enabled
);

CREATE TABLE broker_message_type (
    message_type_id  INTEGER PRIMARY KEY,
    name             TEXT NOT NULL UNIQUE,
    validation       TEXT NOT NULL CHECK (validation IN ('NONE', 'EMPTY', 'WELL_FORMED_XML', 'JSON'))
);

CREATE TABLE broker_contract (
    contract_id  INTEGER PRIMARY KEY,
    name         TEXT NOT NULL UNIQUE
);

CREATE TABLE broker_contract_message_type (
    contract_id      INTEGER NOT NULL REFERENCES broker_contract,
    message_type_id  INTEGER NOT NULL REFERENCES broker_message_type,
    sent_by          TEXT NOT NULL CHECK (sent_by IN ('INITIATOR', 'TARGET', 'ANY')),
    PRIMARY KEY (contract_id, message_type_id)
) WITHOUT ROWID;

CREATE TABLE broker_service (
    service_id  INTEGER PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    queue_id    INTEGER NOT NULL REFERENCES broker_queue,
    contracts   TEXT NOT NULL DEFAULT '[]',             -- JSON list; empty = any contract
    is_exclusive_target  INTEGER NOT NULL DEFAULT 0     -- its messages wait until the initiator has this database alone
);

CREATE TABLE broker_priority (
    priority_id          INTEGER PRIMARY KEY,
    name                 TEXT NOT NULL UNIQUE,
    contract_name        TEXT,                          -- NULL = any
    local_service_name   TEXT,                          -- NULL = any
    remote_service_name  TEXT,                          -- NULL = any
    priority_level       INTEGER NOT NULL CHECK (priority_level BETWEEN 1 AND 10)
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

-- Who may do what: CONNECT to the endpoint, SEND to a service.
CREATE TABLE broker_permission (
    permission_id  INTEGER PRIMARY KEY,
    permission     TEXT NOT NULL CHECK (permission IN ('CONNECT', 'SEND')),
    securable      TEXT NOT NULL,                       -- the endpoint or the service; * stands for any characters
    principal      TEXT NOT NULL,                       -- public, a subject, a URI, a fingerprint
    state          TEXT NOT NULL CHECK (state IN ('GRANT', 'DENY')),
    UNIQUE (permission, securable, principal)
);

-- For whom dialogs with a far service are sealed.
CREATE TABLE broker_remote_service_binding (
    remote_service_binding_id  INTEGER PRIMARY KEY,
    name                       TEXT NOT NULL UNIQUE,
    remote_service_name        TEXT NOT NULL UNIQUE,
    remote_principal           TEXT NOT NULL,
    is_anonymous_on            INTEGER NOT NULL DEFAULT 0
);

-- --- conversations ---

-- One row for each side of a dialog that lives here; what is left of a closed one is its tombstone.
CREATE TABLE broker_conversation (
    endpoint_id               INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again: the daemon remembers by it
    conversation_handle       BLOB NOT NULL UNIQUE,     -- of this side
    conversation_id           BLOB NOT NULL,            -- shared by both sides
    is_initiator              INTEGER NOT NULL,
    conversation_group_id     BLOB NOT NULL,
    state                     TEXT NOT NULL CHECK (state IN ('SO', 'SI', 'CO', 'DI', 'DO', 'ER', 'CD')),
    service_name              TEXT NOT NULL,
    far_service               TEXT NOT NULL,
    far_broker_instance       BLOB,                     -- NULL = open
    contract                  TEXT NOT NULL,
    priority                  INTEGER NOT NULL DEFAULT 5,  -- 1 .. 10, fixed when the conversation is made
    lifetime                  REAL NOT NULL,            -- instant at which the dialog expires
    create_date               REAL NOT NULL,
    dialog_timer              REAL,                     -- instant at which a DialogTimer message is due
    send_sequence             INTEGER NOT NULL DEFAULT 0,  -- next to send
    acknowledged_sequence     INTEGER NOT NULL DEFAULT 0,  -- everything before it is stored at the far side
    receive_sequence          INTEGER NOT NULL DEFAULT 0,  -- next expected ...
    receive_sequence_frag     INTEGER NOT NULL DEFAULT 0,  -- ... and its next fragment
    early_fragments           INTEGER NOT NULL DEFAULT 0,  -- rows of broker_fragment that arrived out of order
    is_opening_acknowledged   INTEGER NOT NULL DEFAULT 0,  -- target: 1 = the initiator is known to have an answer,
                                                        -- 0 = naming this database will prove it, -1 = will not
    end_dialog_sequence       INTEGER,                  -- our END DIALOG
    transmission_status       TEXT,                     -- why it waits, as the daemon last said; NULL = nothing is said
    transmission_status_time  REAL,
    UNIQUE (conversation_id, is_initiator)
);
CREATE INDEX broker_conversation_lifetime ON broker_conversation (lifetime);
CREATE INDEX broker_conversation_group ON broker_conversation (conversation_group_id);
CREATE INDEX broker_conversation_timer ON broker_conversation (dialog_timer) WHERE dialog_timer IS NOT NULL;

-- A closed side, as long as the far side may send again: enough to acknowledge it, and to take nothing twice.
CREATE TABLE broker_tombstone (
    conversation_id        BLOB NOT NULL,
    is_initiator           INTEGER NOT NULL,
    receive_sequence       INTEGER NOT NULL,
    receive_sequence_frag  INTEGER NOT NULL,
    close_time             REAL NOT NULL,
    expire_time            REAL NOT NULL,
    conversation_handle    BLOB,                        -- by which its application knew it; NULL before version 6
    service_name           TEXT,                        -- this and the next as in broker_conversation;
    far_service            TEXT,                        -- NULL before version 7
    far_broker_instance    BLOB,
    PRIMARY KEY (conversation_id, is_initiator)
) WITHOUT ROWID;
CREATE INDEX broker_tombstone_expire ON broker_tombstone (expire_time);

-- How a side of a dialog is sealed, from its beginning until its tombstone goes; one in clear has no row.
CREATE TABLE broker_session_key (
    conversation_id     BLOB NOT NULL,
    is_initiator        INTEGER NOT NULL,
    security            TEXT NOT NULL CHECK (security IN ('FULL', 'ANONYMOUS', 'NONE')),  -- NONE: initiator: asked for,
                                                        -- and there was no binding; target: it began in this instance
    far_principal       TEXT,                           -- who alone has it: as the binding says, or the certificate
    far_certificate     TEXT,                           -- sha256: of that certificate, as last used
    security_timestamp  REAL NOT NULL,                  -- instant since which it is sealed
    secret              BLOB CHECK (length(secret) = 32),  -- anonymous: from which the keys both ways are derived
    PRIMARY KEY (conversation_id, is_initiator)
) WITHOUT ROWID;

-- --- messages ---

-- Sent by an application here and not yet acknowledged by the far side.
CREATE TABLE broker_transmission (
    transmission_id          INTEGER PRIMARY KEY AUTOINCREMENT,  -- above those of all rows, and parts, that are there
    endpoint_id              INTEGER NOT NULL REFERENCES broker_conversation,
    message_sequence_number  INTEGER NOT NULL,
    flags                    INTEGER NOT NULL DEFAULT 0,         -- END_DIALOG 8, ERROR 16, TRACE 32
    message_type_name        TEXT NOT NULL,
    enqueue_time             REAL NOT NULL,
    message_body             BLOB,                               -- NULL: in parts
    body_length              INTEGER,                            -- of a body in parts
    headers                  TEXT,                               -- JSON object of text by name; NULL = none
    UNIQUE (endpoint_id, message_sequence_number)
);

-- The body of a large message: parts of 256 KiB, the last one shorter.
CREATE TABLE broker_transmission_part (
    transmission_id  INTEGER NOT NULL,
    part_number      INTEGER NOT NULL,
    body             BLOB NOT NULL,
    PRIMARY KEY (transmission_id, part_number)
) WITHOUT ROWID;

-- Received whole and in order, waiting for RECEIVE.
CREATE TABLE broker_message (
    queuing_order            INTEGER PRIMARY KEY AUTOINCREMENT,  -- a daemon reserves them in blocks: there are gaps
    queue_id                 INTEGER NOT NULL,
    status                   INTEGER NOT NULL DEFAULT 1,         -- 1 ready, 2 not confirmed, 4 in quarantine
    priority                 INTEGER NOT NULL DEFAULT 5,         -- of its conversation; 11 an error, 12 a timer
    endpoint_id              INTEGER NOT NULL,
    message_sequence_number  INTEGER NOT NULL,
    message_type_name        TEXT NOT NULL,
    message_enqueue_time     REAL NOT NULL,
    message_body             BLOB,                               -- NULL: in the fragments as they came
    body_fragments           INTEGER,                            -- how many those are
    headers                  TEXT                                -- as in broker_transmission
);
CREATE INDEX broker_message_queue ON broker_message (queue_id, status, priority DESC, queuing_order);
CREATE INDEX broker_message_endpoint ON broker_message (endpoint_id, status, priority DESC);

-- Received: not yet part of a whole message in order, or the body of a large one until that has been received.
CREATE TABLE broker_fragment (
    endpoint_id              INTEGER NOT NULL,
    message_sequence_number  INTEGER NOT NULL,
    fragment_number          INTEGER NOT NULL,
    flags                    INTEGER NOT NULL,
    body                     BLOB NOT NULL,
    PRIMARY KEY (endpoint_id, message_sequence_number, fragment_number)
) WITHOUT ROWID;

-- Large messages that applications have received: their fragments are removed by and by.
CREATE TABLE broker_received (
    endpoint_id              INTEGER NOT NULL,
    message_sequence_number  INTEGER NOT NULL,
    PRIMARY KEY (endpoint_id, message_sequence_number)
) WITHOUT ROWID;

-- --- readers ---

-- Conversation groups that a reader works on, or that rest after a failure.
CREATE TABLE broker_group_lock (
    conversation_group_id  BLOB PRIMARY KEY,
    reader                 INTEGER,                     -- the reader's slot in the lock file; NULL = it rests
    lock_time              REAL NOT NULL,
    retry_time             REAL                         -- instant before which nobody takes it
) WITHOUT ROWID;

-- Dialogs whose next message made its reader fail.
CREATE TABLE broker_failure (
    endpoint_id              INTEGER PRIMARY KEY,
    message_sequence_number  INTEGER NOT NULL,
    failures                 INTEGER NOT NULL,          -- in a row
    first_failure_time       REAL NOT NULL,
    last_failure_time        REAL NOT NULL,
    quarantine_time          REAL,                      -- NULL = it is tried again
    error                    TEXT NOT NULL,             -- type and text of the exception
    traceback                TEXT NOT NULL
);

-- --- the ledger ---

-- Messages by what became of them, where no row tells it any more. Entries: 'sent' and 'acknowledged' of conversations
-- that were removed; anything else is the reason for which messages will never be sent.
CREATE TABLE broker_ledger (
    entry     TEXT PRIMARY KEY,
    messages  INTEGER NOT NULL
) WITHOUT ROWID;
