"""A catalog to execute scripts on."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.catalog_world import World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    await world.catalog.load()
    world.changes = 0
    yield world
    assert (world.borrowed, world.catalog.scripts) == ([], [])
    world.close()
