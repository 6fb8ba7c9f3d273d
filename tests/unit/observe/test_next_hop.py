from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from broker.observe.next_hop import NEXT_HOPS_MAX, add_next_hops, next_hop_status
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


def waiting(hop: str, held: int, oldest_s: float, why: str) -> dict[str, Any]:
    return {
        "next_hop": hop,
        "held": held,
        "held_bytes": 10 * held,
        "oldest_s": oldest_s,
        "why": why,
        "next_attempt_s": float(held),
    }


def test_of_several_workers_the_one_with_most_tells_why() -> None:
    parts = [[waiting("a", 1, 9.0, "little"), waiting("b", 2, 1.0, "b")], [waiting("a", 5, 2.0, "most")]]

    assert [waiting("a", 6, 9.0, "most") | {"next_attempt_s": 5.0}, waiting("b", 2, 1.0, "b")] == add_next_hops(parts)


def test_of_many_those_with_most_are_told() -> None:
    many = [waiting(f"hop {number}", number, 0.0, "") for number in range(1, NEXT_HOPS_MAX + 51)]

    told = add_next_hops([many])

    assert (NEXT_HOPS_MAX, NEXT_HOPS_MAX + 50, 51) == (len(told), told[0]["held"], told[-1]["held"])
