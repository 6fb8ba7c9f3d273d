"""Readers at work in a test's own loop, and what they leave in the file."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from broker.client.reader_pool import run_readers
from tests.support.shop import Shop


@asynccontextmanager
async def reading(readers: object, path: Path, **options: Any) -> AsyncIterator[asyncio.Task[bool]]:
    """Readers that run while this lasts; a bug in them is raised at the end."""
    stop = asyncio.Event()
    task = asyncio.create_task(run_readers(readers, path, stop=stop, **options))
    try:
        yield task
    finally:
        stop.set()
        await task


def count(shop: Shop, table: str, where: str = "1") -> int:
    """Rows of a table."""
    with closing(sqlite3.connect(shop.path)) as db:
        number: int = db.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchone()[0]
    return number


def is_drained(shop: Shop) -> bool:
    """Whether nothing waits for a reader, and no group is locked."""
    return count(shop, "broker_message", "status = 1") == 0 and count(shop, "broker_group_lock") == 0
