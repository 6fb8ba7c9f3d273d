"""A connection for asyncio: whose turn it is, what a cancellation leaves, and that nothing waits on the loop."""

import asyncio
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from broker.client.async_connection import Connecting, Connection
from broker.client.receiving import Waiting
from broker.client.waiting import Doorbell
from broker.errors import ConversationError, StoreUnavailableError
from tests.support.loopback import until
from tests.support.shop import Shop, sqlite_error

INSERT = "INSERT INTO orders (id) VALUES (?)"
SECONDS = 20.0


def connect(shop: Shop, **options: Any) -> Connecting:
    return Connecting(shop.path, options)


def ids(shop: Shop) -> list[int]:
    """What others see."""
    found: list[int] = shop.look("SELECT id FROM orders ORDER BY id")
    return found


async def test_each_call_commits_by_itself(shop: Shop) -> None:
    async with connect(shop) as db:
        await db.execute(INSERT, [1])
        seen = ids(shop)
        changed = await db.executemany(INSERT, [(2,), (3,)])
        rows = await db.execute("SELECT id FROM orders ORDER BY id")

    assert ([1], 2, [(1,), (2,), (3,)], [1, 2, 3]) == (seen, changed, rows, ids(shop))


class FullDisk(sqlite3.Connection):
    """One that finds no room at the COMMIT."""

    def commit(self) -> None:
        raise sqlite_error(sqlite3.SQLITE_FULL)


async def test_full_disk_at_the_end_of_a_transaction_is_told_and_nothing_is_kept(shop: Shop) -> None:
    async with Connecting(shop.path, {"factory": FullDisk}) as db:
        with pytest.raises(StoreUnavailableError, match="the disk is full: free some space") as caught:
            async with db:
                await db.execute(INSERT, [1])

        assert str(shop.path) == caught.value.path
        assert not db.is_in_transaction
    assert [] == ids(shop)


async def test_others_wait_for_the_end_of_a_transaction_and_its_own_tasks_do_not(shop: Shop) -> None:
    async with connect(shop) as db:
        order: list[str] = []

        async def other() -> None:
            await db.execute(INSERT, [2])
            order.append("other")

        outside = asyncio.create_task(other())
        async with db:
            await asyncio.wait_for(db.execute(INSERT, [1]), SECONDS)  # a task of its own before Python 3.12
            async with asyncio.TaskGroup() as group:
                group.create_task(db.execute(INSERT, [3]))
            await asyncio.sleep(0.02)
            order.append("owner")
        await outside

    assert (["owner", "other"], [1, 2, 3]) == (order, ids(shop))


async def test_task_that_outlives_the_transaction_in_which_it_was_started_is_on_its_own(shop: Shop) -> None:
    async with connect(shop) as db:
        go = asyncio.Event()

        async def later() -> None:
            await go.wait()
            await db.execute(INSERT, [2])

        async with db:
            task = asyncio.create_task(later())
            await db.execute(INSERT, [1])
        async with db:
            go.set()
            await asyncio.sleep(0.01)
            seen = await db.execute("SELECT id FROM orders")
        await task

    assert ([(1,)], [1, 2]) == (seen, ids(shop))


async def test_transaction_inside_another_one_or_begun_by_hand_is_refused(shop: Shop) -> None:
    """And a call that fails leaves the transaction to its owner."""
    async with connect(shop) as db, db:
        await db.execute(INSERT, [1])
        with pytest.raises(ConversationError, match="inside a transaction of the same connection") as caught:
            await db.__aenter__()
        with pytest.raises(sqlite3.IntegrityError):
            await db.execute(INSERT, [1])
        await db.execute(INSERT, [2])
    async with connect(shop) as db:
        with pytest.raises(ConversationError, match="not with BEGIN"):
            await db.execute("BEGIN")

    assert (628, [1, 2]) == (caught.value.number, ids(shop))


class Gate:
    """A call that has begun in the thread and ends when it is let."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.go = threading.Event()

    def __call__(self, db: Connection) -> str:
        self.has_begun.set()
        assert self.go.wait(SECONDS)
        db._db.execute(INSERT, (1,))
        return "done"


async def cancel_inside(db: Connection, gate: Gate) -> None:
    """A call is cancelled while it runs, and its caller goes on."""
    task = asyncio.create_task(db.run(gate, db))
    await until(gate.has_begun.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_transaction_with_a_call_that_was_cancelled_while_it_ran_is_undone(shop: Shop) -> None:
    gate = Gate()
    async with connect(shop) as db:
        with pytest.raises(StoreUnavailableError, match="a call inside this transaction was cancelled"):  # noqa: PT012
            async with db:
                await cancel_inside(db, gate)
                gate.go.set()
                await db.execute(INSERT, [2])
        await db.execute(INSERT, [3])

    assert [3] == ids(shop)


async def test_cancelled_task_rolls_back_behind_the_call_that_still_runs(shop: Shop) -> None:
    gate = Gate()
    async with connect(shop) as db:

        async def work() -> None:
            async with db:
                await db.run(gate, db)

        task = asyncio.create_task(work())
        await until(gate.has_begun.is_set)
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()  # impatient
        gate.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await db.execute(INSERT, [2])

    assert [2] == ids(shop)


@pytest.mark.parametrize("is_late", [False, True])
async def test_commit_that_has_begun_is_seen_to_its_end(shop: Shop, *, is_late: bool) -> None:
    holder = shop.connect(timeout=0)
    async with connect(shop) as db:

        async def work() -> None:
            async with db:
                await db.execute(INSERT, [1])
                started.set()
                if is_late:
                    await asyncio.sleep(SECONDS)

        started = asyncio.Event()
        task = asyncio.create_task(work())
        await started.wait()
        if not is_late:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        holder.execute("BEGIN IMMEDIATE")  # nothing is left open
        holder.rollback()

    assert ids(shop) == ([] if is_late else [1])


def counting(db: sqlite3.Connection, pauses: int) -> Waiting[str]:
    for number in range(pauses):
        db.execute("SELECT 1")
        yield Doorbell("", 0).within(0.001 * number)
    db.execute(INSERT, (1,))
    return "there"


async def test_wait_that_is_cancelled_before_it_found_anything_harms_nothing(shop: Shop) -> None:
    async with connect(shop) as db, db:
        await db.execute(INSERT, [5])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await db.run_steps(lambda plain: counting(plain, 100_000))
        await db.execute(INSERT, [6])
        assert "there" == await db.run_steps(lambda plain: counting(plain, 5))

    assert [1, 5, 6] == ids(shop)


async def test_find_that_nobody_saw_is_undone(shop: Shop) -> None:
    """Cancelled between the moment at which something was found and the one at which the caller would have had it."""
    gate = Gate()

    def finding(db: sqlite3.Connection) -> Waiting[None]:
        gate.has_begun.set()
        assert gate.go.wait(SECONDS)
        db.execute(INSERT, (1,))
        yield from ()

    async with connect(shop) as db:
        with pytest.raises(StoreUnavailableError, match="was cancelled while it ran"):  # noqa: PT012
            async with db:
                task = asyncio.create_task(db.run_steps(finding))
                await until(gate.has_begun.is_set)
                gate.go.set()
                time.sleep(0.05)  # noqa: ASYNC251
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

    assert [] == ids(shop)


async def test_connection_can_be_awaited_and_closed_twice(shop: Shop) -> None:
    db = await connect(shop)
    before = threading.active_count()
    await db.execute(INSERT, [1])

    await db.close()
    await db.close()

    assert before - 1 == threading.active_count()


async def test_opening_that_fails_or_is_cancelled_leaves_nothing_behind(shop: Shop, tmp_path: Path) -> None:
    before = threading.active_count()
    missing = tmp_path / "no" / "such.db"
    with pytest.raises(StoreUnavailableError, match="unable to open") as caught:
        await Connecting(missing, {})
    assert str(missing) == caught.value.path
    task = asyncio.create_task(connect(shop)._open())
    await asyncio.sleep(0)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await until(lambda: threading.active_count() == before)
