"""Each question gets its own answer, in any order, or the reason why there is none."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
from structlog.testing import capture_logs

from broker.errors import StoreUnavailableError
from broker.workers.channel import LENGTH, Asker, WorkerFailedError, answer_all
from broker.workers.message import Asked, Load, Passed, Question, Rows

SECONDS = 10.0
encode = msgspec.msgpack.encode


@asynccontextmanager
async def channel(answering: Callable[[Question], Awaitable[bytes]]) -> AsyncIterator[tuple[Asker, socket.socket]]:
    """An asker, and its end of the socket; the other end answers."""
    ours, theirs = socket.socketpair()
    asker = Asker(3)
    await asker.connect(ours)
    tasks = [asyncio.create_task(asker.run()), asyncio.create_task(answer_all(theirs, answering))]
    try:
        yield asker, theirs
    finally:
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_answers_come_in_any_order() -> None:
    asked = asyncio.Event()

    async def answering(question: Question) -> bytes:
        if isinstance(question, Rows):
            asked.set()
            return encode(question.view)
        await asked.wait()
        return encode(["late"])

    async with channel(answering) as (asker, _):
        late = asyncio.create_task(asker.ask(Passed(), list[str], seconds=SECONDS))
        await asyncio.sleep(0)
        first = await asker.ask(Rows("sys.v"), str, seconds=SECONDS)

        assert (first, await late) == ("sys.v", ["late"])


@pytest.mark.parametrize("size", [0, 70_000, 3_000_000])
async def test_long_answers_arrive_whole(size: int) -> None:
    async def answering(_: Question) -> bytes:
        return encode(b"x" * size)

    async with channel(answering) as (asker, _):
        assert await asker.ask(Load(), bytes, seconds=SECONDS) == b"x" * size


async def test_problem_of_one_question_is_told_and_ends_nothing() -> None:
    async def answering(question: Question) -> bytes:
        if isinstance(question, Load):
            raise StoreUnavailableError("msdb.db", "disk I/O error")
        return encode(1)

    async with channel(answering) as (asker, _):
        with capture_logs() as logs, pytest.raises(WorkerFailedError) as caught:
            await asker.ask(Load(), None, seconds=SECONDS)

        assert str(caught.value) == "worker 3: store msdb.db: disk I/O error"
        assert logs == []
        assert await asker.ask(Passed(), int, seconds=SECONDS) == 1


async def test_bug_is_logged_where_it_happens() -> None:
    async def answering(_: Question) -> bytes:
        raise KeyError("inside")

    async with channel(answering) as (asker, _):
        with capture_logs() as logs, pytest.raises(WorkerFailedError, match="inside"):
            await asker.ask(Load(), None, seconds=SECONDS)

    assert [(line["event"], line["question"]) for line in logs] == [("question failed", "Load")]


async def test_end_of_the_other_side_ends_every_question() -> None:
    ours, theirs = socket.socketpair()
    asker = Asker(1)
    await asker.connect(ours)
    running = asyncio.create_task(asker.run())
    questions = [asyncio.create_task(asker.ask(Load(), None, seconds=SECONDS)) for _ in range(2)]
    await asyncio.sleep(0)

    theirs.close()
    await running

    results = await asyncio.gather(*questions, return_exceptions=True)
    assert [str(result) for result in results] == ["worker 1: it has ended"] * 2
    with pytest.raises(WorkerFailedError, match="it is not there"):
        await asker.ask(Load(), None, seconds=SECONDS)


async def test_no_answer_in_time_is_a_failure_and_a_late_one_is_ignored() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    asker = Asker(1)
    await asker.connect(ours)
    running = asyncio.create_task(asker.run())
    with pytest.raises(WorkerFailedError, match=r"no answer within 0\.01 s"):
        await asker.ask(Load(), None, seconds=0.01)

    (length,) = LENGTH.unpack(await loop.sock_recv(theirs, LENGTH.size))
    number = msgspec.msgpack.decode(await loop.sock_recv(theirs, length), type=Asked).number
    late = encode({"number": number})
    await loop.sock_sendall(theirs, LENGTH.pack(len(late)) + late)
    theirs.close()

    await running
