"""
What SQLite says of a file that cannot be used, as a sentence that tells what to do.

A file is shared with applications, administrators and backups, so whatever can be wrong with one will be. None of it is
a reason to end: the daemon rests, tries again, and goes on by itself when the cause is gone, unless the sentence says
otherwise.

Source: SQLite documentation, "Result and Error Codes", "How To Corrupt An SQLite Database File".
"""

from __future__ import annotations

import sqlite3
import time

_RESTORE = "put back a backup, or save what can be read with the .recover of the sqlite3 shell"
_SENTENCES = {
    sqlite3.SQLITE_BUSY: (
        "another connection keeps a write transaction open: end it, keep transactions short, and wait for nothing"
        " inside them"
    ),
    sqlite3.SQLITE_FULL: "the disk is full: make room, nothing else is needed",
    sqlite3.SQLITE_READONLY: (
        "the file cannot be written: the user of this program has to be allowed to write it, its directory, and the"
        " files ending in -wal and -shm beside it"
    ),
    sqlite3.SQLITE_PERM: "the file may not be used: let the user of this program read and write it and its directory",
    sqlite3.SQLITE_AUTH: "the file may not be used: let the user of this program read and write it and its directory",
    sqlite3.SQLITE_CANTOPEN: (
        "the file cannot be opened: it has to be a plain file, or none yet, in a directory that exists and that the"
        " user of this program may write"
    ),
    sqlite3.SQLITE_NOTADB: f"the file is no SQLite database, or its beginning was overwritten: {_RESTORE}",
    sqlite3.SQLITE_CORRUPT: f"the file is damaged: stop whoever uses it, and {_RESTORE}",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write: see the log of the system, and whether there is room",
    sqlite3.SQLITE_PROTOCOL: "the locks of the file do not work: keep it on a local disk of one machine",
}


LOOK_SECONDS = 1.0  # into one file
_LOOK_STEPS = 1_000  # of the machine in SQLite, between two looks at the clock
_NOT_OURS = "no database of the broker; name it in a daemon's configuration and start that once"


def is_about_file(error: sqlite3.DatabaseError) -> bool:
    """Whether an error tells of the file or of those who use it; else it is about a statement or its values."""
    return not isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.DataError)


def sentence(error: sqlite3.Error) -> str:
    """What is wrong with a file and what to do, with SQLite's own words in brackets; those alone when they say all."""
    if "no such table: broker_" in str(error):
        return _NOT_OURS
    known = _SENTENCES.get(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF)
    return str(error) if known is None else f"{known} ({error})"


def damage(db: sqlite3.Connection, *, seconds: float = LOOK_SECONDS) -> str:
    """
    What is damaged in a file and what to do, as far as a look of so many seconds reaches; empty when nothing was found.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    end = time.monotonic() + seconds
    db.set_progress_handler(lambda: time.monotonic() > end, _LOOK_STEPS)
    try:
        found = str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return ""
    finally:
        db.set_progress_handler(None, 0)
    return "" if found == "ok" else f"{_SENTENCES[sqlite3.SQLITE_CORRUPT]} ({' '.join(found.split())})"
