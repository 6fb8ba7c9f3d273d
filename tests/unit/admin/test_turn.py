from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from broker.admin.turn import Turns
from broker.admin.wanted import note_request
from broker.config.admin_access import AdminRole

THREADS = 3
SECONDS = 20.0


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as made:
        yield made


async def asking(turns: Turns, role: AdminRole, work: Any) -> Any:
    note_request(SimpleNamespace(transport=None), role)  # type: ignore[arg-type]
    return await turns.run(work)


@pytest.mark.parametrize(
    ("role", "taken", "other"),
    [
        (AdminRole.VIEWER, THREADS - 2, AdminRole.OPERATOR),
        (AdminRole.VIEWER, THREADS - 2, AdminRole.ADMIN),
        (AdminRole.OPERATOR, THREADS - 1, AdminRole.ADMIN),
    ],
)
async def test_each_role_leaves_a_thread_to_those_above_it(
    executor: ThreadPoolExecutor, role: AdminRole, taken: int, other: AdminRole
) -> None:
    turns, gate, begun = Turns(executor, THREADS), threading.Event(), threading.Semaphore(0)

    def long() -> str:
        begun.release()
        assert gate.wait(SECONDS)
        return "long"

    crowd = [asyncio.create_task(asking(turns, role, long)) for _ in range(10)]
    for _ in range(taken):
        assert await asyncio.to_thread(begun.acquire, timeout=SECONDS)
    answered = await asyncio.create_task(asking(turns, other, lambda: "short"))
    has_more_begun = begun.acquire(blocking=False)
    gate.set()

    assert ("short", False) == (answered, has_more_begun)
    assert ["long"] * 10 == await asyncio.gather(*crowd)


async def test_a_viewer_alone_has_a_turn_where_there_is_one_thread(executor: ThreadPoolExecutor) -> None:
    assert 7 == await asking(Turns(executor, 1), AdminRole.VIEWER, lambda: 7)


async def test_who_has_gone_gives_its_turn_back(executor: ThreadPoolExecutor) -> None:
    turns = Turns(executor, 1)
    gate = threading.Event()
    first = asyncio.create_task(asking(turns, AdminRole.VIEWER, lambda: gate.wait(SECONDS)))
    waiting = asyncio.create_task(asking(turns, AdminRole.VIEWER, lambda: 1))
    await asyncio.sleep(0)
    waiting.cancel()
    gate.set()

    assert await first
    assert 2 == await asking(turns, AdminRole.VIEWER, lambda: 2)
