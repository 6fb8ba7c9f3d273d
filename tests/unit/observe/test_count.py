from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.observe.stream import read_counts
from tests.unit.observe.conftest import DEAD


async def test_the_counts_of_an_instance(start: Callable[..., Any], take: Callable[..., Any]) -> None:
    instance = await start("one", msdb=f"CREATE ROUTE Far WITH SERVICE_NAME = '//far', ADDRESS = '{DEAD}'")
    take(instance, to_service="//far")
    take(instance, to_service="//absent")

    counts = read_counts(instance)

    forwarder = instance.forwarder
    assert (2, 1, 1, 0) == (counts.received, counts.held, counts.dropped, counts.forwarded)
    assert forwarder.pool.used_bytes == counts.pool_bytes > 0
