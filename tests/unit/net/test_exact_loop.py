"""The loop's clock is the monotonic one, to the microsecond, and timers go by it."""

from __future__ import annotations

import asyncio
import time

from broker.daemon.exact_loop import ExactLoop


def test_time_is_told_to_the_microsecond() -> None:
    loop = ExactLoop()
    try:
        told = [(time.monotonic(), loop.time(), time.monotonic()) for _ in range(1000)]
    finally:
        loop.close()

    assert all(before <= now <= after for before, now, after in told)
    assert len({round(now * 1e6) % 1000 for _, now, _ in told}) > 10


def test_timer_rings_when_it_is_due() -> None:
    async def lateness() -> float:
        loop = asyncio.get_running_loop()
        due = loop.time() + 0.02
        rang: asyncio.Future[float] = loop.create_future()
        loop.call_at(due, lambda: rang.set_result(loop.time()))
        return await rang - due

    with asyncio.Runner(loop_factory=ExactLoop) as runner:
        late = runner.run(lateness())

    assert -0.002 <= late < 5
