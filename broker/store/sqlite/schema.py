"""The version of the tables of a database, which `schema.sql` makes, and the sizes in which they hold bodies."""

from __future__ import annotations

import sqlite3

SCHEMA_VERSION = 8
OLDEST_VERSION = 1  # that can be migrated

# A body above LARGE_BYTES is never one value: neither in the memory of a process nor in a row of the file, where SQLite
# accepts 1,000,000,000 bytes at most. What is sent waits as parts (`broker_transmission_part`), what arrived as the
# fragments that brought it (`broker_fragment`).
LARGE_BYTES = 1024 * 1024  # one batch of the writer loads many messages: those up to this length whole
PART_BYTES = 256 * 1024  # a part is rewritten as one value: above it SQLite's overflow pages gain nothing

# The number of a message that is sent: above those of all messages and parts that are there. A number that SQLite gives
# by itself is never given again, but for that it writes its sequence table with each message.
NEXT_TRANSMISSION = (
    "1 + max(coalesce((SELECT max(transmission_id) FROM broker_transmission), 0),"
    " coalesce((SELECT max(transmission_id) FROM broker_transmission_part), 0))"
)


def schema_version(db: sqlite3.Connection) -> int:
    """The version of the schema in this file."""
    return int(db.execute("SELECT schema_version FROM broker_database").fetchone()[0])


def has_schema(db: sqlite3.Connection) -> bool:
    """Whether a database of the broker lives in this file."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'broker_database'").fetchone() is not None
