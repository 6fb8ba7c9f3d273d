"""
What waits in the transmission queue of a database, read from its file beside the daemon's own connection.

Blocking, so for a thread. A reader never waits for a writer, and no message is looked at.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from broker.store.database import open_watch
from broker.store.stock import Backlog, backlog_of


def read_backlog(path: Path) -> Backlog | None:
    """The backlog of the database in this file; None when the file cannot be read now."""
    try:
        with closing(open_watch(path)) as db:
            return backlog_of(db, time.time())
    except sqlite3.Error:
        return None
