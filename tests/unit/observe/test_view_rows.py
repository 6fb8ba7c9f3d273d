"""Rows of an instance that runs, read from another thread."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.observe import views
from broker.observe.views import MEMORY_VIEWS, rows_of_running


async def _rows(instance: Any, view: str) -> list[dict[str, Any]]:
    source = rows_of_running(instance)[view]
    rows = await asyncio.to_thread(lambda: list(source()))
    return [dict(zip(MEMORY_VIEWS[view], row, strict=True)) for row in rows]


async def test_stranger_that_says_nothing_is_shown(start: Any, until: Any) -> None:
    instance = await start("near")
    _, writer = await asyncio.open_connection("127.0.0.1", instance.listeners[0].port)
    await until(lambda: instance.peers.links)

    (row,) = await _rows(instance, "sys.dm_broker_connections")
    writer.close()

    assert (3, 1, None, None) == (row["state"], row["login_state"], row["peer_name"], row["login_time"])


async def test_drops_of_the_pass_and_of_databases_are_rows_with_the_last_frame(
    start: Any, take: Any, until: Any
) -> None:
    gateway = await start("gateway", msdb="CREATE ROUTE own WITH SERVICE_NAME = '//gateway', ADDRESS = 'LOCAL'")
    for sequence in (1, 2):
        take(gateway, sequence_number=sequence)
    take(gateway, to_service="//gateway", sequence_number=7)  # of a dialog whose beginning never came
    await until(lambda: gateway.endpoints["gateway"].dropped)

    ours, theirs = await _rows(gateway, "sys.dm_broker_dispositions")

    assert ("no route", 9798, None, 2) == tuple(ours.values())[:4]
    assert ("//far", "//near", 2, 1) == (
        ours["to_service_name"],
        ours["from_service_name"],
        ours["message_sequence_number"],
        ours["is_initiator"],
    )
    assert ("unknown conversation", 11213, "gateway", 1) == tuple(theirs.values())[:4]
    assert ("//gateway", 7) == (theirs["to_service_name"], theirs["message_sequence_number"])
    assert all(
        datetime.now(UTC) - timedelta(minutes=1) < row["last_time"] <= datetime.now(UTC) for row in (ours, theirs)
    )


async def test_fault_in_the_loop_is_raised_where_it_was_asked(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = rows_of_running(await start("near"))["sys.dm_broker_connections"]
    monkeypatch.setattr(views, "read_snapshot", lambda *_: 1 // 0)

    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(source)
