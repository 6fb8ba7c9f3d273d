"""
One batch of the writer thread in SQLite: find what applications queued, load what windows ask for, store what arrived.

The only place that writes for a running daemon, in this order, on one connection. Reads come first; all writes are one
transaction, so the more arrives at once, the less a message pays for the disk. The file and the right to write it are
checked before and after the commit: the path may lead to another file by then, and a process that stood still may have
lost its role. The order of the steps is part of the delivery guarantee: do not reorder them.
"""

from __future__ import annotations

import time
from pathlib import Path

import structlog

from broker.security.session import DialogCredentials
from broker.store.port import Find, WriteBatch, WriteResult
from broker.store.sqlite.database import FileWatch, broker_instance, fix_fragment_size
from broker.store.sqlite.expiry import Maintenance, fail_dialogs, next_timer
from broker.store.sqlite.hints import ANY, Bell, endpoint_slot, queue_slot
from broker.store.sqlite.metadata import services_on
from broker.store.sqlite.outbound import SentRow, find_pending, is_there, load_fragments, newest, save_statuses
from broker.store.sqlite.receive import store_frames
from broker.store.sqlite.side import receiving_sides, unconfirmed_sides
from broker.store.sqlite.transaction import DaemonConnection, check_confirmed, check_epoch, epoch, translated, writing
from broker.store.sqlite.verify import FrameVerifier
from broker.store.sqlite.write_lock import LockWait, WriteLockWaits

COMMIT_STEP = 0.00007  # seconds between two checks for a commit that was hinted; its fsync takes some of them
COMMIT_STEPS = 10
FOUND_LOADED = 1000  # dialogs at most that are loaded in the batch that finds them: the others ask for it
CHECKPOINT_PAGES = 600  # of the log; from 1,000 on a connection of an application would copy them back, and wait
_PROBE = (  # needs more pages than may be free in the file
    "INSERT INTO broker_fragment VALUES (-1, 0, 0, 0, zeroblob(65536))",
    "DELETE FROM broker_fragment WHERE endpoint_id = -1",
)

log = structlog.get_logger(__name__)


class SqliteStore:
    """
    A database in use, kept in one SQLite file.

    Its methods are for the writer thread. Every error of SQLite or the disk becomes
    `StoreUnavailableError` with a sentence that says what to do.

    Attributes:
        path: The file.
        broker_instance: 16 bytes.
        epoch: The epoch in which it was taken over.
        connection: The one that writes.
        lock_waits: How long it has waited for the write transactions of others; for any thread.
    """

    def __init__(
        self,
        path: Path,
        connection: DaemonConnection,
        *,
        fragment_size: int,
        credentials: DialogCredentials | None = None,
    ) -> None:
        """
        Use a file that is open (`open_store`); closing this closes it.

        Args:
            path: The file.
            connection: A connection to it.
            fragment_size: Size at which messages are cut, as soon as no message waits that was cut at another size.
            credentials: Credentials to open seals with; may change in place. None = the database has no certificate.

        Raises:
            StoreUnavailableError: it cannot be read or written.
        """
        self.path = path
        self.connection = connection
        with translated(self.path):
            self.broker_instance = broker_instance(connection)
            self.epoch = epoch(connection)
            self._fragment_size = fix_fragment_size(connection, fragment_size)
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        self._bell = Bell.open(str(path), is_made=True)
        self._file_watch = FileWatch(path)
        self._seen: SentRow | None = None  # the newest row sent that was found, of those that are there
        self._version = 0  # data_version when dialogs were last looked for; 0 = this connection has written since
        self._verifier = FrameVerifier(credentials or DialogCredentials())
        self._maintenance = Maintenance()
        self.lock_waits = connection.lock_waits = WriteLockWaits(lambda: str(path), self._report_wait)

    def write_in_writer(self, batch: WriteBatch) -> WriteResult:
        """
        Do one batch. When this returns, all of it is on the disk, in the file that the path leads to.

        Raises:
            StoreUnavailableError: nothing of the batch may be acknowledged; its frames arrive again.
            DemotedError: nor will it ever be, for another daemon is the principal, or may be.
        """
        result = WriteResult()
        with translated(self.path):
            self._file_watch.check()
            version, seen = self._find(batch, result)
            self._load(batch, result)
            is_maintained = batch.is_maintenance_due and self._maintenance.has_work(self.connection, batch.now)
            if batch.frames or batch.statuses or batch.faults or batch.is_probe or is_maintained:
                seen = self._write(batch, result, seen, is_maintained=is_maintained)
            else:
                check_epoch(self.connection)
                result.next_timer = next_timer(self.connection)
            if batch.is_maintenance_due:
                result.unconfirmed = unconfirmed_sides(self.connection, self.broker_instance)
            if batch.acknowledge:
                result.acknowledged_again = receiving_sides(self.connection, self.broker_instance, batch.acknowledge)
            if batch.off:
                result.on_again = services_on(self.connection, batch.off)
            self._file_watch.check()  # after the commit: otherwise the file that has the batch may not be found again
            check_confirmed(self.connection)  # likewise, because the process may have been paused within the commit
        self._version, self._seen = version, seen  # only now: a batch that failed finds the same rows again
        return result

    def catalog_connection(self) -> DaemonConnection:
        """
        Return the connection that writes, for work outside batches.

        Raises:
            StoreUnavailableError: the path no longer leads to the file.
            DemotedError: another daemon is the principal, or may be.
        """
        self._file_watch.check()
        self._version = 0
        with translated(self.path):
            check_epoch(self.connection)
        return self.connection

    def close(self) -> None:
        """Close the connection; what is committed stays."""
        if self._bell is not None:
            self._bell.close()
        self.connection.close()

    def _find(self, batch: WriteBatch, result: WriteResult) -> tuple[int, SentRow | None]:
        """Find what applications have sent since the last time; returns the version it saw and the newest row."""
        if batch.find is Find.NOTHING:
            return self._version, self._seen
        version = self._next_version(COMMIT_STEPS if batch.is_hinted else 0)
        if batch.find is Find.NEW and version == self._version:
            return version, self._seen  # no other connection has committed
        seen = None if batch.find is Find.ALL else self._seen
        seen, result.found, result.is_all_found = find_pending(self.connection, self.broker_instance, seen)
        return version, seen

    def _next_version(self, steps: int) -> int:
        """The version of the database, once others have committed, or after so many steps: a hint may be stale."""
        while True:
            version: int = self.connection.execute("PRAGMA data_version").fetchone()[0]
            if version != self._version or not steps:
                return version
            steps -= 1
            time.sleep(COMMIT_STEP)

    def _load(self, batch: WriteBatch, result: WriteResult) -> None:
        """Load the fragments that were requested, and those that dialogs just found may send: that saves a batch."""
        free_bytes = batch.load_max_bytes
        requests = [(request, True) for request in batch.load]
        wanted = map(batch.request_for, result.found[:FOUND_LOADED])
        requests += [(request, False) for request in wanted if request is not None]
        for request, is_asked_for in requests:
            loaded = load_fragments(self.connection, request, self._fragment_size, now=batch.now, free_bytes=free_bytes)
            if loaded is not None:
                free_bytes -= sum([len(fragment.body) for fragment in loaded.fragments])
                result.loaded.append(loaded)
            elif is_asked_for:
                result.postponed.append(request)

    def _write(
        self, batch: WriteBatch, result: WriteResult, seen: SentRow | None, *, is_maintained: bool
    ) -> SentRow | None:
        """Write what there is to write; returns the newest row that was seen, of those that it leaves."""
        db, began = self.connection, time.perf_counter()
        db.arrivals = set()
        try:
            with writing(db):
                if seen is not None and not is_there(db, seen):
                    seen = None
                if batch.is_probe:
                    for statement in _PROBE:
                        db.execute(statement)
                save_statuses(db, batch.statuses, batch.now)
                if is_maintained:
                    result.finished, result.has_more_maintenance = self._maintenance.run(db, batch.now)
                fail_dialogs(db, batch.faults, batch.now)
                if batch.frames:
                    result.received = store_frames(db, self.broker_instance, batch, self._verifier)
                result.received.finished.update(batch.faults)
                result.next_timer = next_timer(db)
                if seen is not None and seen.transmission_id:
                    seen = newest(db, seen.transmission_id)._replace(given_up=seen.given_up)
        except BaseException:
            if is_maintained:
                self._maintenance.forget()
            raise
        result.commit_seconds = time.perf_counter() - began
        self._ring()
        return seen

    def _ring(self) -> None:
        """Wake the readers of what was put into queues."""
        arrivals = self.connection.arrivals
        if arrivals and self._bell is not None:
            queues, endpoints = zip(*arrivals, strict=True)
            self._bell.ring([*map(endpoint_slot, endpoints), *map(queue_slot, queues), ANY])

    def _report_wait(self, wait: LockWait) -> None:
        pid, process = wait.holder or (None, None)
        about = {"path": str(self.path), "seconds": round(wait.seconds, 3), "pid": pid, "process": process}
        if wait.is_over:
            log.info("write lock taken", **about)
            return
        hint = "another connection keeps a write transaction open: end it; nothing is stored or acknowledged before"
        log.warning("write lock held", **about, number=wait.number, hint=hint)
