"""A connection is shown by what it does, in the view, the status and the metrics alike."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest

from broker.observe.status import read_status
from broker.observe.view_rows import Snapshots
from tests.support.scraped import samples_of


async def connected(start: Any, send: Any, until: Any) -> tuple[Any, Any]:
    """An instance that has sent a message to another."""
    target = await start("target")
    route = f"CREATE ROUTE r WITH SERVICE_NAME = '//target', ADDRESS = 'tcp://127.0.0.1:{target.listeners[0].port}'"
    near = await start("near", route)
    send(near, "//target")
    await until(lambda: target.forwarder.received)
    return near, target


async def test_status_tells_what_a_connection_does(start: Any, send: Any, until: Any) -> None:
    near, target = await connected(start, send, until)

    (out,), (into,) = read_status(near)["connections"], read_status(target)["connections"]

    assert [(one["direction"], one["flow"], one["flow_reason"]) for one in (out, into)] == [
        ("out", "flowing", ""),
        ("in", "flowing", ""),
    ]
    (link,) = near.peers.links.values()
    apart = datetime.fromisoformat(out["last_progress"]) - datetime.fromisoformat(out["flow_since"])
    assert apart.total_seconds() == pytest.approx(link.flow.progress_at - link.flow.since, abs=0.002)


async def test_view_tells_the_same(start: Any, send: Any, until: Any) -> None:
    near, _ = await connected(start, send, until)

    (row,) = await asyncio.to_thread(Snapshots(near).connections)

    assert row[-5:-3] == ("flowing", None)
    (link,) = near.peers.links.values()
    since, progress = row[-3], row[-2]
    assert isinstance(since, datetime)
    assert isinstance(progress, datetime)
    assert (progress - since).total_seconds() == pytest.approx(link.flow.progress_at - link.flow.since, abs=0.002)


async def test_metrics_count_connections_by_state_and_by_flow(start: Any, send: Any, until: Any) -> None:
    near, _ = await connected(start, send, until)

    samples = await samples_of(near)

    assert samples["broker_connections"] == {("target", "out", "LOGGED_IN"): 1}
    assert samples["broker_connection_flows"] == {("target", "out", "flowing"): 1}
