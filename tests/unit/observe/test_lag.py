from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import AsyncExitStack

from broker.observe.loop_lag import TICK_SECONDS, WINDOW_TICKS, LoopLag


def test_loop_that_was_never_looked_at_has_no_lag() -> None:
    assert LoopLag().seconds == 0.0


def test_worst_tick_is_told() -> None:
    lag = LoopLag()
    for late in (0.001, 0.2, 0.003):
        lag.note(late)

    assert lag.seconds == 0.2


def test_early_tick_counts_as_punctual() -> None:
    lag = LoopLag()
    lag.note(-0.01)

    assert lag.seconds == 0.0


def test_old_ticks_are_forgotten() -> None:
    lag = LoopLag()
    lag.note(5.0)
    for _ in range(WINDOW_TICKS):
        lag.note(0.0)

    assert lag.seconds == 0.0


async def test_time_is_kept_until_the_stack_ends_it() -> None:
    lag = LoopLag()

    async with AsyncExitStack() as stack:
        lag.start(stack)
        keeping = [task for task in asyncio.all_tasks() if task.get_name() == "loop lag"]
        await asyncio.sleep(0)

    assert [True] == [task.cancelled() for task in keeping]


async def test_blocked_loop_is_noticed() -> None:
    lag = LoopLag()
    task = asyncio.create_task(lag.run())
    await asyncio.sleep(0)  # the first tick is asked for

    time.sleep(2 * TICK_SECONDS)  # noqa: ASYNC251 - blocking the loop is what this is about
    async with asyncio.timeout(10):
        while not lag.seconds:  # noqa: ASYNC110 - it sets no event
            await asyncio.sleep(0.001)

    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert lag.seconds >= TICK_SECONDS / 2
