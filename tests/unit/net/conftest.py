"""Every test of the links runs on a loop with played sockets and virtual time."""

import asyncio
from collections.abc import Callable

import pytest

from tests.support.peers import Neighbourhood
from tests.support.played import PlayedLoop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"played": PlayedLoop}


@pytest.fixture
async def loop() -> PlayedLoop:
    running = asyncio.get_running_loop()
    assert isinstance(running, PlayedLoop)
    return running


@pytest.fixture
async def near(loop: PlayedLoop, monkeypatch: pytest.MonkeyPatch) -> Neighbourhood:
    return Neighbourhood(loop, monkeypatch)
