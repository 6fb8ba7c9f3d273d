"""Asynchronous tests run on uvloop, in a complete run on both loops, and leave nothing behind."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from examples.demo.topology import Topology
from tests.support.tiers import IS_COMPLETE


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.SelectorEventLoop, **factories} if IS_COMPLETE else factories


def _sockets() -> set[object]:
    """The network sockets that this process has open; the loops' own pairs are none."""
    return set(psutil.Process().net_connections(kind="inet"))


@pytest.fixture
async def guard() -> AsyncIterator[None]:
    """Nothing is left of the test: no task, no socket, no thread, and nothing that a callback raised."""
    loop = asyncio.get_running_loop()
    problems: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: problems.append(context))
    sockets, threads, tasks = _sockets(), set(threading.enumerate()), asyncio.all_tasks()

    yield

    await loop.shutdown_default_executor()
    assert set() == asyncio.all_tasks() - tasks - {asyncio.current_task()}
    assert set() == _sockets() - sockets
    assert set() == set(threading.enumerate()) - threads
    assert [] == problems


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Topology]:
    """Daemons, which end with the test."""
    with Topology(tmp_path / "net") as topology:
        yield topology
