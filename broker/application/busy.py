"""
What an application is told of a file that cannot be used: above all that others write to it, and who that is.

SQLite locks one byte of the file beside the database for as long as a transaction writes. Linux lists such locks with
the process that holds them, and nothing has to be opened to read that: to open and close the file itself would end the
locks of this very process.

Source: SQLite documentation, "WAL-mode File Format", section 2.3, "WAL Locks"; proc_locks(5).
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from broker.errors import StoreBusyError, StoreUnavailableError
from broker.store.fault import sentence

_LOCKS = Path("/proc/locks")
_PROCESSES = Path("/proc")
_WRITE_LOCK_AT = 120  # byte of the shared-memory file; WAL_WRITE_LOCK
_FIELDS = 8  # number, kind, mode, access, process, file, first byte, last byte


_TOO_OLD = (
    "this transaction has read before another connection wrote, so it cannot write any more: roll it back and begin it"
    " again, with BEGIN IMMEDIATE, or with the broker's call first"
)


def unavailable(path: str, error: sqlite3.Error, waited_s: float) -> StoreUnavailableError:
    """What a call raises for what SQLite says of a file, after it has waited so long for others who write."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return StoreUnavailableError(path, _TOO_OLD)
    if code & 0xFF != sqlite3.SQLITE_BUSY:
        return StoreUnavailableError(path, sentence(error))
    pid = holder_of(path)
    return StoreBusyError(path, _problem(pid, waited_s), waited_s, pid)


def holder_of(path: str) -> int | None:
    """
    The process that has the write lock of this database at the moment; None when nobody has it or that cannot be seen.

    A container tells of its own processes only.
    """
    try:
        inode = os.stat(f"{path}-shm").st_ino  # noqa: PTH116 - a name beside the file, not below it
        lines = _LOCKS.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    for line in lines:
        fields = line.split()
        if len(fields) == _FIELDS and fields[1] == "POSIX" and fields[3] == "WRITE":  # one that waits has a "->" more
            _, _, _, _, pid, file, first, last = fields
            is_there = file.rpartition(":")[2] == str(inode)
            if is_there and int(first) <= _WRITE_LOCK_AT and (last == "EOF" or int(last) >= _WRITE_LOCK_AT):
                return int(pid) if int(pid) > 0 else None
    return None


def _problem(pid: int | None, waited_s: float) -> str:
    others = f"others were writing for all of the {waited_s:.1f} s that this call waited, so nothing was done"
    if pid is None:
        who = "which process it was cannot be seen here"
    elif pid == os.getpid():
        who = "another connection of this very process has a write transaction open"
    else:
        name = _name(pid)
        who = f"process {pid}{f' ({name})' if name else ''} has a write transaction open"
    return f"{others}; {who}: end that, keep transactions short, wait for nothing inside them, and call again"


def _name(pid: int) -> str:
    """Of a program, not its arguments: those may hold what no log shall."""
    try:
        return (_PROCESSES / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
