"""
The fragments of one endpoint that wait until their message is whole and in its turn.

Rows of `broker_fragment`, inside the transaction of whoever asks; for the writer thread. What a fragment is to the
receiver (expected, early, a duplicate) is decided by `broker.dialog.conversation`; here it is kept and joined.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

_OF_MESSAGE = "WHERE endpoint_id = ? AND message_sequence_number = ?"


@dataclass(frozen=True, slots=True)
class Assembly:
    """The kept fragments of one endpoint. Shape: a place is (sequence, fragment)."""

    db: sqlite3.Connection
    endpoint_id: int

    def keep(self, place: tuple[int, int], flags: int, body: bytes) -> bool:
        """Keep a fragment; False when it was here already."""
        cursor = self.db.execute(
            "INSERT OR IGNORE INTO broker_fragment VALUES (?, ?, ?, ?, ?)", (self.endpoint_id, *place, flags, body)
        )
        return cursor.rowcount > 0

    def flags(self, place: tuple[int, int]) -> int | None:
        """The flags of a kept fragment; None when it is not here."""
        row = self.db.execute(
            f"SELECT flags FROM broker_fragment {_OF_MESSAGE} AND fragment_number = ?",  # noqa: S608 - a literal above
            (self.endpoint_id, *place),
        ).fetchone()
        return None if row is None else int(row[0])

    def collect(self, sequence: int, last: int) -> tuple[bytes, int]:
        """
        The kept fragments of a message up to its last one, joined in order; no fragment of it is kept any longer.

        Returns:
            The joined bodies, and how many fragments were kept that lie behind the last: strays of a broken sender.
        """
        key = (self.endpoint_id, sequence)
        rows = self.db.execute(
            f"SELECT fragment_number, body FROM broker_fragment {_OF_MESSAGE} ORDER BY fragment_number",  # noqa: S608 - likewise
            key,
        ).fetchall()
        self.db.execute(f"DELETE FROM broker_fragment {_OF_MESSAGE}", key)  # noqa: S608 - likewise
        return b"".join(body for number, body in rows if number <= last), sum(number > last for number, _ in rows)

    def discard(self) -> None:
        """Keep nothing more."""
        self.db.execute("DELETE FROM broker_fragment WHERE endpoint_id = ?", (self.endpoint_id,))
