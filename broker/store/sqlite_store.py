"""
A database at work, kept in one SQLite file: what the loop's `Store` port asks for.

The only class that a daemon needs of this package once a file is open. Two connections: one writes, in whatever thread
the caller keeps for that; the other only looks whether somebody has committed. Whatever SQLite or the disk says becomes
`StoreUnavailableError` with a sentence that tells what to do.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.errors import StoreUnavailableError
from broker.store.database import broker_instance, open_watch, settle_fragment_size
from broker.store.fault import sentence
from broker.store.presence import FileWatch
from broker.store.transaction import DaemonConnection, check_confirmed, check_epoch, epoch
from broker.store.turn import turn_in_writer
from broker.store.turn_port import WriteBatch, WriteResult

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
