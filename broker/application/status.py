"""
GET TRANSMISSION STATUS: why what one side sent is not acknowledged yet, in a sentence that is never blank.

The daemon writes why it waits into the conversation's row; here stands what can be seen beside it: nothing is waiting,
it is not committed, no daemon is there.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from broker.store.rows import ask, path_of, plain

_ROW = (
    "SELECT c.transmission_status, c.send_sequence, c.state,"
    " (SELECT count(*) FROM broker_transmission t WHERE t.endpoint_id = c.endpoint_id)"
    " FROM broker_conversation c WHERE c.endpoint_id = ?"
)
_LOCKS = Path("/proc/locks")
_NAMESPACE = Path("/proc/self/ns/pid")
_ALL_PROCESSES = "pid:[4026531836]"  # the kernel's PROC_PID_INIT_INO


def transmission_status(db: sqlite3.Connection, endpoint_id: int) -> str:
    """The sentence. Raises: sqlite3.Error, the file cannot be read."""
    with plain(db):
        row = ask(db, _ROW, (endpoint_id,)).fetchone()
    if row is None:
        return "the conversation is over: nothing of it waits any more"
    said, sent, state, waiting = row
    if not waiting:
        if state == "ER":
            return "the conversation has failed: nothing of it will be sent any more; receive its Error message"
        return f"everything sent is acknowledged ({sent} messages)" if sent else "nothing has been sent yet"
    what = "1 message waits" if waiting == 1 else f"{waiting} messages wait"
    if has_daemon(path_of(db)) is False:
        before = f"; before that: {said}" if said else ""
        return f"{what}: no daemon has this database open, start broker serve{before}"
    if db.in_transaction:
        return f"{what}: nothing leaves before the transaction commits" + (f"; until then: {said}" if said else "")
    return str(said) if said else f"{what}: no daemon has taken them up yet"


def has_daemon(path: str) -> bool | None:
    """Whether a daemon has this database open, by the lock that it holds; None when that cannot be seen here."""
    try:
        inode = os.stat(f"{path}.lock").st_ino  # noqa: PTH116 - a name beside the file, not below it
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        locks = _LOCKS.read_text(encoding="ascii")
    except OSError:
        return None
    if any(f":{inode} " in line and " FLOCK " in line for line in locks.splitlines()):
        return True
    return False if _sees_all_processes() else None


def _sees_all_processes() -> bool:
    """Whether /proc/locks tells the locks of all processes; in a container it tells those of the container."""
    try:
        return str(_NAMESPACE.readlink()) == _ALL_PROCESSES
    except OSError:
        return False
