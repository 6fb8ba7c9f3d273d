"""What is offered is in files, whatever the disk says is counted, and the loop is never disturbed."""

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from broker.forwarding.entry import ForwardingEntry
from broker.journal import writer as module
from broker.journal.files import JournalFile, files_of
from broker.journal.rows import RingBatch
from broker.journal.schema import SHED_KEY
from broker.journal.writer import NO_SPANS, Journal, JournalPlan, Writer
from broker.routing.decide import NOBODY
from examples.demo.topology import wait_for
from tests.support.loopback import until
from tests.support.records import Tape, frame, way

WAIT = 10.0
WAY = way()


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JournalPlan:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    return JournalPlan(directory=tmp_path / "flows", instance="gw", buffer_size=8 << 20)


def files(plan: JournalPlan) -> list[Path]:
    return sorted(files_of(plan.directory, plan.instance))


def rows_in(plan: JournalPlan) -> list[int]:
    return [pq.read_metadata(path).num_rows for path in files(plan)]


def shed_in(plan: JournalPlan) -> list[int]:
    return [int(pq.read_metadata(path).metadata[SHED_KEY]) for path in files(plan)]


def soon(condition: Callable[[], Any], what: str) -> Any:
    return wait_for(condition, seconds=WAIT, what=what)


def reaches(writer: Writer, **values: object) -> None:
    soon(lambda: all(getattr(writer, name) == value for name, value in values.items()), str(values))


class West:
    """A neighbour."""


def journal(plan: JournalPlan, tracing: Any = None) -> Journal:
    return Journal(plan, adjacent_of=lambda origin: type(origin).__name__, principals=lambda: NOBODY, tracing=tracing)


def record(journal: Journal, count: int, entry: ForwardingEntry = WAY) -> None:
    origin: Any = West()
    journal.ring.begin(asyncio.get_running_loop().time(), origin, is_from_here=False)
    for number in range(count):
        journal.ring.enter(frame(sequence_number=number), 0, entry, 0)


def table(plan: JournalPlan) -> dict[str, list[Any]]:
    (path,) = files(plan)
    with pq.ParquetFile(path) as file:
        found: dict[str, list[Any]] = file.read().to_pydict()
    return found


async def test_what_was_recorded_is_written_when_it_is_closed(plan: JournalPlan) -> None:
    one = journal(plan)
    one.start()
    before = time.time()
    record(one, 3)

    await one.close()

    found, status = table(plan), one.status()
    assert ([0, 1, 2], {"West"}) == (found["sequence_number"], set(found["adjacent_in"]))
    assert abs(found["entered_at"][0].timestamp() - before) < 1
    assert (3, 0, 0, 1, "") == tuple(status[name] for name in ("records", "pending", "shed", "files", "problem"))
    assert (0, 0, 0) == tuple(status[name] for name in NO_SPANS)
    assert 0 == one.ring.used


async def test_ring_is_emptied_more_often_when_it_is_full_and_changes_its_memory(plan: JournalPlan) -> None:
    one = journal(plan)
    one.start()
    recorded = 3
    record(one, 3)
    await until(lambda: one.status()["pending"] == 3)
    memory = {id(one.ring.buffer)}
    while one._pause > module.SLOW_SECONDS / 4:
        record(one, 4000)
        recorded += 4000
        await asyncio.sleep(0.02)
        memory.add(id(one.ring.buffer))
    assert len(memory) > 1

    await until(lambda: one._pause == module.SLOW_SECONDS)
    await one.close()

    assert recorded == one.status()["records"] + one.status()["shed"]


async def test_what_finds_no_room_is_shed_and_counted(plan: JournalPlan) -> None:
    """The writer takes nothing as long as it was not started."""
    one = journal(plan)
    one._poll()
    recorded = 0
    while not one.shed:
        record(one, 1000)
        recorded += 1000
        await asyncio.sleep(0)
    one._writer.start()

    await one.close()

    assert one.status()["shed"] > 0
    assert recorded == one.status()["records"] + one.status()["shed"]


async def test_another_plan_holds_for_what_is_recorded_from_then_on(plan: JournalPlan, tmp_path: Path) -> None:
    """The ring follows the new sample, its memory stays; a file goes on when only its bounds change."""
    one = journal(plan)
    one.start()
    record(one, 3)
    other = JournalPlan(directory=tmp_path / "else", instance="gw", sample=0.25, buffer_size=64 << 20)

    one.use(replace(plan, file_age=60.0))
    record(one, 1)
    one.use(other)
    record(one, 2)
    await one.close()

    status = one.status()
    assert [0, 1, 2, 0] == table(plan)["sequence_number"]
    assert [0, 1] == table(other)["sequence_number"]
    assert (str(other.directory), 0.25) == (status["directory"], status["sample"])
    assert (6, 0) == (status["records"], status["shed"])
    assert (1 << 51, plan.ring_bytes) == (one.ring.limit, len(one.ring.buffer))


class Spans:
    """Counts the bytes of records, or fails or blocks as told; `seconds` it was given to end."""

    def __init__(self) -> None:
        self.records = 0
        self.seconds = 0.0
        self.error: BaseException | None = None
        self.may_go_on = Event()
        self.may_go_on.set()

    def add(self, batch: RingBatch) -> None:
        self.may_go_on.wait(WAIT)
        if self.error is not None:
            raise self.error
        self.records += len(batch.taken.data)

    def status(self) -> Mapping[str, int]:
        return {"spans": self.records, "spans_pending": 0, "spans_dropped": 0}

    def close(self, seconds: float) -> None:
        self.seconds = seconds


async def test_spans_have_every_record_and_time_to_end(plan: JournalPlan) -> None:
    spans = Spans()
    one = journal(plan, spans)
    one.start()
    record(one, 3)
    used = one.ring.used

    await one.close()

    assert (used, module.SPANS_SECONDS) == (spans.records, spans.seconds)
    assert (3, used) == (one.status()["records"], one.status()["spans"])


def batch(rows: int = 1, shed: int = 0) -> RingBatch:
    tape = Tape()
    for number in range(rows):
        tape.enter(frame(sequence_number=number), way())
    return tape.batch(offset=time.time() - 1000)._replace(shed=shed)


def running(plan: JournalPlan, tracing: Any = None, **changes: Any) -> Writer:
    writer = Writer(replace(plan, **changes), tracing)
    writer.start()
    return writer


def ended(writer: Writer) -> Writer:
    writer.stop()
    assert writer.join(WAIT)
    return writer


def test_file_is_ended_by_its_age_and_has_what_was_shed_since_the_one_before(plan: JournalPlan) -> None:
    writer = running(plan, file_age=0.02)
    for number, shed in enumerate((0, 4, 4, 9), 1):
        writer.offer(batch(shed=shed))
        reaches(writer, files=number)

    ended(writer)

    assert [0, 4, 0, 5] == shed_in(plan)
    assert [f"00000{number}" for number in range(1, 5)] == [path.name.split("-")[1] for path in files(plan)]


def test_file_is_ended_by_its_size(plan: JournalPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUP_ROWS", 100)
    writer = running(plan, file_size=1000)
    for _ in range(5):
        writer.offer(batch(100))

    ended(writer)

    assert [100] * 5 == rows_in(plan)


def test_copies_take_room_until_they_are_read(plan: JournalPlan) -> None:
    writer = Writer(plan, None)
    before, one = writer.room, batch(10)

    writer.offer(one)

    assert (plan.ring_bytes, len(one.taken.data)) == (before, before - writer.room)
    writer.start()
    reaches(writer, room=before)
    ended(writer)


def test_full_disk_is_logged_once_and_got_over(plan: JournalPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUP_ROWS", 10)

    def refuse(file: JournalFile, rows: Any) -> None:
        raise OSError(28, "No space left on device")

    with capture_logs() as logs:
        writer = running(plan)
        with monkeypatch.context() as patch:
            patch.setattr(JournalFile, "write", refuse)
            for _ in range(3):
                writer.offer(batch(10))
            reaches(writer, lost=30)
            assert "No space left on device" == writer.problem
            assert [] == [path for path in plan.directory.rglob("*") if path.is_file()]
        writer.offer(batch(7))
        reaches(writer, problem="")
        ended(writer)

    events = [(entry["event"], entry["log_level"]) for entry in logs]
    assert [("journal cannot be written", "error"), ("journal is written again", "info")] == events
    assert ([7], [30], 3) == (rows_in(plan), shed_in(plan), writer.errors)
    assert (7, 0) == (writer.records, writer.pending)


def test_disk_that_is_full_when_a_file_is_closed_is_got_over_each_time(
    plan: JournalPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full, fsync = Event(), os.fsync

    def maybe(descriptor: int) -> None:
        if is_full.is_set():
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", maybe)
    writer = running(plan, file_age=0.01)
    for round_ in (1, 2):
        is_full.set()
        for errors in (2 * round_ - 1, 2 * round_):
            writer.offer(batch(3))
            reaches(writer, errors=errors)
        is_full.clear()
        writer.offer(batch(5))
        reaches(writer, files=round_, problem="")
    ended(writer)

    assert ([5, 5], [6, 6]) == (rows_in(plan), shed_in(plan))
    assert (10, 12, 4, 0) == (writer.records, writer.lost, writer.errors, writer.pending)


def test_directory_that_vanishes_is_made_again(plan: JournalPlan) -> None:
    writer = running(plan)
    writer.offer(batch())
    soon(lambda: plan.directory.exists() and list(plan.directory.iterdir()), "a file under way")
    shutil.rmtree(plan.directory)

    writer.offer(batch(2))
    ended(writer)
    again = running(plan)
    again.offer(batch(4))
    ended(again)

    assert (3, [4]) == (writer.lost, rows_in(plan))


def test_leftovers_of_a_crash_are_removed_at_the_start(plan: JournalPlan) -> None:
    plan.directory.mkdir()
    left = plan.directory / ".gw-000009-01234567.parquet"
    left.write_bytes(b"PAR1 half")

    ended(running(plan))

    assert not left.exists()


@pytest.mark.parametrize("bounds", [{"keep_size": 1}, {"keep_age": 0.001}])
def test_old_files_are_removed_when_one_appears(plan: JournalPlan, bounds: dict[str, Any]) -> None:
    plain = running(plan)
    plain.offer(batch())
    ended(plain)
    (old,) = files(plan)
    foreign = old.with_name("kept.parquet")
    shutil.copy(old, foreign)
    time.sleep(0.01)

    writer = running(plan, **bounds)
    writer.offer(batch())
    ended(writer)

    assert foreign.exists()
    assert old not in files(plan)
    assert writer.removed >= 1


def test_file_that_cannot_be_removed_disturbs_nothing(plan: JournalPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "retain", Mock(side_effect=PermissionError(13, "Permission denied")))
    writer = running(plan, keep_size=1)
    writer.offer(batch(4))
    ended(writer)

    assert [4] == rows_in(plan)
    assert writer.errors >= 1


def test_batch_that_is_unreadable_costs_no_other(plan: JournalPlan) -> None:
    bad, writer = batch(), running(plan)
    writer.offer(bad._replace(taken=bad.taken._replace(data=bytes(batch(3).taken.data) + b"no records")))
    writer.offer(batch(2))
    ended(writer)

    assert ([2], 4, [4]) == (rows_in(plan), writer.lost, shed_in(plan))


def test_fault_of_the_program_costs_the_rows_at_hand_and_is_reported_until_a_file_is_written(
    plan: JournalPlan,
) -> None:
    spans = Spans()
    spans.error = RuntimeError("a fault of the program")
    writer = running(plan, spans, file_age=0.02)
    for rows in (3, 4):
        writer.offer(batch(rows))
    reaches(writer, failures=2)
    trouble = writer.trouble
    spans.error = None
    writer.offer(batch(5))
    reaches(writer, files=1)
    ended(writer)

    assert "the writer has failed: a fault of the program" == trouble
    assert (7, 5, 0, "") == (writer.lost, writer.records, writer.pending, writer.trouble)
    assert [7] == shed_in(plan)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.promise("A connection is stalled, blocked or down")
def test_thread_that_is_stuck_or_has_ended_is_reported(plan: JournalPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STILL_SECONDS", 0.05)
    spans = Spans()
    writer = running(plan, spans)
    spans.may_go_on.clear()

    writer.offer(batch())
    soon(lambda: writer.trouble.startswith("the thread that writes has not moved"), "trouble")
    spans.may_go_on.set()
    reaches(writer, trouble="")
    spans.error = SystemExit()
    writer.offer(batch())

    soon(lambda: "has ended; restart the instance" in writer.trouble, "trouble")
