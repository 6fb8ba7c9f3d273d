"""
Whether a database file is the one it was: a copy must not impersonate the original.

A database has its identity, its conversations and its sequence numbers in its file, so a copy of the file that is used
next to the original, or an older copy in its place, would send and accept messages in its name, some of them twice.
Three things distinguish them:
- the file knows the number (inode) that it had at the last start of a daemon: a copy has another;
- it counts the starts and stops of daemons, and the instance keeps for each broker instance how many it has seen: an
  older copy that was put back into the same file has fewer;
- the epoch of the last takeover, which the principal writes next to the file (`role_file`): an older copy has a lower
  one.
A file that was renamed, or is used alternately by two instances on shared storage, passes: each instance knows only how
many starts and stops there were at least. Two kinds of copy are not detected: a copy of the whole machine or disk,
state directory included; and an older copy that was put back into the same file after a daemon was killed that had
started only once since.

Taking a database over raises its epoch, in the transaction that counts the start. From then on a process with an older
epoch commits nothing, wherever it runs (`transaction.writing`), so two that both act as the principal do no harm. The
new epoch is higher than any that is known, also where a backup was put back, because senders accept the highest.

Everything here is for the process that has the lock of the file (`lock_store`); `compare_file` only reads.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from broker.errors import DemotedError
from broker.files import changing, read_record, write_record
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.role_file import recorded_epoch
from broker.store.sqlite.transaction import BUSY_SECONDS, DaemonConnection, writing

RECORD = "databases.json"  # in the state directory
_SEEN = (
    "UPDATE broker_database SET starts = starts + 1, file_number = ?1,"
    " epoch = CASE WHEN ?2 IS NULL THEN epoch ELSE max(epoch + 1, ?2) END RETURNING epoch"
)
_DAMAGED = (
    "it does not hold what was written into it: restore it, or remove it; without it an older copy that was put back in"
    " place of a database is not noticed at the next start"
)
_KEEP = "UPDATE broker_database SET starts = max(starts, ?), epoch = max(epoch, ?), file_number = ?"


class Seen(msgspec.Struct, frozen=True):
    """
    The record that an instance keeps of a database.

    Attributes:
        starts: Its starts and stops when last seen.
        path: Its file then.
        epoch: Its epoch then.
        replaced: The broker instances of the lost databases in whose file it was made, empty once that was accepted.
    """

    starts: int
    path: str
    epoch: int = 0
    replaced: str = ""


class Sighting(NamedTuple):
    """
    The facts that distinguish a file from its copies.

    Attributes:
        number: The number of the file now (inode).
        known_number: Its number at the last start of a daemon, None before the first.
        starts: The count of starts and stops in the file.
        known_starts: The count known to this instance, 0 when it never had this database.
        last_path: Where this instance had it then.
        epoch: In the file.
        known_epoch: As recorded next to the file or known to this instance, 0 when nowhere.
        others: The broker instances of other databases that this instance had by this path.
        is_in_place: Whether this file is at `last_path` now.
    """

    number: int
    known_number: int | None
    starts: int
    known_starts: int = 0
    last_path: str = ""
    epoch: int = 0
    known_epoch: int = 0
    others: tuple[str, ...] = ()
    is_in_place: bool = False

    @property
    def is_known(self) -> bool:
        """Whether this instance ever had this database."""
        return self.known_starts > 0

    @property
    def problem(self) -> str:
        """Why this file must not be used as it is; empty when it may."""
        if self.known_number is not None and self.known_number != self.number:
            where = f"; this instance last used the original at {self.last_path}" if self.last_path else ""
            if self.is_in_place:
                where = "; it was put in the place of the original, as a restored backup is"
            return (
                f"error 9772: the file is a copy: it has number {self.number} (inode), and had {self.known_number} at"
                f" the last start of a daemon{where}"
            )
        if self.starts < self.known_starts:
            return (
                f"the file is older than what this instance has seen: it knows of {self.starts} starts and stops of"
                f" daemons, the instance of {self.known_starts}, so an older copy was put back, or the file was made"
                " again"
            )
        if self.epoch < self.known_epoch:
            return (
                f"the file is older than what is known of it: its epoch is {self.epoch}, and it was taken over in epoch"
                f" {self.known_epoch}, so an older copy was put back, or the file was made again"
            )
        return ""

    @property
    def lost(self) -> str:
        """A sentence about the databases that this file held before it was made again; empty when none is known."""
        return lost_sentence(self.others) if self.starts == 0 else ""


def lost_sentence(instances: Sequence[str]) -> str:
    """A sentence about databases that this instance had in a file and that are gone; empty when there were none."""
    if not instances:
        return ""
    named = ", ".join(instances).upper()
    return f"this instance had a database in this file, of broker instance {named}, which is no longer in it"


def instances_at(path: Path, state_dir: Path) -> tuple[str, ...]:
    """
    The broker instances of the databases that this instance had by this path, sorted.

    Raises:
        StoreUnavailableError: the record in the state directory cannot be read.
    """
    return _by_path(_read(state_dir), path)


def replaced_at(path: Path, state_dir: Path) -> str:
    """
    A sentence about the lost databases in whose place the database in this file was made; empty when there are none,
    or the new one was accepted.

    Raises:
        StoreUnavailableError: the record in the state directory cannot be read.
    """
    known = [one for one in _read(state_dir).values() if one.path == str(path.absolute()) and one.replaced]
    return lost_sentence(known[0].replaced.split(", ")) if known else ""


def accept_replacement(path: Path, state_dir: Path) -> bool:
    """
    Accept that the database in this file was made in place of a lost one, which is forgotten; True if that was still
    open. A daemon may have the file.

    Raises:
        StoreUnavailableError: the record in the state directory cannot be read or written.
    """
    lost = {name for one in _read(state_dir).values() for name in one.replaced.split(", ")}
    return _change(
        path, state_dir, lambda key, seen: None if key in lost else msgspec.structs.replace(seen, replaced="")
    )


def forget_lost(path: Path, state_dir: Path) -> bool:
    """
    Forget the databases that this instance had in this file, so that an empty one may be made; True if there were any.

    Raises:
        StoreUnavailableError: the record in the state directory cannot be read or written.
    """
    return _change(path, state_dir, lambda _key, _seen: None)


def compare_file(db: sqlite3.Connection, path: Path, state_dir: Path, *, reported_epoch: int = 0) -> Sighting:
    """
    Compare a database with what is known of it; nothing is changed.

    Args:
        db: The database.
        path: Its file.
        state_dir: The state directory of the instance.
        reported_epoch: The epoch of the last takeover that was reported to this instance, 0 = none.

    Raises:
        StoreUnavailableError: the record in the state directory, or the role file, cannot be read.
        sqlite3.Error, OSError: the file cannot be read.
    """
    number, starts, epoch = db.execute("SELECT file_number, starts, epoch FROM broker_database").fetchone()
    seen = _read(state_dir)
    known = seen.pop(_key(db), Seen(0, ""))
    return Sighting(
        number=path.stat().st_ino,
        known_number=number,
        starts=starts,
        known_starts=known.starts,
        last_path=known.path,
        epoch=epoch,
        known_epoch=max(known.epoch, recorded_epoch(path), reported_epoch),
        others=_by_path(seen, path),
        is_in_place=known.path == str(path.absolute()),
    )


def note_start(db: sqlite3.Connection, path: Path, state_dir: Path, *, least_epoch: int | None = None) -> int:
    """
    Count the start of a daemon on this file, in the file and in the state directory.

    Args:
        db: The database.
        path: Its file.
        state_dir: The state directory of the instance.
        least_epoch: Take the database over: its epoch becomes higher than all that are known, and at least this one.
            None leaves it as it is.

    Returns:
        The epoch from now on.

    Raises:
        StoreUnavailableError: the record in the state directory cannot be read or written.
        sqlite3.Error, OSError: the file cannot be read or written.
    """
    if least_epoch is not None:
        least_epoch = max(least_epoch, compare_file(db, path, state_dir).known_epoch + 1)
    with writing(db):
        ((epoch,),) = db.execute(_SEEN, (path.stat().st_ino, least_epoch)).fetchall()
    # After the commit: what the instance has seen is never more than what the file says.
    _write(db, path, state_dir)
    return int(epoch)


def note_stop(path: Path, state_dir: Path, epoch: int) -> None:
    """
    Count the stop of a daemon, on a separate connection, so that a copy from before this moment is recognized later.

    A file that has been replaced or removed since the start, or taken over by another daemon, is left alone.

    Raises:
        StoreUnavailableError: the record in the state directory cannot be read or written.
        sqlite3.Error, OSError: the file cannot be read or written.
    """
    address = f"{path.absolute().as_uri()}?mode=rw"
    db = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None, factory=DaemonConnection)
    with closing(db):
        db.epoch = epoch
        number = db.execute("SELECT file_number FROM broker_database").fetchone()[0]
        if number == path.stat().st_ino:
            with suppress(DemotedError):
                note_start(db, path, state_dir)


def accept_file(db: sqlite3.Connection, path: Path, state_dir: Path) -> None:
    """
    Accept this file as the database from now on, whatever it was. Call it inside a transaction.

    The file gets the count and the epoch that are known, so that senders accept the next takeover.

    Raises:
        StoreUnavailableError: the record in the state directory cannot be read.
        sqlite3.Error, OSError: the file cannot be read or written.
    """
    sighting = compare_file(db, path, state_dir)
    db.execute(_KEEP, (sighting.known_starts, sighting.known_epoch, sighting.number))


def _key(db: sqlite3.Connection) -> str:
    return str(uuid.UUID(bytes=broker_instance(db)))


def _by_path(seen: Mapping[str, Seen], path: Path) -> tuple[str, ...]:
    return tuple(sorted(key for key, one in seen.items() if one.path == str(path.absolute())))


def _read(state_dir: Path) -> dict[str, Seen]:
    """Return the instance's records of its databases, by broker instance."""
    return read_record(state_dir / RECORD, dict[str, Seen], _DAMAGED) or {}


def _write(db: sqlite3.Connection, path: Path, state_dir: Path) -> None:
    """Note the count of one database; the record is replaced as a whole, and on the disk before this returns."""
    starts, epoch = db.execute("SELECT starts, epoch FROM broker_database").fetchone()
    with changing(state_dir / RECORD):
        seen, key = _read(state_dir), _key(db)
        before = seen.get(key)
        lost = _by_path(seen, path) if before is None and starts == 1 else ()
        replaced = ", ".join(lost) if before is None else before.replaced
        seen[key] = Seen(starts, str(path.absolute()), epoch, replaced)
        write_record(state_dir / RECORD, msgspec.to_builtins(seen))


def _change(path: Path, state_dir: Path, change: Callable[[str, Seen], Seen | None]) -> bool:
    """Change, or remove, the records of the databases last seen in this file; True if that made a difference."""
    if not (state_dir / RECORD).exists():
        return False
    with changing(state_dir / RECORD):
        seen = _read(state_dir)
        after = {key: change(key, one) if one.path == str(path.absolute()) else one for key, one in seen.items()}
        kept = {key: one for key, one in after.items() if one is not None}
        if kept != seen:
            write_record(state_dir / RECORD, msgspec.to_builtins(kept))
        return kept != seen
