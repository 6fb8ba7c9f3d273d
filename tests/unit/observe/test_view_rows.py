"""Rows of an instance that runs, read from another thread."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.observe import views
from broker.observe.views import MEMORY_VIEWS, rows_of_running
from tests.support.loopback import until


async def _rows(instance: Any, view: str) -> list[dict[str, Any]]:
    source = rows_of_running(instance)[view]
    rows = await asyncio.to_thread(lambda: list(source()))
    return [dict(zip(MEMORY_VIEWS[view], row, strict=True)) for row in rows]


async def test_drops_of_the_pass_and_of_databases_are_rows_with_the_last_frame(start: Any, take: Any) -> None:
    gateway = await start("gateway", msdb="CREATE ROUTE own WITH SERVICE_NAME = '//gateway', ADDRESS = 'LOCAL'")
    for sequence in (1, 2):
        take(gateway, sequence_number=sequence)
    take(gateway, to_service="//gateway", sequence_number=7)  # of a dialog whose beginning never came
    await until(lambda: gateway.endpoints["gateway"].dropped)

    ours, theirs = await _rows(gateway, "sys.dm_broker_dispositions")

    assert ("no route", 9798, None, 2) == tuple(ours.values())[:4]
    assert ("unknown conversation", 11213, "gateway", 1) == tuple(theirs.values())[:4]
    for row, service, sequence in ((ours, "//far", 2), (theirs, "//gateway", 7)):
        assert (service, sequence) == (row["to_service_name"], row["message_sequence_number"])
        assert datetime.now(UTC) - timedelta(minutes=1) < row["last_time"] <= datetime.now(UTC)


async def test_fault_in_the_loop_is_raised_where_it_was_asked(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = rows_of_running(await start("near"))["sys.dm_broker_connections"]
    monkeypatch.setattr(views, "read_snapshot", lambda *_: 1 // 0)

    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(source)
