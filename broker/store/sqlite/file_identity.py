"""
Whether a database file is the one it was: a copy must not impersonate the original.

A database has its identity, its conversations and its sequence numbers in its file, so a copy of the file that is used
beside the original, or an older copy in its place, would send and take messages in its name, some of them twice. Two
things tell them apart. The file knows the number (inode) that it had at the last start of a daemon: a copy has another.
It also counts the starts and stops of daemons, and the instance keeps for each broker instance how many it has seen: an
older copy that was put back into the same file has fewer. What a mirror knows is the epoch that its principal tells
beside the file (`role_file`): an older copy has a lower one. A file that was renamed, or is used by two instances in
turn on shared storage, passes: each instance knows only how many there were at least.

What passes unseen: a copy of the whole machine or disk, state directory and all; an older copy that was put back into
the same file behind a daemon that was killed and had started only once since.

Taking a database over raises its epoch, in the transaction that counts the start. Whoever has an older epoch commits
nothing any more, wherever it comes from (`transaction.writing`), so two that both think they are the principal do no
harm.
The new epoch is higher than any that is known, also where a backup was put back: those who send believe the highest.

Everything here is for whoever has the lock of the file (`lock_store`), but for `look`, which only reads.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from broker.conversation.message_types import ERROR, ERROR_PRIORITY, error_body
from broker.errors import DemotedError, StoreUnavailableError
from broker.files import changing, write_record
from broker.protocol.layout import Flag
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.role_file import told_epoch
from broker.store.sqlite.side import ACKNOWLEDGED, SENT
from broker.store.sqlite.transaction import BUSY_SECONDS, DaemonConnection, writing

RECORD = "databases.json"  # in the state directory
_SEEN = (
    "UPDATE broker_database SET starts = starts + 1, file_number = ?1,"
    " epoch = CASE WHEN ?2 IS NULL THEN epoch ELSE max(epoch + 1, ?2) END RETURNING epoch"
)
_KEEP = "UPDATE broker_database SET starts = max(starts, ?), epoch = max(epoch, ?), file_number = ?"


class Sighting(NamedTuple):
    """
    What tells a file from its copies.

    Shape: `number` of the file now, `known_number` at the last start of a daemon, None before the first; `starts` in
    the file, `known_starts` to this instance, 0 when it never had this database; `last_path` where it had it then,
    `is_in_place` whether this file is there now; `epoch` in the file, `known_epoch` as it is told beside the file or
    known to this instance, 0 when nowhere; `others` the broker instances of other databases that this instance had by
    this path.
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
                f" daemons, the instance of {self.known_starts}, so an older copy was put back, or it was made anew"
            )
        if self.epoch < self.known_epoch:
            return (
                f"the file is older than what is known of it: its epoch is {self.epoch}, and it was taken over in epoch"
                f" {self.known_epoch}, so an older copy was put back, or it was made anew"
            )
        return ""

    @property
    def lost(self) -> str:
        """What the file held before it was made anew, as far as this instance knows; empty when nothing."""
        return lost_sentence(self.others) if self.starts == 0 else ""


def lost_sentence(instances: Sequence[str]) -> str:
    """That databases are gone which this instance had in a file; empty when there were none."""
    if not instances:
        return ""
    named = ", ".join(instances)
    return f"this instance had a database in this file, of broker instance {named}, and it is not in it any more"


def had(path: Path, state_dir: Path) -> tuple[str, ...]:
    """
    The broker instances of the databases that this instance had by this path, sorted.

    Raises:
        StoreUnavailableError: the record in the state directory cannot be read.
    """
    return _by_path(_read(state_dir), path)


def look(db: sqlite3.Connection, path: Path, state_dir: Path, *, told: int = 0) -> Sighting:
    """
    What there is to be seen of a database; nothing is changed.

    Args:
        db: The database.
        path: Its file.
        state_dir: That of the instance.
        told: The epoch of the last takeover of which this instance was told, 0 = of none.

    Raises:
        StoreUnavailableError: the record in the state directory, or what is told beside the file, cannot be read.
        sqlite3.Error, OSError: the file cannot be read.
    """
    number, starts, epoch = db.execute("SELECT file_number, starts, epoch FROM broker_database").fetchone()
    seen = _read(state_dir)
    known = seen.pop(_key(db), {"starts": 0, "path": "", "epoch": 0})
    return Sighting(
        number=path.stat().st_ino,
        known_number=number,
        starts=starts,
        known_starts=known["starts"],
        last_path=known["path"],
        epoch=epoch,
        known_epoch=max(known["epoch"], told_epoch(path), told),
        others=_by_path(seen, path),
        is_in_place=known["path"] == str(path.absolute()),
    )


def note_start(db: sqlite3.Connection, path: Path, state_dir: Path, *, least_epoch: int | None = None) -> int:
    """
    A daemon starts on this file: count it, here and in the state directory.

    Args:
        db: The database.
        path: Its file.
        state_dir: That of the instance.
        least_epoch: Take it over: the epoch grows beyond all that is known, and is not below this one. None leaves it
            as it is.

    Returns:
        The epoch from now on.

    Raises:
        StoreUnavailableError: the record in the state directory cannot be read or written.
        sqlite3.Error, OSError: the file cannot be read or written.
    """
    if least_epoch is not None:
        least_epoch = max(least_epoch, look(db, path, state_dir).known_epoch + 1)
    with writing(db):
        ((epoch,),) = db.execute(_SEEN, (path.stat().st_ino, least_epoch)).fetchall()
    # Behind the commit: what the instance has seen is never more than what the file says.
    _write(db, path, state_dir)
    return int(epoch)


def note_stop(path: Path, state_dir: Path, epoch: int) -> None:
    """
    The daemon stops, on a connection of its own: whatever is put back from before this moment is known by its count.

    A file that has been replaced or removed meanwhile, or taken over by somebody else, is left alone.

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


def keep(db: sqlite3.Connection, path: Path, state_dir: Path) -> None:
    """
    This file is the database from now on, whatever it was. Inside a transaction of the caller's.

    It gets the count and the epoch that are known, so that the next takeover is believed by those who send.

    Raises:
        StoreUnavailableError: the record in the state directory cannot be read.
        sqlite3.Error, OSError: the file cannot be read or written.
    """
    sighting = look(db, path, state_dir)
    db.execute(_KEEP, (sighting.known_starts, sighting.known_epoch, sighting.number))


# --- the record ---------------------------------------------------------------------------------------------


def _key(db: sqlite3.Connection) -> str:
    return str(uuid.UUID(bytes=broker_instance(db)))


def _by_path(seen: Mapping[str, Mapping[str, Any]], path: Path) -> tuple[str, ...]:
    return tuple(sorted(key for key, one in seen.items() if one["path"] == str(path.absolute())))


def _read(state_dir: Path) -> dict[str, dict[str, Any]]:
    """What the instance has seen: by broker instance, the count of starts, the epoch and the path."""
    file = state_dir / RECORD
    try:
        found = json.loads(file.read_bytes())
        return {
            str(key): {"starts": int(one["starts"]), "epoch": int(one.get("epoch", 0)), "path": str(one["path"])}
            for key, one in found.items()
        }
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StoreUnavailableError(str(file), error.strerror or str(error)) from error
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        problem = (
            "it does not hold what was written into it: restore it, or remove it; without it an older copy that was put"
            " back in place of a database is not noticed at the next start"
        )
        raise StoreUnavailableError(str(file), problem) from error


def _write(db: sqlite3.Connection, path: Path, state_dir: Path) -> None:
    """Note the count of one database; the record is replaced as a whole, and on the disk before this returns."""
    starts, epoch = db.execute("SELECT starts, epoch FROM broker_database").fetchone()
    with changing(state_dir / RECORD):
        seen = _read(state_dir)
        seen[_key(db)] = {"starts": starts, "epoch": epoch, "path": str(path.absolute())}
        write_record(state_dir / RECORD, seen)


# --- identity ---
# A database that is not what it was: made another one, or rid of all its conversations.
#
# Both are for a file that was copied or put back from a backup. A new broker instance is for a copy that shall live
# beside the original: no daemon may have the file open, for it holds the instance in memory. Ending all conversations
# with an error is for a file whose far sides have gone on without it; a daemon may run, and sends the errors.
#
# Source: Service Broker documentation, "Managing Service Broker Identities"; "ALTER DATABASE", service broker
# options.


BROKER_ERRORED = -9719  # the code that both ends read
CONTRACT_DROPPED = -8487
NEW_BROKER = "new broker instance"  # the entry of the ledger

_HELD_BY = (
    "transmission",
    "transmission_part",
    "message",
    "fragment",
    "received",
    "group_lock",
    "failure",
    "tombstone",
    "session_key",
)
_ADD = (
    "INSERT INTO broker_ledger (entry, messages) SELECT ?, {what} FROM {table} HAVING {what} > 0"
    " ON CONFLICT (entry) DO UPDATE SET messages = messages + excluded.messages"
)
_OPEN = "state IN ('SO', 'SI', 'CO', 'DI') AND (?1 IS NULL OR contract = ?1)"
_TELL_HERE = (
    "INSERT INTO broker_message (queue_id, status, priority, endpoint_id, message_sequence_number, message_type_name,"  # noqa: S608 - a literal above
    " message_enqueue_time, message_body)"
    " SELECT s.queue_id, CASE WHEN f.quarantine_time IS NULL THEN 1 ELSE 4 END, ?2, c.endpoint_id, c.receive_sequence,"
    " ?3, ?4, ?5 FROM broker_conversation c JOIN broker_service s ON s.name = c.service_name"
    f" LEFT JOIN broker_failure f ON f.endpoint_id = c.endpoint_id WHERE {_OPEN}"
)
_TELL_THERE = (
    "INSERT INTO broker_transmission"  # noqa: S608 - likewise
    " (endpoint_id, message_sequence_number, flags, message_type_name, enqueue_time, message_body)"
    " SELECT endpoint_id, send_sequence, ?2, ?3, ?4, ?5 FROM broker_conversation"
    f" WHERE {_OPEN} AND state IN ('SI', 'CO')"
)
_UNFINISHED = (
    "DELETE FROM broker_fragment WHERE endpoint_id IN (SELECT endpoint_id FROM broker_conversation"  # noqa: S608 - likewise
    f" WHERE {_OPEN}) AND message_sequence_number >="
    " (SELECT receive_sequence FROM broker_conversation c WHERE c.endpoint_id = broker_fragment.endpoint_id)"
)
_FAILED = (
    "UPDATE broker_conversation SET"  # noqa: S608 - likewise
    " end_dialog_sequence = CASE WHEN state IN ('SI', 'CO') THEN send_sequence ELSE end_dialog_sequence END,"
    " send_sequence = send_sequence + (state IN ('SI', 'CO')), early_fragments = 0,"
    f" dialog_timer = NULL, state = 'ER' WHERE {_OPEN}"
)


def new_broker(db: sqlite3.Connection, instance: uuid.UUID) -> int:
    """
    NEW_BROKER: another broker instance, and every conversation is removed without telling anybody.

    Queues, services, types, contracts, priorities and routes stay. What was sent and not acknowledged is counted in the
    ledger under `NEW_BROKER`. Inside a transaction of the caller's, who has the lock of the file (`lock_store`).

    Args:
        db: The database.
        instance: Its new identity, freshly drawn.

    Returns:
        How many conversations there were.
    """
    for entry, what, table in (
        (NEW_BROKER, "count(*)", "broker_transmission"),
        (SENT, "sum(send_sequence)", "broker_conversation"),
        (ACKNOWLEDGED, "sum(acknowledged_sequence)", "broker_conversation"),
    ):
        db.execute(_ADD.format(what=what, table=table), (entry,))
    for table in _HELD_BY:
        db.execute(f"DELETE FROM broker_{table}")  # noqa: S608 - names listed above
    removed = db.execute("DELETE FROM broker_conversation").rowcount
    db.execute("UPDATE broker_database SET broker_instance = ?", (instance.bytes,))
    return removed


def error_conversations(
    db: sqlite3.Connection, now: float, *, code: int = BROKER_ERRORED, text: str, contract: str | None = None
) -> int:
    """
    ERROR_BROKER_CONVERSATIONS: every open conversation ends with an error at both ends.

    The application here reads an Error message before what else waits; the far side reads one behind everything that
    was sent, so nothing of that is lost. A conversation that nobody heard of, or that the far side has ended, fails
    here only; one that has ended here already is left alone. In state ER, `end_dialog_sequence` tells that the error
    is on its way: until it is acknowledged, what the conversation holds is not given up. Inside a transaction of the
    caller's.

    Args:
        db: The database.
        now: UTC seconds since 1970.
        code: What both ends read, negative: it is the broker's.
        text: The description beside it.
        contract: Of the conversations that end; None = all.

    Returns:
        How many conversations it ended.
    """
    body = error_body(code, text)
    db.execute(_TELL_HERE, (contract, ERROR_PRIORITY, ERROR, now, body))
    db.execute(_TELL_THERE, (contract, int(Flag.ERROR), ERROR, now, body))
    db.execute(_UNFINISHED, (contract,))
    return db.execute(_FAILED, (contract,)).rowcount
