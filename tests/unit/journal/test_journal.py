"""What the pass records is handed to the writer without being asked for, and all of it at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from broker.flow import Disposition
from broker.forwarding.entry import ForwardingEntry, FrameOrigin
from broker.journal import writer as module
from broker.journal.files import files_of
from broker.journal.rows import NOBODY_FOLLOWS, RingBatch
from broker.journal.writer import Journal, JournalPlan
from tests.support.reading import until
from tests.support.records import frame, way

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
    one._look()
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
    assert (0, 0, 0) == tuple(journal(plan).status()[name] for name in NOBODY_FOLLOWS)
