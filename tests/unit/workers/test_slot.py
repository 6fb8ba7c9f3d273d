"""A place always has a worker: one that dies is replaced, one that is told to end is not."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.net.farewell import Left
from broker.supervision import Supervision
from broker.workers import slot as slot_module
from broker.workers.channel import Asker, WorkerFailedError
from broker.workers.message import Begin, Question, Report, Rows, WorkerReport
from broker.workers.slot import Slot
from tests.support.loopback import until

SECONDS = 60.0


@asynccontextmanager
async def occupied(
    begin: Begin, supervision: Supervision | None = None
) -> AsyncIterator[tuple[Slot, asyncio.Future[None]]]:
    """A place whose first worker comes up; ended at the end."""
    slot = Slot(1, begin, supervision)
    first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(slot.run(first))
    try:
        yield slot, first
    finally:
        slot.kill()
        await asyncio.wait_for(running, SECONDS)


async def test_worker_that_dies_is_replaced_and_what_it_counted_stays(begin: Begin) -> None:
    async with occupied(begin) as (slot, first):
        await asyncio.wait_for(first, SECONDS)
        await slot.tell()
        pid = slot.pid
        assert pid is not None
        assert slot.report is not None

        with capture_logs() as logs:
            os.kill(pid, signal.SIGKILL)
            await until(lambda: slot.restarts == 1 and slot.is_ready, seconds=SECONDS)

        assert slot.pid not in {None, pid}
        assert slot.retired.forwarding["forwarded"] == 0
        assert 0 < slot.retired.uncounted_s < SECONDS
        assert [line["reason"] for line in logs if line["event"] == "worker died"] == ["signal 9"]
        assert isinstance(await slot.ask(Report(), WorkerReport), WorkerReport)


async def test_worker_that_is_told_to_end_is_not_replaced(begin: Begin) -> None:
    async with occupied(begin) as (slot, first):
        await asyncio.wait_for(first, SECONDS)

        slot.stop()
        await until(lambda: slot.pid is None, seconds=SECONDS)

        assert (slot.restarts, slot.is_ready) == (0, False)


async def test_first_worker_that_cannot_begin_is_not_tried_again() -> None:
    async with occupied(Begin(b"no settings", b"i" * 16)) as (slot, first):
        with pytest.raises(WorkerFailedError, match="worker 1: "):
            await asyncio.wait_for(first, SECONDS)

        assert slot.restarts == 0


async def test_worker_that_cannot_load_is_replaced(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would decide by old routes."""
    async with occupied(begin) as (slot, first):
        await asyncio.wait_for(first, SECONDS)
        pid = slot.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        with monkeypatch.context() as patch, capture_logs() as logs:
            patch.setattr(slot_module, "LOAD_SECONDS", 0.01)
            await slot.load()

        await until(lambda: slot.is_ready, seconds=SECONDS)

        assert slot.pid != pid
        assert [line["event"] for line in logs] == ["worker has old routes"]


async def test_worker_that_has_gone_deaf_is_replaced(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(slot_module, "WATCH_SECONDS", 0.01)
        patch.setattr(slot_module, "DEAF_LOOKS", 2)
        async with occupied(begin) as (slot, first):
            await asyncio.wait_for(first, SECONDS)
            pid = slot.pid
            assert pid is not None
            await until(lambda: slot.report is not None, seconds=SECONDS)

            with capture_logs() as logs:
                os.kill(pid, signal.SIGSTOP)
                await until(lambda: slot.restarts == 1, seconds=SECONDS)

            await until(lambda: slot.is_ready, seconds=SECONDS)
            assert slot.pid != pid
            assert "worker is deaf" in [line["event"] for line in logs]


async def test_worker_that_does_not_answer_keeps_its_last_report(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    async with occupied(begin) as (slot, first):
        await asyncio.wait_for(first, SECONDS)
        await slot.tell()
        report = slot.report
        assert slot.pid is not None
        os.kill(slot.pid, signal.SIGSTOP)

        with monkeypatch.context() as patch:
            patch.setattr(slot_module, "SILENT_SECONDS", 0.01)
            await slot.tell()

        assert slot.report is report
        assert "has not answered for " in slot.problem


async def test_nobody_waits_long_for_a_worker_that_answers_nothing(begin: Begin) -> None:
    """A load may take minutes and rows seconds, but only of a worker that is alive; the stopped one is replaced."""
    async with occupied(begin) as (slot, first):
        await asyncio.wait_for(first, SECONDS)
        await until(lambda: slot.report is not None, seconds=SECONDS)
        pid = slot.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)

        with pytest.raises(WorkerFailedError, match=r"no answer within 1\.5 s"):
            await slot.ask(Rows("sys.dm_broker_connections"), list[Any], seconds=SECONDS)
        assert "it is replaced after" in slot.problem
        await slot.load()
        await until(lambda: slot.restarts == 1 and slot.is_ready, seconds=SECONDS)

        assert (slot.problem, slot.pid != pid) == ("", True)


async def test_worker_that_goes_on_after_a_while_is_kept(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_module, "WATCH_SECONDS", 0.01)
    async with occupied(begin) as (slot, first):
        await asyncio.wait_for(first, SECONDS)
        pid = slot.pid
        assert pid is not None
        with capture_logs() as logs:
            os.kill(pid, signal.SIGSTOP)
            await until(lambda: slot.is_silent, seconds=SECONDS)
            os.kill(pid, signal.SIGCONT)
            await until(lambda: not slot.is_silent, seconds=SECONDS)

        assert (slot.pid, slot.problem) == (pid, "")
        assert ["worker does not answer", "worker answers again"] == [line["event"] for line in logs]


async def test_routes_that_change_while_a_worker_comes_up_are_read_before_it_is_ready(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever changed them does not wait for it."""
    monkeypatch.setattr(slot_module, "SILENT_SECONDS", 0.0)
    asked: list[str] = []
    ask = Asker.ask

    async def counted(asker: Asker, question: Question, answer: Any, *, seconds: float) -> Any:
        asked.append(type(question).__name__)
        return await ask(asker, question, answer, seconds=seconds)

    monkeypatch.setattr(Asker, "ask", counted)
    async with occupied(begin) as (slot, first):
        await until(lambda: asked == ["Begin"], seconds=SECONDS)

        await slot.load()
        was_ready = first.done()
        await asyncio.wait_for(first, SECONDS)

    assert (was_ready, asked[:2]) == (False, ["Begin", "Load"])


async def test_program_that_cannot_be_started_is_told(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")

    async with occupied(begin) as (_, first):
        with pytest.raises(WorkerFailedError, match="cannot be started: No such file"):
            await asyncio.wait_for(first, SECONDS)


def task_named(name: str) -> asyncio.Task[Any]:
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == name]
    return task


async def test_watch_that_dies_is_begun_anew_and_a_worker_that_nobody_has_heard_is_not_called_well(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervision = Supervision()
    async with occupied(begin, supervision) as (slot, first):
        await asyncio.wait_for(first, SECONDS)
        heard_at = slot._heard_at

        task_named("watch of worker 1").cancel()
        await until(lambda: supervision.failures["watch of worker 1"] == 1, seconds=SECONDS)
        before = slot.problem
        monkeypatch.setattr(slot_module, "UNHEARD_SECONDS", 0.0)
        unheard = slot.problem
        await until(lambda: slot._heard_at > heard_at, seconds=SECONDS)

    assert (before, "has not answered for") == ("", unheard[:20])


async def test_bug_in_the_life_of_a_worker_costs_that_one_and_not_the_place(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn, bugs = slot_module._spawn, [RuntimeError("a bug")]

    async def spawn_at_the_second_attempt(*arguments: Any) -> asyncio.subprocess.Process:
        if bugs:
            raise bugs.pop()
        return await spawn(*arguments)

    supervision = Supervision()
    async with occupied(begin, supervision) as (slot, first):
        await asyncio.wait_for(first, SECONDS)
        monkeypatch.setattr(slot_module, "_spawn", spawn_at_the_second_attempt)

        with capture_logs() as logs:
            slot._send(signal.SIGKILL)
            await until(lambda: slot.restarts == 2 and slot.is_ready, seconds=SECONDS)

    assert supervision.failures["worker 1"] == 1
    assert ["RuntimeError('a bug')"] == [line["reason"] for line in logs if line["event"] == "task failed"]


async def test_worker_that_leaves_is_not_replaced_and_tells_what_it_has_left(begin: Begin) -> None:
    async with occupied(begin) as (slot, first):
        await asyncio.wait_for(first, SECONDS)

        await slot.leave(5.0)
        assert Left() == await slot.left()
        slot.stop()
        await until(lambda: slot.pid is None, seconds=SECONDS)

        assert (0, Left()) == (slot.restarts, await slot.left())


async def test_worker_that_is_stopped_counts_as_busy_when_it_should_leave(begin: Begin) -> None:
    async with occupied(begin) as (slot, first):
        await asyncio.wait_for(first, SECONDS)
        assert slot.pid is not None
        os.kill(slot.pid, signal.SIGSTOP)

        await slot.leave(5.0)

        assert Left(busy=("worker 1",)) == await slot.left()


async def test_place_without_a_worker_leaves_at_once() -> None:
    slot = Slot(1, Begin(b"", b"i" * 16))

    await slot.leave(5.0)

    assert Left() == await slot.left()
