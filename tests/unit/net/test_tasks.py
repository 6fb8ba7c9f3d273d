"""Tasks are kept until they end, and end when they are told to."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from broker.supervision import TaskGroup


async def test_task_is_kept_until_it_has_ended() -> None:
    tasks = TaskGroup()

    tasks.spawn(asyncio.sleep(1), "short")
    tasks.spawn(asyncio.sleep(1000), "long")
    await asyncio.sleep(2)
    assert 1 == len(tasks)
    await tasks.cancel()

    assert 0 == len(tasks)


async def test_bug_is_told_once_under_the_name_of_the_task() -> None:
    async def fail() -> None:
        raise AssertionError("a bug")

    tasks = TaskGroup()

    with capture_logs() as logs:
        tasks.spawn(fail(), "broken")
        await asyncio.sleep(0.1)

    assert [("task failed", "broken")] == [(entry["event"], entry["task"]) for entry in logs]
    assert 0 == len(tasks)
