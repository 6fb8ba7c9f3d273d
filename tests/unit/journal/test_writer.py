"""What is offered is in files, whatever the disk says meanwhile is counted, and the loop never hears of it."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow.parquet as pq
import pytest
from structlog import DropEvent
from structlog.testing import capture_logs

from broker.flow import Disposition
from broker.forwarding.entry import ForwardingEntry, FrameOrigin
from broker.journal import writer as module
from broker.journal.files import JournalFile, files_of
from broker.journal.rows import NO_FOLLOWER, RingBatch
from broker.journal.schema import SHED_KEY
from broker.journal.writer import RINGS, Journal, JournalPlan, Writer
from broker.observe.logs import RepeatFilter
from examples.demo.topology import wait_for
from tests.support.reading import until
from tests.support.records import Tape, frame, way

# --- test_journal ---
# What the pass records is handed to the writer without being asked for, and all of it at the end.


WAY: ForwardingEntry = way()


class West:
    """A neighbour."""


@pytest.fixture
def plan(tmp_path: Path) -> JournalPlan:
    return JournalPlan(tmp_path, "gw", buffer_bytes=8 << 20)


def journal(plan: JournalPlan) -> Journal:
    return Journal(plan, adjacent_of=lambda origin: type(origin).__name__)


def record(journal: Journal, count: int, *, now: float = 0.0) -> None:
    origin: Any = West()
    journal.ring.begin(now or asyncio.get_running_loop().time(), origin, is_from_here=False)
    for number in range(count):
        journal.ring.enter(frame(sequence_number=number), 0, WAY, 0)


def table(plan: JournalPlan) -> dict[str, list[Any]]:
    (path,) = files_of(plan.directory, plan.instance)
    with pq.ParquetFile(path) as file:
        found: dict[str, list[Any]] = file.read().to_pydict()
    return found


async def test_what_was_recorded_is_written_when_it_is_closed(plan: JournalPlan) -> None:
    one = journal(plan)
    one.start()
    record(one, 3)

    await one.close()

    found = table(plan)
    assert ([0, 1, 2], {"West"}) == (found["sequence_number"], set(found["adjacent_in"]))
    told = one.status()
    assert (3, 0, 0, 1, "") == tuple(told[name] for name in ("records", "pending", "shed", "files", "problem"))
    assert 0 == one.ring.used


async def test_ring_is_emptied_now_and_then(plan: JournalPlan) -> None:
    one = journal(plan)
    one.start()
    record(one, 3)

    await until(lambda: one.status()["pending"] == 3)

    assert 0 == one.ring.used
    await one.close()


async def test_full_ring_is_emptied_more_often_and_changes_its_memory(plan: JournalPlan) -> None:
    one = journal(plan)
    one.start()
    recorded = 0
    memory = {id(one.ring.buffer)}
    while one._pause > module.SLOW_SECONDS / 4:
        record(one, 4000)
        recorded += 4000
        await asyncio.sleep(0.02)
        memory.add(id(one.ring.buffer))
    assert len(memory) > 1

    await until(lambda: one._pause == module.SLOW_SECONDS)
    await one.close()

    told = one.status()
    assert recorded == told["records"] + told["shed"]


async def test_what_finds_no_room_is_shed_and_counted(plan: JournalPlan) -> None:
    """The writer does not take anything as long as it was not started."""
    one = journal(plan)
    one._poll()
    recorded = 0
    while not one.shed:
        record(one, 1000)
        recorded += 1000
        await asyncio.sleep(0)
    one._writer.start()

    await one.close()

    told = one.status()
    assert told["shed"] > 0
    assert recorded == told["records"] + told["shed"]


async def test_times_are_utc(plan: JournalPlan) -> None:
    one = journal(plan)
    one.start()
    before = time.time()
    record(one, 1)

    await one.close()

    (entered,) = table(plan)["entered_at"]
    assert abs(entered.timestamp() - before) < 1


async def test_sample_of_none_still_records_drops(tmp_path: Path) -> None:
    plan = JournalPlan(tmp_path, "gw", sample=0.0, buffer_bytes=8 << 20)
    one = journal(plan)
    one.start()
    record(one, 5)
    origin: FrameOrigin | Any = West()
    one.ring.begin(asyncio.get_running_loop().time(), origin, is_from_here=False)
    one.ring.enter(frame(), 0, way(Disposition.NO_ROUTE, route=""), 0)

    await one.close()

    assert ["dropped"] == table(plan)["outcome"]


async def test_another_plan_holds_for_what_is_recorded_from_then_on(plan: JournalPlan, tmp_path: Path) -> None:
    """What was recorded before appears where it was to; the ring follows the new sample, its memory stays."""
    one = journal(plan)
    one.start()
    record(one, 3)
    other = JournalPlan(tmp_path / "else", "gw", sample=0.25, buffer_bytes=64 << 20)

    one.use(other)
    record(one, 2)
    await one.close()

    told = one.status()
    assert [0, 1, 2] == table(plan)["sequence_number"]
    assert [0, 1] == table(other)["sequence_number"]
    assert (str(other.directory), 0.25) == (told["directory"], told["sample"])
    assert (5, 0) == (told["records"], told["shed"])
    assert (1 << 51, plan.ring_bytes) == (one.ring.limit, len(one.ring.buffer))


async def test_a_file_goes_on_when_only_its_bounds_are_others(plan: JournalPlan) -> None:
    one = journal(plan)
    one.start()
    record(one, 3)

    one.use(replace(plan, file_seconds=60.0))
    record(one, 2)
    await one.close()

    assert [0, 1, 2, 0, 1] == table(plan)["sequence_number"]


class Follower:
    """Who makes something else of batches. Shape: `records` bytes of records; `seconds` that it was given to end."""

    def __init__(self) -> None:
        self.records = 0
        self.seconds = 0.0

    def add(self, batch: RingBatch) -> None:
        self.records += len(batch.taken.data)

    def status(self) -> Mapping[str, int]:
        return {"spans": self.records, "spans_pending": 0, "spans_dropped": 0}

    def close(self, seconds: float) -> None:
        self.seconds = seconds


async def test_who_follows_has_every_record_and_time_to_end(plan: JournalPlan) -> None:
    follower = Follower()
    one = Journal(plan, adjacent_of=lambda _: "", follower=follower)
    one.start()
    record(one, 3)
    used = one.ring.used

    await one.close()

    assert (used, module.FOLLOWER_SECONDS) == (follower.records, follower.seconds)
    assert (3, used) == (one.status()["records"], one.status()["spans"])


async def test_without_anybody_who_follows_there_are_no_spans(plan: JournalPlan) -> None:
    assert (0, 0, 0) == tuple(journal(plan).status()[name] for name in NO_FOLLOWER)


# --- test_plan ---
# The buffer is shared out between the ring and what waits.


def test_ring_is_a_part_of_the_buffer() -> None:
    assert 4 << 20 == JournalPlan(Path("/flows"), "gw", buffer_bytes=32 << 20).ring_bytes
    assert RINGS > 3  # the ring, copies, and at least two to take turns


WAIT = 10.0


@pytest.fixture
def plan_of_writer(tmp_path: Path) -> JournalPlan:
    return JournalPlan(tmp_path / "flows", "gw", buffer_bytes=8 << 20)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)


def batch(rows: int = 1, shed: int = 0) -> RingBatch:
    tape = Tape()
    for number in range(rows):
        tape.enter(frame(sequence_number=number), way())
    return tape.batch(offset=time.time() - 1000)._replace(shed=shed)


def running(plan_of_writer: JournalPlan) -> Writer:
    writer = Writer(plan_of_writer)
    writer.start()
    return writer


def ended(writer: Writer) -> Writer:
    writer.stop()
    assert writer.join(WAIT)
    return writer


def files(plan_of_writer: JournalPlan) -> list[Path]:
    return sorted(files_of(plan_of_writer.directory, plan_of_writer.instance))


def rows_in(paths: list[Path]) -> int:
    return sum(pq.read_metadata(path).num_rows for path in paths)


def shed_in(path: Path) -> int:
    return int(pq.read_metadata(path).metadata[SHED_KEY])


def test_everything_offered_is_in_one_file_at_the_end(plan_of_writer: JournalPlan) -> None:
    writer = running(plan_of_writer)
    for _ in range(3):
        writer.offer(batch(5))

    ended(writer)

    (path,) = files(plan_of_writer)
    assert (15, 15, 1, 0, 0) == (rows_in([path]), writer.records, writer.files, writer.pending, writer.lost)
    assert path.stat().st_size == writer.bytes
    assert [path.parent] == [
        one for one in plan_of_writer.directory.rglob("*") if one.is_dir() and one.name.startswith("hour")
    ]


def test_nothing_recorded_leaves_no_file(plan_of_writer: JournalPlan) -> None:
    ended(running(plan_of_writer))

    assert [] == files(plan_of_writer)


def test_file_is_ended_by_its_age(plan_of_writer: JournalPlan) -> None:
    writer = running(JournalPlan(plan_of_writer.directory, "gw", buffer_bytes=8 << 20, file_seconds=0.05))
    writer.offer(batch())
    wait_for(lambda: writer.files == 1, seconds=WAIT, what="a file")
    writer.offer(batch())
    wait_for(lambda: writer.files == 2, seconds=WAIT, what="another")

    ended(writer)

    assert ["000001", "000002"] == [path.name.split("-")[1] for path in files(plan_of_writer)]


def test_file_is_ended_by_its_size(plan_of_writer: JournalPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUP_ROWS", 100)
    writer = running(JournalPlan(plan_of_writer.directory, "gw", buffer_bytes=8 << 20, file_bytes=1000))
    for _ in range(5):
        writer.offer(batch(100))

    ended(writer)

    assert (5, 500) == (writer.files, rows_in(files(plan_of_writer)))


def test_memory_of_the_ring_comes_back_when_it_was_read(plan_of_writer: JournalPlan) -> None:
    writer = running(plan_of_writer)
    memory, *_ = [wait_for(writer.maybe_buffer, seconds=WAIT, what="memory") for _ in range(6)]
    assert plan_of_writer.ring_bytes == len(memory)
    assert writer.maybe_buffer() is None

    tape = Tape(capacity=plan_of_writer.ring_bytes)
    tape.enter(frame(), way())
    full = tape.ring.buffer
    writer.offer(RingBatch(tape.ring.swap(memory), 0.0))

    assert full is wait_for(writer.maybe_buffer, seconds=WAIT, what="the memory again")
    ended(writer)


def test_copies_take_room_until_they_are_read(plan_of_writer: JournalPlan) -> None:
    writer = Writer(plan_of_writer)
    before, one = writer.room, batch(10)

    writer.offer(one)

    assert (plan_of_writer.ring_bytes, len(one.taken.data)) == (before, before - writer.room)
    writer.start()
    wait_for(lambda: writer.room == before, seconds=WAIT, what="room")
    ended(writer)


def has_files(writer: Writer, count: int) -> bool:
    return writer.files == count


def test_metadata_tells_what_was_shed_since_the_file_before(plan_of_writer: JournalPlan) -> None:
    writer = running(JournalPlan(plan_of_writer.directory, "gw", buffer_bytes=8 << 20, file_seconds=0.02))
    for number, shed in enumerate((0, 4, 4, 9), 1):
        writer.offer(batch(shed=shed))
        wait_for(partial(has_files, writer, number), seconds=WAIT, what="a file")

    ended(writer)

    assert [0, 4, 0, 5] == [shed_in(path) for path in files(plan_of_writer)]


class FullDisk:
    """Fails whatever is written, until told otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        write = JournalFile.write

        def maybe(file: JournalFile, table: Any) -> None:
            if self.is_full:
                raise OSError(28, "No space left on device")
            write(file, table)

        monkeypatch.setattr(JournalFile, "write", maybe)


def test_full_disk_is_told_once_and_got_over(plan_of_writer: JournalPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(monkeypatch)
    monkeypatch.setattr(module, "GROUP_ROWS", 10)
    with capture_logs() as logs:
        writer = running(plan_of_writer)
        for _ in range(3):
            writer.offer(batch(10))
        wait_for(lambda: writer.lost == 30, seconds=WAIT, what="all lost")
        assert "No space left on device" == writer.problem
        assert [] == [path for path in plan_of_writer.directory.rglob("*") if path.is_file()]
        disk.is_full = False
        writer.offer(batch(7))
        wait_for(lambda: not writer.problem, seconds=WAIT, what="written again")
        ended(writer)

    events = [(entry["event"], entry["log_level"]) for entry in logs]
    assert [("journal cannot be written", "error"), ("journal is written again", "info")] == events
    (path,) = files(plan_of_writer)
    assert (7, 30, 3) == (rows_in([path]), shed_in(path), writer.errors)
    assert (7, 0) == (writer.records, writer.pending)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Takes what is written, and while `is_full` says so only when it is to be kept that there is no room for it."""
    state, fsync = {"is_full": False}, os.fsync

    def maybe(descriptor: int) -> None:
        if state["is_full"]:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", maybe)
    return state


def fails(writer: Writer, disk: dict[str, bool], errors: int) -> None:
    disk["is_full"] = True
    writer.offer(batch(3))
    wait_for(lambda: writer.errors == errors, seconds=WAIT, what="a failure")


def test_disk_that_is_full_when_a_file_is_closed_is_told_each_time_and_not_called_written_before(
    plan_of_writer: JournalPlan, disk: dict[str, bool]
) -> None:
    with capture_logs() as logs:
        writer = running(JournalPlan(plan_of_writer.directory, "gw", buffer_bytes=8 << 20, file_seconds=0.01))
        for round_ in (1, 3):
            fails(writer, disk, round_)
            fails(writer, disk, round_ + 1)
            disk["is_full"] = False
            writer.offer(batch(5))
            wait_for(partial(has_files, writer, (round_ + 1) // 2), seconds=WAIT, what="a file")
            wait_for(lambda: not writer.problem, seconds=WAIT, what="written again")
        ended(writer)

    repeats = RepeatFilter(time.monotonic)
    told = [entry["event"] for entry in logs if not is_left_out(repeats, entry)]
    assert 2 * ["journal cannot be written", "journal is written again"] == told
    assert ([5, 5], [6, 6]) == (
        [rows_in([path]) for path in files(plan_of_writer)],
        [shed_in(path) for path in files(plan_of_writer)],
    )
    assert (10, 12, 4, 0) == (writer.records, writer.lost, writer.errors, writer.pending)


def is_left_out(repeats: RepeatFilter, entry: Any) -> bool:
    try:
        repeats(None, "", dict(entry, level=entry["log_level"]))
    except DropEvent:
        return True
    return False


def test_directory_that_cannot_be_made_loses_what_waits(plan_of_writer: JournalPlan) -> None:
    plan_of_writer.directory.write_text("a file stands in its place")
    with capture_logs() as logs:
        writer = running(plan_of_writer)
        writer.offer(batch(3))
        wait_for(lambda: writer.lost == 3, seconds=WAIT, what="lost")
        plan_of_writer.directory.unlink()
        writer.offer(batch(2))
        ended(writer)

    assert "journal cannot be written" == logs[0]["event"]
    assert 2 == rows_in(files(plan_of_writer))


def test_directory_that_vanishes_is_made_again(plan_of_writer: JournalPlan) -> None:
    writer = running(plan_of_writer)
    writer.offer(batch())
    wait_for(plan_of_writer.directory.exists, seconds=WAIT, what="the directory")
    wait_for(lambda: list(plan_of_writer.directory.iterdir()), seconds=WAIT, what="a file under way")
    shutil.rmtree(plan_of_writer.directory)

    writer.offer(batch(2))
    ended(writer)
    again = running(plan_of_writer)
    again.offer(batch(4))
    ended(again)

    assert 3 == writer.lost
    assert 4 == rows_in(files(plan_of_writer))


def test_leftovers_of_a_crash_are_removed_at_the_start(plan_of_writer: JournalPlan) -> None:
    plan_of_writer.directory.mkdir()
    left = plan_of_writer.directory / ".gw-000009-01234567.parquet"
    left.write_bytes(b"PAR1 half")

    ended(running(plan_of_writer))

    assert not left.exists()


@pytest.mark.parametrize("bounds", [{"keep_bytes": 1}, {"keep_seconds": 0.001}])
def test_old_files_are_removed_when_one_appears(plan_of_writer: JournalPlan, bounds: dict[str, Any]) -> None:
    plain = running(plan_of_writer)
    plain.offer(batch())
    ended(plain)
    (old,) = files(plan_of_writer)
    foreign = old.with_name("kept.parquet")
    shutil.copy(old, foreign)
    time.sleep(0.01)

    writer = running(JournalPlan(plan_of_writer.directory, "gw", buffer_bytes=8 << 20, **bounds))
    writer.offer(batch())
    ended(writer)

    assert foreign.exists()
    assert old not in files(plan_of_writer)
    assert writer.removed >= 1


def test_file_that_cannot_be_removed_disturbs_nothing(
    plan_of_writer: JournalPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "remove", refuse)
    writer = running(JournalPlan(plan_of_writer.directory, "gw", buffer_bytes=8 << 20, keep_bytes=1))
    with capture_logs() as logs:
        writer.offer(batch(4))
        ended(writer)

    assert 4 == rows_in(files(plan_of_writer))
    assert writer.errors >= 1
    assert "journal files cannot be removed" in [entry["event"] for entry in logs]


def test_batch_that_is_unreadable_costs_no_other(plan_of_writer: JournalPlan) -> None:
    bad = batch()
    with capture_logs() as logs:
        writer = running(plan_of_writer)
        writer.offer(bad._replace(taken=bad.taken._replace(data=bytes(batch(3).taken.data) + b"no records")))
        writer.offer(batch(2))
        ended(writer)

    assert (2, 4) == (rows_in(files(plan_of_writer)), writer.lost)
    assert [4] == [shed_in(path) for path in files(plan_of_writer)]
    assert ["journal batch is unreadable"] == [entry["event"] for entry in logs]


class Faulty:
    """Follows with a bug, which may be mended."""

    def __init__(self) -> None:
        self.is_broken = True
        self.may_go_on = Event()
        self.may_go_on.set()

    def add(self, batch: RingBatch) -> None:
        self.may_go_on.wait(WAIT)
        if self.is_broken:
            raise RuntimeError("a fault of the program")

    def status(self) -> Mapping[str, int]:
        return NO_FOLLOWER

    def close(self, seconds: float) -> None:
        """There is nothing to end."""


def test_fault_of_the_program_costs_the_rows_at_hand_and_is_told_until_a_file_is_written(
    plan_of_writer: JournalPlan,
) -> None:
    follower = Faulty()
    writer = Writer(replace(plan_of_writer, file_seconds=0.02), follower=follower)
    with capture_logs() as logs:
        writer.start()
        for rows in (3, 4):
            writer.offer(batch(rows))
        wait_for(lambda: writer.failures == 2, seconds=WAIT, what="both to fail")
        told = writer.trouble
        follower.is_broken = False
        writer.offer(batch(5))
        wait_for(lambda: writer.files == 1, seconds=WAIT, what="a file")
        ended(writer)

    assert "the writer has failed: a fault of the program" == told
    assert (7, 5, 0, "") == (writer.lost, writer.records, writer.pending, writer.trouble)
    assert [7] == [shed_in(path) for path in files(plan_of_writer)]
    assert ["journal writer failed", "journal is written again"] == [entry["event"] for entry in logs]


def test_thread_that_stands_still_is_told_until_it_moves(
    plan_of_writer: JournalPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STILL_SECONDS", 0.05)
    follower = Faulty()
    follower.is_broken = False
    writer = Writer(plan_of_writer, follower=follower)
    writer.start()
    follower.may_go_on.clear()

    writer.offer(batch())
    wait_for(lambda: writer.trouble.startswith("the thread that writes has not moved"), seconds=WAIT, what="to be told")
    follower.may_go_on.set()

    wait_for(lambda: not writer.trouble, seconds=WAIT, what="it to move")
    ended(writer)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_thread_that_has_ended_is_told(plan_of_writer: JournalPlan) -> None:
    class Ending(Faulty):
        def add(self, batch: RingBatch) -> None:
            raise SystemExit

    writer = Writer(plan_of_writer, follower=Ending())
    writer.start()

    writer.offer(batch())

    wait_for(lambda: "has ended; restart the instance" in writer.trouble, seconds=WAIT, what="to be told")
