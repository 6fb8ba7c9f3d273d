"""
The journal of one process: a ring that the forwarding pass writes into, and a thread that writes files from it.

The loop polls the ring every `SLOW_SECONDS` down to `FAST_SECONDS`: half as long as before when more than half of it
was used, twice as long when less than an eighth was. So the pass does nothing for it. Small batches are copied out of
the ring; for large ones the ring continues in other memory, and its own comes back later. Both are bounded: records for
which the writer has no room stay in the ring, where the next ones are shed and counted.

The thread decodes a batch into rows at once, collects them into groups, and writes groups into a file until it is
closed by size, age or shutdown. Decoding, compressing and writing release the interpreter's lock
(docs/contributors/decisions/0011-the-journal-is-written-by-a-thread.md).

A full disk or a missing directory is logged once; the rows of the current file are lost and counted as shed. Every
`RETRY_SECONDS` a whole file is tried again, because only a closed file shows that the disk takes data. No error reaches
the loop. An exception in the thread loses the rows at hand, is logged and counted, and the thread continues after the
same pause. `Writer.trouble` reports a thread that has stopped or is stuck.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread, get_native_id
from typing import TYPE_CHECKING, Any

import structlog
from msgspec.structs import replace

from broker.config.settings import JournalSettings
from broker.forwarding.entry import FrameOrigin
from broker.forwarding.kernels import make_decoder
from broker.forwarding.ring import Ring
from broker.journal.files import JournalFile, remove_leftovers, retain
from broker.journal.rows import RingBatch, RowBuffer, count_records
from broker.routing.decide import Principals
from broker.supervision import Timer

if TYPE_CHECKING:  # it needs a library that is an extra of the installation
    from broker.journal.spans import Tracing

NO_SPANS = {"spans": 0, "spans_pending": 0, "spans_dropped": 0}
SLOW_SECONDS, FAST_SECONDS = 0.1, 0.003  # between two polls of the ring
COPY_MAX = 64 * 1024  # bytes of records that are copied out of the ring; for more, the ring gets other memory
RINGS = 8  # parts of the buffer: the ring, as much for copies, and memory for the ring while parts are read
CLOSE_SECONDS = 10.0  # for the last records to be written when the instance stops ...
SPANS_SECONDS = 3.0  # ... and for their spans to be sent
NICENESS = 10  # a tenth of the loop's weight on one core; at 15 the loop is late by more than it gains
GROUP_ROWS = 65_536  # of a row group: some 10 MiB before compression, and enough for readers to skip by
RETRY_SECONDS = 5.0  # after a failure; the buffer fills, and then the ring sheds
TEND_SECONDS = 60.0  # between two searches for files that are too old
STILL_SECONDS = 10.0  # in one step before the thread is reported as stuck; writing a group takes milliseconds

log = structlog.get_logger(__name__)


class JournalPlan(JournalSettings, frozen=True, kw_only=True):
    """
    The settings of a journal that there is: `directory` is absolute, and `buffer_size` bounds records that are not rows
    yet, an eighth of it is the ring. `decoder` is a name, empty for the fastest.
    """

    directory: Path
    instance: str
    decoder: str = ""

    @property
    def ring_bytes(self) -> int:
        """The size of the ring. As much may be copied out of it; the rest is memory for the ring to continue in."""
        return self.buffer_size // RINGS


class Writer:
    """
    The thread that writes files. `offer`, `room`, `use` and `stop` are called on the loop.

    Counters since the start, each changed by one side only: `records` and `bytes` in the `files` that were closed,
    `lost` rows that could not be made or written, `errors` attempts that failed, `removed` files that were too old or
    too many, `failures` exceptions. `pending` counts rows in no closed file. `problem` is why the last attempt to write
    failed, or "".
    """

    def __init__(self, plan: JournalPlan, tracing: Tracing | None) -> None:
        self.records = self.bytes = self.files = self.lost = self.errors = self.removed = self.pending = 0
        self.failures = 0
        self.problem = ""
        self._plan = plan
        self._tracing = tracing
        self._offered = self._done = 0  # bytes of copies, each counted by one side
        self._free: deque[bytearray] = deque()  # memory for the ring to go on in
        self._queue: SimpleQueue[RingBatch | JournalPlan | None] = SimpleQueue()
        self._stopping = Event()
        self._rows = RowBuffer(plan.instance, make_decoder(plan.decoder))
        self._file: JournalFile | None = None
        self._sequence = 0
        self._shed = 0  # in the ring, as of the last batch
        self._shed_written = 0  # of those and of `lost`, as written to the metadata of files
        self._opened_at = self._tended_at = float("-inf")
        self._step_at: float | None = None  # when the thread began its present step; None while it waits
        self._thread = Thread(target=self._run, name="journal", daemon=True)

    # --- on the loop ---

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    @property
    def room(self) -> int:
        """Bytes of records that may be copied out of the ring now."""
        return self._plan.ring_bytes - (self._offered - self._done)

    @property
    def trouble(self) -> str:
        """Why nothing is written, seen from outside of the thread; "" if it is."""
        if self._thread.ident is not None and not self._thread.is_alive() and not self._stopping.is_set():
            return "the thread that writes has ended; restart the instance"
        began = self._step_at
        still_s = 0.0 if began is None else time.monotonic() - began
        if still_s < STILL_SECONDS:
            return self.problem
        return f"the thread that writes has not moved for {still_s:.0f} s; does the disk of the directory answer?"

    def maybe_buffer(self) -> bytearray | None:
        """Return memory for the ring to continue in; None if all of it waits for the thread."""
        return self._free.popleft() if self._free else None

    def offer(self, batch: RingBatch) -> None:
        """Give a batch to the thread."""
        if isinstance(batch.taken.data, bytes):
            self._offered += len(batch.taken.data)
        self._queue.put(batch)

    def use(self, plan: JournalPlan) -> None:
        """Write later batches by another plan; instance, memory and decoder stay."""
        self._queue.put(plan)

    def stop(self) -> None:
        """Let the thread write what was offered, and end."""
        self._stopping.set()
        self._queue.put(None)

    def join(self, seconds: float) -> bool:
        """Wait for the thread to end, and return whether it has. Blocking."""
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    # --- in the thread ---

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)  # on Linux, of this thread alone
        self._free.extend(bytearray(self._plan.ring_bytes) for _ in range(RINGS - 2))
        self._guard(self._clean)
        while self._guard(self._step):
            pass
        self._guard(lambda: self._attempt(self._close))

    def _guard(self, step: Callable[[], object]) -> object:
        """Run one step, and return what it returns; an exception loses the rows that are in no file, and gives True."""
        self._step_at = time.monotonic()
        try:
            return step()
        except Exception as error:
            self.failures += 1
            problem = f"the writer has failed: {error}"
            if problem != self.problem:
                log.exception("journal writer failed", retry_in_s=RETRY_SECONDS)
            self.problem = problem
            self._abandon()
            self._lose_pending()
            return True
        finally:
            self._step_at = None

    def _step(self) -> bool:
        """Add one batch, or do what is due. Return False at the end."""
        self._step_at = None
        if self.problem:
            self._stopping.wait(RETRY_SECONDS)
        try:
            batch = self._queue.get(timeout=self._idle_seconds())
        except Empty:
            self._step_at = time.monotonic()
            self._attempt(self._tend)
            return True
        self._step_at = time.monotonic()
        if batch is None:
            return False
        if isinstance(batch, JournalPlan):
            self._adopt(batch)
        else:
            self._add(batch)
        self._attempt(self._tend)
        return True

    def _adopt(self, plan: JournalPlan) -> None:
        """Use another plan; a file is written by one plan, so the open one is closed."""
        if (plan.directory, plan.sample) != (self._plan.directory, self._plan.sample):
            self._attempt(self._close)
        is_elsewhere, self._plan = plan.directory != self._plan.directory, plan
        if is_elsewhere:
            self._clean()

    def _idle_seconds(self) -> float:
        """Return the seconds until something is due."""
        due = TEND_SECONDS - (time.monotonic() - self._tended_at)
        if self._file is not None:
            due = min(due, self._open_seconds())
        return min(TEND_SECONDS, max(0.0, due))

    def _add(self, batch: RingBatch) -> None:
        """Make rows of a batch, and spans."""
        try:
            self.pending += self._rows.add(batch)
        except ValueError:  # a bug, but of this batch alone
            self.errors += 1
            self.lost += count_records(batch)
            log.exception("journal batch is unreadable", bytes=len(batch.taken.data))
        except Exception:
            self.lost += count_records(batch)
            raise
        else:
            if self._tracing is not None:
                self._tracing.add(batch)
        finally:
            self._shed = max(self._shed, batch.shed)
            self._give_back(batch)

    def _give_back(self, batch: RingBatch) -> None:
        """Return the memory of a batch to the ring."""
        data = batch.taken.data
        if isinstance(data, bytes):
            self._done += len(data)
        else:
            assert isinstance(data.obj, bytearray)
            self._free.append(data.obj)

    def _attempt(self, action: Callable[[], None]) -> None:
        """Run an action on files; if the system refuses it, the pending rows are lost and counted."""
        try:
            action()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.errors += 1
        self._abandon()
        lost = self._lose_pending()
        reason = error.strerror or str(error)
        if not self.problem:
            log.error(
                "journal cannot be written",
                directory=str(self._plan.directory),
                reason=reason,
                lost_records=lost,
                retry_in_s=RETRY_SECONDS,
                since=datetime.now(UTC).isoformat(),  # so no two lines are identical
            )
        self.problem = reason

    def _lose_pending(self) -> int:
        """Give up the rows that are in no closed file, and return their number."""
        self._rows.drop()
        lost, self.pending = self.pending, 0
        self.lost += lost
        return lost

    def _abandon(self) -> None:
        """Remove the open file."""
        file, self._file = self._file, None
        if file is not None:
            file.abandon()

    def _tend(self) -> None:
        """Write a group if it is complete, close a file that is large or old enough, remove files that are too old."""
        if self._rows.count and self._file is None:
            self._open()
        if self._rows.count >= GROUP_ROWS:
            self._write()
        if self._file is not None and (
            self.problem  # after a failure: data reaches the disk when the file is closed
            or self._file.size >= self._plan.file_size
            or self._open_seconds() <= 0
        ):
            self._close()
        if time.monotonic() - self._tended_at >= TEND_SECONDS:
            self._retain()

    def _open_seconds(self) -> float:
        """Return the seconds that the file may stay open."""
        return self._opened_at + self._plan.file_age - time.monotonic()

    def _open(self) -> None:
        """Make a file, with its first row: an error is found early."""
        self._plan.directory.mkdir(parents=True, exist_ok=True)
        self._sequence += 1
        self._opened_at = time.monotonic()
        self._file = JournalFile(
            self._plan.directory, self._plan.instance, sequence=self._sequence, begun_at=time.time()
        )

    def _write(self) -> None:
        assert self._file is not None
        self._file.write(self._rows.take())

    def _close(self) -> None:
        """Close the file, if there are rows for one."""
        if self._rows.count:
            if self._file is None:
                self._open()
            self._write()
        if self._file is None:
            return
        file, shed = self._file, self._shed + self.lost
        _, size = file.close(sample=self._plan.sample, shed=shed - self._shed_written)
        self._file = None
        self._shed_written = shed
        self.records += file.rows
        self.pending -= file.rows
        self.bytes += size
        self.files += 1
        if self.problem:
            self.problem = ""
            log.info("journal is written again", directory=str(self._plan.directory), lost_records=self.lost)
        self._retain()

    def _retain(self) -> None:
        """Remove files that are too old or too many."""
        self._tended_at = time.monotonic()
        if not (self._plan.keep_size or self._plan.keep_age):
            return
        plan = self._plan
        try:
            self.removed += retain(
                plan.directory, plan.instance, now=time.time(), most_bytes=plan.keep_size, most_seconds=plan.keep_age
            )
        except OSError as error:  # writing goes on
            self.errors += 1
            log.warning("journal files cannot be removed", directory=str(plan.directory), reason=error.strerror)

    def _clean(self) -> None:
        """Remove the unfinished files of a crash."""
        directory = self._plan.directory
        with suppress(OSError):
            removed = remove_leftovers(directory, self._plan.instance)
            if removed:
                log.info("journal leftovers removed", directory=str(directory), files=removed)


class Journal:
    """
    The ring and the writer of one process. Loop-only.

    The forwarding pass writes into `ring`.

    Args:
        plan: Where and how it is written.
        adjacent_of: Returns the origin of frames as a word.
        principals: Returns the principals of mirrored pairs; asked once there are records.
        tracing: Makes spans of the records; the journal does not wait for it.
    """

    def __init__(
        self,
        plan: JournalPlan,
        *,
        adjacent_of: Callable[[FrameOrigin], str],
        principals: Callable[[], Principals],
        tracing: Tracing | None,
    ) -> None:
        self.ring = Ring(plan.ring_bytes, sample=plan.sample, adjacent_of=adjacent_of)
        self._plan = plan
        self._principals = principals
        self._tracing = tracing
        self._writer = Writer(plan, tracing)
        self._timer = Timer()
        self._pause = SLOW_SECONDS

    @property
    def shed(self) -> int:
        """Records that were shed or could not be written, since the start."""
        return self.ring.shed + self._writer.lost

    def start(self) -> None:
        """Begin to write."""
        self._writer.start()
        self._timer.after(self._pause, self._poll)

    def use(self, plan: JournalPlan) -> None:
        """
        Write by another plan; records made before are written by the old one.

        Instance, memory and decoder stay. After a change of the sample the kernels have to be rebuilt.
        """
        self._hand_over(is_last=True)
        self._plan = replace(plan, buffer_size=self._plan.buffer_size)
        self.ring.resample(plan.sample)
        self._writer.use(self._plan)

    async def close(self) -> None:
        """Write all records, within `CLOSE_SECONDS`, and send their spans."""
        self._timer.cancel()
        self._hand_over(is_last=True)
        self._writer.stop()
        if not await asyncio.to_thread(self._writer.join, CLOSE_SECONDS):
            log.error("journal is not written to its end", records=self._writer.pending, waited_s=CLOSE_SECONDS)
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close, SPANS_SECONDS)

    def status(self) -> Mapping[str, Any]:
        """Return the section `journal` of a status."""
        writer = self._writer
        return {
            "directory": str(self._plan.directory),
            "sample": self._plan.sample,
            "records": writer.records,
            "pending": writer.pending,
            "shed": self.shed,
            "files": writer.files,
            "bytes": writer.bytes,
            "errors": writer.errors,
            "removed_files": writer.removed,
            "failures": writer.failures,
            "problem": writer.trouble,
            **(NO_SPANS if self._tracing is None else self._tracing.status()),
        }

    def _poll(self) -> None:
        """Empty the ring, and schedule the next poll."""
        used, capacity = self.ring.used, len(self.ring.buffer)
        self._hand_over()
        if 2 * used > capacity:
            self._pause = max(FAST_SECONDS, self._pause / 2)
        elif 8 * used < capacity:
            self._pause = min(SLOW_SECONDS, self._pause * 2)
        self._timer.after(self._pause, self._poll)

    def _hand_over(self, *, is_last: bool = False) -> None:
        """Give the records in the ring to the writer, if it has room."""
        ring, writer = self.ring, self._writer
        if not ring.used:
            return
        if ring.used <= COPY_MAX or is_last:
            if ring.used > writer.room and not is_last:
                return
            taken = ring.take()
        else:
            empty = writer.maybe_buffer()
            if empty is None:
                return
            taken = ring.swap(empty)
        offset = time.time() - time.monotonic()
        writer.offer(RingBatch(taken, offset, ring.shed, self._principals()))
