"""
The thread that writes: batches in, files out.

The loop offers batches, small ones copied out of the ring, large ones with the memory that the ring had, which comes
back. Both are bounded, and what the loop does not get rid of stays in the ring, which sheds and counts. The thread
makes rows of a batch at once, gathers them to groups, and writes these into a file until that is closed by its size,
its age or the end. Decoding, compressing and writing let go of the interpreter's lock
(docs/decisions/0011-the-journal-is-written-by-a-thread.md).

A disk that is full or a directory that is gone is logged once; the rows that were meant for the file at hand are lost
and counted as shed. Every `RETRY_SECONDS` another attempt is made, with what waits by then, and it is a whole file:
only one that has appeared shows that files can be written again. Nothing here reaches the loop as an error. A fault of
the program costs the rows at hand, is logged and counted, and the thread goes on after the same pause. That the thread
is there says nothing of what it does: `trouble` tells when it is long in one step, or has ended.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread, get_native_id
from typing import Any

import structlog

from broker.forwarding.entry import FrameOrigin
from broker.forwarding.kernels import make_decoder
from broker.forwarding.ring import Ring
from broker.journal.files import JournalFile, read_files, remove, remove_leftovers, too_old_or_too_many
from broker.journal.rows import NOBODY_FOLLOWS, Follower, RingBatch, RowBuffer, count_records
from broker.routing.decide import NOBODY, Principals

# --- plan ---
# What a journal is told once: where, for whom, how much of it, and for how long.


RINGS = 8  # of the buffer: the ring, as much for copies, and what the ring goes on in while others are read


@dataclass(frozen=True, slots=True)
class JournalPlan:
    """
    Shape: `directory` absolute; `instance` its name; `sample` the fraction of dialogs; `buffer_bytes` for records that
    are not rows yet, an eighth of it in the ring; `file_bytes`, `file_seconds` at which a file is closed; `keep_bytes`
    of all files, `keep_seconds` of their age, 0 is no bound; `decoder` by name, empty is the fastest.
    """

    directory: Path
    instance: str
    sample: float = 1.0
    buffer_bytes: int = 32 << 20
    file_bytes: int = 64 << 20
    file_seconds: float = 900.0
    keep_bytes: int = 0
    keep_seconds: float = 0.0
    decoder: str = ""

    @property
    def ring_bytes(self) -> int:
        """What the pass may write before the loop looks; so much again may be copied, the rest takes turns with it."""
        return self.buffer_bytes // RINGS


NICENESS = 10  # a tenth of the loop's weight where both want one core; at 15 the loop is late by more than it gains
GROUP_ROWS = 65_536  # of a row group: some 10 MiB before they are compressed, and enough for a reader to skip by
RETRY_SECONDS = 5.0  # after a failure; what waits meanwhile fills the buffer, and then the ring sheds
TEND_SECONDS = 60.0  # between two looks at files that are too old
STILL_SECONDS = 10.0  # in one step after which the thread is said to stand still; a group takes milliseconds to write

log = structlog.get_logger(__name__)


class Writer:
    """
    The writer of one process. `offer`, `room` and `stop` belong to the loop, the rest to the thread.

    Shape: counters since the start, each changed by one side only: `records` and `bytes` in the `files` that have
    appeared, `lost` rows that could not be made or written, `errors` attempts that failed, `removed` files that were
    too old or too many, `failures` of the program; `pending` rows that are in no file that has appeared; `problem` why
    nothing can be written, as of the last attempt, else "".
    """

    def __init__(
        self, plan: JournalPlan, *, follower: Follower | None = None, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self.records = self.bytes = self.files = self.lost = self.errors = self.removed = self.pending = 0
        self.failures = 0
        self.problem = ""
        self._plan = plan
        self._follower = follower
        self._wall_clock = wall_clock
        self._offered = self._done = 0  # bytes of copies, each counted by one side
        self._free: deque[bytearray] = deque()  # memory for the ring to go on in
        self._queue: SimpleQueue[RingBatch | JournalPlan | None] = SimpleQueue()
        self._stopping = Event()
        self._rows = RowBuffer(plan.instance, make_decoder(plan.decoder))
        self._file: JournalFile | None = None
        self._sequence = 0
        self._shed = 0  # in the ring, as of the last batch
        self._shed_told = 0  # of those and of `lost`, what the metadata of files has told
        self._opened_at = self._tended_at = float("-inf")
        self._step_at: float | None = None  # since when the thread is at work on one step; None while it waits
        self._thread = Thread(target=self._run, name="journal", daemon=True)

    # --- on the loop ---

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    @property
    def room(self) -> int:
        """Bytes of records that may be offered now, copied out of the ring."""
        return self._plan.ring_bytes - (self._offered - self._done)

    @property
    def trouble(self) -> str:
        """Why nothing is written now, as seen from outside the thread; "" when all is well."""
        if self._thread.ident is not None and not self._thread.is_alive() and not self._stopping.is_set():
            return "the thread that writes has ended; restart the instance"
        began = self._step_at
        still_s = 0.0 if began is None else time.monotonic() - began
        if still_s < STILL_SECONDS:
            return self.problem
        return f"the thread that writes has not moved for {still_s:.0f} s; does the disk of the directory answer?"

    def maybe_buffer(self) -> bytearray | None:
        """Memory for the ring to go on in; None when all of it waits for the thread."""
        return self._free.popleft() if self._free else None

    def offer(self, batch: RingBatch) -> None:
        """Hand over a batch; it belongs to the thread now."""
        if isinstance(batch.taken.data, bytes):
            self._offered += len(batch.taken.data)
        self._queue.put(batch)

    def use(self, plan: JournalPlan) -> None:
        """What is offered from now on is written by this plan; instance, memory and decoder are as they were."""
        self._queue.put(plan)

    def stop(self) -> None:
        """What was offered is written, and nothing else is."""
        self._stopping.set()
        self._queue.put(None)

    def join(self, seconds: float) -> bool:
        """Wait for the thread to end; whether it has. Blocking."""
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    # --- in the thread ---

    def _run(self) -> None:
        """Until stopped."""
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)  # of this thread alone, on Linux
        self._free.extend(bytearray(self._plan.ring_bytes) for _ in range(RINGS - 2))
        self._guard(self._clean)
        while self._guard(self._step):
            pass
        self._guard(self._end)

    def _guard(self, step: Callable[[], bool]) -> bool:
        """Take one step; a fault of the program in it costs what is in no file yet. False when it was the last one."""
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
        """Take one batch, or see to what is due; False when there is nothing more to come."""
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

    def _end(self) -> bool:
        """What is open appears."""
        self._attempt(self._close)
        return False

    def _adopt(self, plan: JournalPlan) -> None:
        """A file is made by one plan: what is open appears, where that can be."""
        if (plan.directory, plan.sample) != (self._plan.directory, self._plan.sample):
            self._attempt(self._close)
        is_elsewhere, self._plan = plan.directory != self._plan.directory, plan
        if is_elsewhere:
            self._clean()

    def _idle_seconds(self) -> float:
        """How long nothing is due."""
        due = TEND_SECONDS - (time.monotonic() - self._tended_at)
        if self._file is not None:
            due = min(due, self._open_seconds())
        return min(TEND_SECONDS, max(0.0, due))

    def _add(self, batch: RingBatch) -> None:
        """Make rows of a batch, and let who follows have it."""
        try:
            if self._make_rows(batch) and self._follower is not None:
                self._follower.add(batch)
        finally:
            self._shed = max(self._shed, batch.shed)
            self._give_back(batch)

    def _make_rows(self, batch: RingBatch) -> bool:
        """Whether it could be read."""
        try:
            self.pending += self._rows.add(batch)
        except ValueError:  # of this process's own ring: a fault of the program, but of this batch alone
            self.errors += 1
            self.lost += count_records(batch)
            log.exception("journal batch is unreadable", bytes=len(batch.taken.data))
            return False
        except Exception:
            self.lost += count_records(batch)
            raise
        return True

    def _give_back(self, batch: RingBatch) -> None:
        """The memory of a batch that was read is the ring's again."""
        data = batch.taken.data
        if isinstance(data, bytes):
            self._done += len(data)
        else:
            assert isinstance(data.obj, bytearray)
            self._free.append(data.obj)

    def _attempt(self, action: Callable[[], None]) -> None:
        """Do something with files; when the machine refuses, what was at stake is lost and counted."""
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
                since=datetime.fromtimestamp(self._wall_clock(), UTC).isoformat(),  # so no two lines are identical
            )
        self.problem = reason

    def _lose_pending(self) -> int:
        """What is in no file that has appeared never will be; how many rows."""
        self._rows.drop()
        lost, self.pending = self.pending, 0
        self.lost += lost
        return lost

    def _abandon(self) -> None:
        """The file at hand never appears."""
        file, self._file = self._file, None
        if file is not None:
            file.abandon()

    def _recover(self) -> None:
        if self.problem:
            self.problem = ""
            log.info("journal is written again", directory=str(self._plan.directory), lost_records=self.lost)

    def _tend(self) -> None:
        """Write what is enough for a group, close what is large or old enough, remove what is too old."""
        if self._rows.count and self._file is None:
            self._open()
        if self._rows.count >= GROUP_ROWS:
            self._write()
        if self._file is not None and (
            self.problem  # to find out: what is written reaches the disk when the file is closed
            or self._file.size >= self._plan.file_bytes
            or self._open_seconds() <= 0
        ):
            self._close()
        if time.monotonic() - self._tended_at >= TEND_SECONDS:
            self._retain()

    def _open_seconds(self) -> float:
        """How much longer the file may be open."""
        return self._opened_at + self._plan.file_seconds - time.monotonic()

    def _open(self) -> None:
        """A file is made as soon as there is a row for it: what keeps it from being made is found out early."""
        self._plan.directory.mkdir(parents=True, exist_ok=True)
        self._sequence += 1
        self._opened_at = time.monotonic()
        self._file = JournalFile(
            self._plan.directory, self._plan.instance, sequence=self._sequence, begun_at=self._wall_clock()
        )

    def _write(self) -> None:
        assert self._file is not None
        self._file.write(self._rows.take())

    def _close(self) -> None:
        """Let the file appear, if there is anything for one."""
        if self._rows.count:
            if self._file is None:
                self._open()
            self._write()
        if self._file is None:
            return
        file, shed = self._file, self._shed + self.lost
        _, size = file.close(sample=self._plan.sample, shed=shed - self._shed_told)
        self._file = None
        self._shed_told = shed
        self.records += file.rows
        self.pending -= file.rows
        self.bytes += size
        self.files += 1
        self._recover()
        self._retain()

    def _retain(self) -> None:
        """Remove what is too old or too much."""
        self._tended_at = time.monotonic()
        if not (self._plan.keep_bytes or self._plan.keep_seconds):
            return
        directory, instance = self._plan.directory, self._plan.instance
        files = read_files(directory, instance)
        old = too_old_or_too_many(
            files, now=self._wall_clock(), most_bytes=self._plan.keep_bytes, most_seconds=self._plan.keep_seconds
        )
        try:
            self.removed += remove(directory, old)
        except OSError as error:  # what is written now has nothing to do with it
            self.errors += 1
            log.warning("journal files cannot be removed", directory=str(directory), reason=error.strerror)

    def _clean(self) -> bool:
        """Remove what a crash has left."""
        directory = self._plan.directory
        with suppress(OSError):
            removed = remove_leftovers(directory, self._plan.instance)
            if removed:
                log.info("journal leftovers removed", directory=str(directory), files=removed)
        return True


# --- journal ---
# The journal of one process: a ring that the pass writes into, a thread that makes files of it, and what empties the
# one
# into the other.
#
# The loop looks at the ring now and then, from `SLOW_SECONDS` down to `FAST_SECONDS` apart: half as long as before
# when
# more than half of it was used, twice as long when less than an eighth was. So the pass itself is asked nothing. What
# the
# writer has no room for stays in the ring, where the next records are shed and counted.


SLOW_SECONDS, FAST_SECONDS = 0.1, 0.003  # between two looks
COPY_MAX = 64 * 1024  # bytes of records that are copied out of the ring; for more, the ring gets other memory instead
CLOSE_SECONDS = 10.0  # for what was recorded to be written when the instance stops ...
FOLLOWER_SECONDS = 3.0  # ... and for what else was made of it to be sent


class Journal:
    """
    Loop-only.

    Shape: `ring` for the pass; `principals` tells where mirrored pairs lead now, given once there is somebody to ask.
    """

    def __init__(
        self, plan: JournalPlan, *, adjacent_of: Callable[[FrameOrigin], str], follower: Follower | None = None
    ) -> None:
        self.ring = Ring(plan.ring_bytes, sample=plan.sample, adjacent_of=adjacent_of)
        self.principals: Callable[[], Principals] = lambda: NOBODY
        self._plan = plan
        self._follower = follower
        self._writer = Writer(plan, follower=follower)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._pause = SLOW_SECONDS

    @property
    def shed(self) -> int:
        """Records since the start that found no room, or could not be written."""
        return self.ring.shed + self._writer.lost

    def start(self) -> None:
        """Begin to write."""
        self._writer.start()
        self._timer = self._loop.call_later(self._pause, self._look)

    def use(self, plan: JournalPlan) -> None:
        """
        Write by this plan from now on; what was recorded before is written by the one before.

        Instance, memory and decoder stay as they are. Where the sample is another one, the kernels have to be made anew
        behind this.
        """
        if self.ring.used:
            self._hand_over(is_last=True)
        self._plan = replace(plan, buffer_bytes=self._plan.buffer_bytes, decoder=self._plan.decoder)
        self.ring.resample(plan.sample)
        self._writer.use(self._plan)

    async def close(self) -> None:
        """Write everything that was recorded, within `CLOSE_SECONDS`, and be done with what follows it."""
        if self._timer is not None:
            self._timer.cancel()
        self._hand_over(is_last=True)
        self._writer.stop()
        if not await asyncio.to_thread(self._writer.join, CLOSE_SECONDS):
            log.error("journal is not written to its end", records=self._writer.pending, waited_s=CLOSE_SECONDS)
        if self._follower is not None:
            await asyncio.to_thread(self._follower.close, FOLLOWER_SECONDS)

    def status(self) -> Mapping[str, Any]:
        """What there is to tell, as in a status."""
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
            **(NOBODY_FOLLOWS if self._follower is None else self._follower.status()),
        }

    def _look(self) -> None:
        """Empty the ring, and look again when that is likely to be worth it."""
        used, capacity = self.ring.used, len(self.ring.buffer)
        if used:
            self._hand_over()
        if 2 * used > capacity:
            self._pause = max(FAST_SECONDS, self._pause / 2)
        elif 8 * used < capacity:
            self._pause = min(SLOW_SECONDS, self._pause * 2)
        self._timer = self._loop.call_later(self._pause, self._look)

    def _hand_over(self, *, is_last: bool = False) -> None:
        """What is in the ring is the writer's from now on, if that has room for it."""
        ring, writer = self.ring, self._writer
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
        writer.offer(RingBatch(taken, offset, ring.shed, self.principals()))
