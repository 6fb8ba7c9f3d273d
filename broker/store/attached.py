"""
The file of a database beside others on one connection: attached under a name, to be read by the views alone.

The connection is that of whoever asks: it holds no database of its own, and its questions are those of users. The names
are the caller's own, never a user's.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

# The tables that the views are made of, whose rows may be counted: count(*) reads no column, and for no view.
COUNTED = frozenset(
    {
        "broker_conversation",
        "broker_message",
        "broker_permission",
        "broker_queue",
        "broker_remote_service_binding",
        "broker_route",
        "broker_service",
        "broker_transmission",
    }
)


def attach(db: sqlite3.Connection, path: Path, alias: str) -> None:
    """
    Make the file readable under this name, read only.

    Raises:
        sqlite3.Error: it is not there, cannot be read, or is no database of the broker.
    """
    db.execute(f"ATTACH ? AS {alias}", (f"{path.absolute().as_uri()}?mode=ro",))
    db.execute(f"SELECT 1 FROM {alias}.broker_database").fetchone()  # noqa: S608 - the caller's own name


def queue_numbers(db: sqlite3.Connection, alias: str) -> dict[str, int]:
    """The number of each queue of an attached database, by name."""
    return dict(db.execute(f"SELECT name, queue_id FROM {alias}.broker_queue"))  # noqa: S608 - the caller's own name
