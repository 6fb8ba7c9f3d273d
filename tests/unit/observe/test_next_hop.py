from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.observe import snapshot as next_hop
from broker.observe.snapshot import next_hop_status
from tests.unit.observe.conftest import DEAD


async def test_what_waits_for_a_next_hop_is_told_with_its_age_and_the_reason(
    start: Callable[..., Any], take: Callable[..., Any]
) -> None:
    instance = await start("one", msdb=f"CREATE ROUTE Far WITH SERVICE_NAME = '//far', ADDRESS = '{DEAD}'")
    take(instance, to_service="//far")
    take(instance, to_service="//far", sequence_number=1)

    [told] = next_hop_status(instance, asyncio.get_running_loop().time() + 5)

    assert (DEAD, 2) == (told["next_hop"], told["held"])
    assert 5 <= told["oldest_s"] < 60
    assert told["held_bytes"] > 0
    assert told["why"]


async def test_a_next_hop_for_which_nothing_waits_is_not_told(start: Callable[..., Any]) -> None:
    instance = await start("one")

    assert [] == next_hop_status(instance, asyncio.get_running_loop().time())


async def test_of_many_those_with_most_are_told(
    start: Callable[..., Any], take: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "tcp://127.0.0.1:2"
    to_both = f"CREATE ROUTE A WITH SERVICE_NAME = '//a', ADDRESS = '{DEAD}'; "
    to_both += f"CREATE ROUTE B WITH SERVICE_NAME = '//b', ADDRESS = '{other}'"
    instance = await start("one", msdb=to_both)
    take(instance, to_service="//a")
    take(instance, to_service="//b")
    take(instance, to_service="//b", sequence_number=1)
    monkeypatch.setattr(next_hop, "NEXT_HOPS_MAX", 1)

    assert [(other, 2)] == [(one["next_hop"], one["held"]) for one in next_hop_status(instance, 0.0)]
