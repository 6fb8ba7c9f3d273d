"""
What waits in the transmission queue of a database, read from its file beside the daemon's own connection.

Blocking, so for a thread. A reader never waits for a writer, and neither question looks at a message: the count walks
an index, the oldest row is the first.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from broker.store.database import open_watch


@dataclass(frozen=True, slots=True)
class Backlog:
    """Shape: `messages` sent by applications and not yet acknowledged; `oldest_s` age of the first, 0 when none."""

    messages: int = 0
    oldest_s: float = 0.0


def read_backlog(path: Path) -> Backlog | None:
    """The backlog of the database in this file; None when the file cannot be read now."""
    try:
        with closing(open_watch(path)) as db:
            (messages,) = db.execute("SELECT count(*) FROM broker_transmission").fetchone()
            row = db.execute("SELECT enqueue_time FROM broker_transmission ORDER BY transmission_id LIMIT 1").fetchone()
    except sqlite3.Error:
        return None
    return Backlog(messages, 0.0 if row is None else max(0.0, time.time() - row[0]))
