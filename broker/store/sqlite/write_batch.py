"""
One turn of the writer thread: find what applications queued, load what the windows ask for, say what waits and why,
store what arrived.

Everything that touches the file of a database happens here, in this order, on one connection. Whatever is written is
written last and in one transaction: when any of it fails, nothing has been stored that the loop does not hear of. The
arrivals of a turn are one transaction, so the more arrives at once, the less a message pays for the disk.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.conversation.window import FIRST_BYTES
from broker.errors import StoreUnavailableError
from broker.store.port import Want, WriteBatch, WriteResult
from broker.store.sqlite.database import FileWatch, broker_instance, open_watch, settle_fragment_size
from broker.store.sqlite.expiry import next_timer
from broker.store.sqlite.outbound import find_in_writer, load_in_writer, say_in_writer
from broker.store.sqlite.reassembly import fail_in_writer
from broker.store.sqlite.receive import store_in_writer
from broker.store.sqlite.transaction import DaemonConnection, check_confirmed, check_epoch, epoch, sentence, writing

FOUND_LOADED = 1000  # dialogs at most that are loaded in the turn that finds them: the others ask for it
_PROBE = (  # takes more pages than may be lying about
    "INSERT INTO broker_fragment VALUES (-1, 0, 0, 0, zeroblob(65536))",
    "DELETE FROM broker_fragment WHERE endpoint_id = -1",
)


def turn_in_writer(db: sqlite3.Connection, instance: bytes, turn: WriteBatch, fragment_size: int) -> WriteResult:
    """
    Do one turn.

    Raises:
        sqlite3.Error: the store failed; nothing of `frames` was stored and nothing may be acknowledged.
        DemotedError: likewise, because somebody else is the principal of this database.
    """
    result = WriteResult()
    if turn.find_after is not None:
        result.found_up_to, result.found = find_in_writer(db, instance, turn.find_after)
    _load(db, turn, fragment_size, result)
    keeper = turn.housekeeping
    if keeper is not None and not keeper.has_work(db, turn.now):
        keeper = None
    if turn.frames or turn.statuses or turn.faults or turn.is_probe or keeper is not None:
        began = time.perf_counter()
        try:
            with writing(db):
                if turn.is_probe:
                    for statement in _PROBE:
                        db.execute(statement)
                if turn.statuses:
                    say_in_writer(db, turn.statuses, turn.now)
                if keeper is not None:
                    result.kept = keeper.run(db, turn.now)
                if turn.faults:
                    fail_in_writer(db, turn.faults, turn.now)
                if turn.frames:
                    result.receipt = store_in_writer(
                        db, instance, turn.frames, turn.now, gate=turn.gate, origins=turn.origins, inside=turn.inside
                    )
                result.receipt.finished.update(turn.faults)
                result.next_timer = next_timer(db)
            result.seconds = time.perf_counter() - began
        except sqlite3.Error:
            if keeper is not None:
                keeper.forget()
            raise
    else:
        check_epoch(db)
        result.next_timer = next_timer(db)
    return result


def _load(db: sqlite3.Connection, turn: WriteBatch, fragment_size: int, result: WriteResult) -> None:
    """What was wanted; and of dialogs that begin to wait what they may send at once, which saves them a turn."""
    room = turn.load_max_bytes
    wants = [(want, True) for want in turn.wants]
    for found in result.found[:FOUND_LOADED]:
        if not turn.known(found.endpoint_id):
            place = (found.first_sequence, 0)
            wants.append((Want(found.endpoint_id, place, turn.first_frames, FIRST_BYTES), False))
    for want, is_asked_for in wants:
        loaded = load_in_writer(db, want, fragment_size, now=turn.now, room=room)
        if loaded is not None:
            room -= sum([len(fragment.body) for fragment in loaded.fragments])
            result.loaded.append(loaded)
        elif is_asked_for:
            result.postponed.append(want)


# --- sqlite_store ---
# A database at work, kept in one SQLite file: what the loop's `Store` port asks for.
#
# The only class that a daemon needs of this package once a file is open. Two connections: one writes, in whatever
# thread
# the caller keeps for that; the other only looks whether somebody has committed. Whatever SQLite or the disk says
# becomes
# `StoreUnavailableError` with a sentence that tells what to do.


CHECKPOINT_PAGES = 600  # of the log; from 1,000 on a connection of an application would copy them back, and wait


class SqliteStore:
    """
    One open file. Its methods are for the writer thread, but for `version`, which is for the loop.

    Shape: `broker_instance` 16 bytes; `epoch` in which it was taken; `connection` the one that writes.
    """

    def __init__(self, path: Path, connection: DaemonConnection, *, fragment_size: int) -> None:
        """
        Use a file that is open (`open_store`); closing this closes it.

        Args:
            path: The file.
            connection: To it.
            fragment_size: By which messages are cut as soon as nothing waits that was cut otherwise.

        Raises:
            StoreUnavailableError: it cannot be read or written.
        """
        self.path = path
        self.connection = connection
        with self._telling():
            self.broker_instance = broker_instance(connection)
            self.epoch = epoch(connection)
            self._fragment_size = settle_fragment_size(connection, fragment_size)
            self._watch = open_watch(path)
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        self._presence = FileWatch(path)

    def turn_in_writer(self, turn: WriteBatch) -> WriteResult:
        """
        Do one turn. When this returns, all of it is on the disk, in the file that the path leads to.

        Raises:
            StoreUnavailableError: nothing of the turn may be acknowledged; its frames come again.
            DemotedError: nor will it ever be, for somebody else is the principal, or may be.
        """
        with self._telling():
            self._presence.check()
            result = turn_in_writer(self.connection, self.broker_instance, turn, self._fragment_size)
            self._presence.check()  # behind the commit: else it is stored where nobody finds it
            check_confirmed(self.connection)  # likewise, for the process may have stood still within the commit
        return result

    def lend(self) -> DaemonConnection:
        """
        The connection that writes, for others than turns; whoever has it has it alone.

        Raises:
            StoreUnavailableError: the path does not lead to the file any more.
            DemotedError: it is not ours any more.
        """
        self._presence.check()
        with self._telling():
            check_epoch(self.connection)
        return self.connection

    def version(self) -> int:
        """
        A number that every commit of another connection changes. Cost: some microseconds; nobody is waited for.

        Raises:
            StoreUnavailableError: the file cannot be read.
        """
        with self._telling():
            version: int = self._watch.execute("PRAGMA data_version").fetchone()[0]
            return version

    def close(self) -> None:
        """Close both connections; what is committed stays."""
        self._watch.close()
        self.connection.close()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreUnavailableError(str(self.path), sentence(error)) from error
