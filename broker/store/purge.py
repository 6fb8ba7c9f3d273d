"""
What has served is removed in slices: tombstones, the fragments of large messages that were received, and what belonged
to conversations and messages that are gone.

For the writer thread. Removing a gigabyte at once would keep everybody from the file for seconds, so those who receive,
end or acknowledge a large message only take away its row; its pieces go here, a few megabytes a turn.
"""

from __future__ import annotations

import sqlite3

from broker.store.tombstone import purge_tombstones

TOMBSTONES = 256  # removed in one turn
PIECES = 64  # likewise of fragments and parts: 4 MiB and 16 MiB of the usual size
LOOKS = 256  # endpoints or messages looked at in one turn for pieces that belong to nothing

_RECEIVED = "SELECT endpoint_id, message_sequence_number FROM broker_received LIMIT 1"
_DONE = "DELETE FROM broker_received WHERE endpoint_id = ? AND message_sequence_number = ?"
_OF_MESSAGE = (
    "DELETE FROM broker_fragment WHERE endpoint_id = ?1 AND message_sequence_number = ?2 AND fragment_number IN"
    " (SELECT fragment_number FROM broker_fragment WHERE endpoint_id = ?1 AND message_sequence_number = ?2 LIMIT ?3)"
)
_OF_ENDPOINT = (
    "DELETE FROM broker_fragment WHERE endpoint_id = ?1 AND (message_sequence_number, fragment_number) IN"
    " (SELECT message_sequence_number, fragment_number FROM broker_fragment WHERE endpoint_id = ?1 LIMIT ?2)"
)
_OF_TRANSMISSION = (
    "DELETE FROM broker_transmission_part WHERE transmission_id = ?1 AND part_number IN"
    " (SELECT part_number FROM broker_transmission_part WHERE transmission_id = ?1 LIMIT ?2)"
)
_NEXT_ENDPOINT = "SELECT min(endpoint_id) FROM broker_fragment WHERE endpoint_id > ?"
_HAS_ENDPOINT = "SELECT 1 FROM broker_conversation WHERE endpoint_id = ?"
_FAILURE_OF_ENDPOINT = (
    "DELETE FROM broker_failure WHERE endpoint_id IN"
    " (SELECT endpoint_id FROM broker_failure WHERE endpoint_id = ?1 LIMIT ?2)"
)
_NEXT_FAILURE = "SELECT min(endpoint_id) FROM broker_failure WHERE endpoint_id > ?"
_NEXT_TRANSMISSION = "SELECT min(transmission_id) FROM broker_transmission_part WHERE transmission_id > ?"
_HAS_TRANSMISSION = "SELECT 1 FROM broker_transmission WHERE transmission_id = ?"


class Purge:
    """The walks through what may have served. Used by the writer thread only."""

    def __init__(self) -> None:
        self._orphans = (
            _PurgeWalk(_NEXT_ENDPOINT, _HAS_ENDPOINT, _OF_ENDPOINT),
            _PurgeWalk(_NEXT_FAILURE, _HAS_ENDPOINT, _FAILURE_OF_ENDPOINT),
            _PurgeWalk(_NEXT_TRANSMISSION, _HAS_TRANSMISSION, _OF_TRANSMISSION),
        )

    def has_work(self, db: sqlite3.Connection, now: float) -> bool:
        """Whether anything may have to be removed."""
        is_due = "SELECT 1 FROM broker_tombstone WHERE expire_time <= ? LIMIT 1"
        if db.execute(is_due, (now,)).fetchone() or db.execute(_RECEIVED).fetchone():
            return True
        found = [walk.find(db) for walk in self._orphans]  # each of them goes on
        return any(owner is not None for owner in found)

    def run(self, db: sqlite3.Connection, now: float) -> bool:
        """One slice, inside a transaction; whether there may be more."""
        has_more = purge_tombstones(db, now, TOMBSTONES)
        row = db.execute(_RECEIVED).fetchone()
        if row is not None:
            if db.execute(_OF_MESSAGE, (*row, PIECES)).rowcount < PIECES:
                db.execute(_DONE, row)
            has_more = True
        for walk in self._orphans:
            has_more |= walk.run(db)
        return has_more


class _PurgeWalk:
    """Looks through the owners of pieces, some at a time, for one that is gone."""

    def __init__(self, following: str, has_owner: str, remove: str) -> None:
        self._following = following
        self._has_owner = has_owner
        self._remove = remove
        self._after = -1

    def find(self, db: sqlite3.Connection) -> int | None:
        """The next owner that is gone, within LOOKS."""
        for _ in range(LOOKS):
            (owner,) = db.execute(self._following, (self._after,)).fetchone()
            if owner is None:
                self._after = -1
                return None
            if db.execute(self._has_owner, (owner,)).fetchone() is None:
                return int(owner)
            self._after = owner
        return None

    def run(self, db: sqlite3.Connection) -> bool:
        """Remove some pieces of one that is gone; whether one was found."""
        owner = self.find(db)
        if owner is not None:
            db.execute(self._remove, (owner, PIECES))
        return owner is not None
