"""
Single sides of conversations, as others than the writer of their database ask for them.

Reads only, on any connection to the database; each question is a look into an index, but for those under way and for
numbers of all, which are read through.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# Read at once. Each row lets go of the interpreter's lock for a moment too short for anybody else to take it, and who
# waits for it waits anew: reading and deciding in turns would hold up the loop for as long as both take.
ROWS = 1000
# Not those that are closed or failed: nothing of them is routed any more.
_UNDER_WAY = (
    "SELECT conversation_handle, conversation_id, is_initiator, service_name, far_service, far_broker_instance,"
    " send_sequence FROM broker_conversation WHERE state IN ('SO', 'SI', 'CO', 'DI', 'DO') ORDER BY endpoint_id"
)


class UnderWay(NamedTuple):
    """A side that may still send. Shape: GUIDs 16 bytes; `far_broker_instance` None = open; `is_initiator` 0 or 1."""

    conversation_handle: bytes
    conversation_id: bytes
    is_initiator: int
    service_name: str
    far_service: str
    far_broker_instance: bytes | None
    send_sequence: int


def handles_of(db: sqlite3.Connection, endpoint_ids: Iterable[int]) -> list[tuple[int, bytes]]:
    """(endpoint_id, conversation_handle) of each endpoint that still exists."""
    question = "SELECT endpoint_id, conversation_handle FROM broker_conversation WHERE endpoint_id = ?"
    found = (db.execute(question, (endpoint_id,)).fetchone() for endpoint_id in endpoint_ids)
    return [row for row in found if row is not None]


def conversations_under_way(db: sqlite3.Connection) -> Iterator[UnderWay]:
    """
    The sides that may still send, in the order in which they began; read `ROWS` at a time, as they are asked for.

    Raises:
        sqlite3.Error: the database cannot be read.
    """
    cursor = db.execute(_UNDER_WAY)
    while rows := cursor.fetchmany(ROWS):
        yield from map(UnderWay._make, rows)


def conversations_by_state(db: sqlite3.Connection) -> dict[str, int]:
    """How many conversations there are in each state, in the order of their codes."""
    return dict(db.execute("SELECT state, count(*) FROM broker_conversation GROUP BY state ORDER BY state").fetchall())
