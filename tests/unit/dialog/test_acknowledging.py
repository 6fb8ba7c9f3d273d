"""What is told at once, what waits for a message that carries it, and what waits in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from broker.conversation.frames import Contact
from broker.dialog.arrivals import DELAY, ENOUGH, Acknowledging
from broker.store.receipt import Standing
from tests.support.virtual_time import virtual_time

CONTACT = Contact(bytes(16), False, "Billing", bytes(16), "Orders", bytes(range(16)))
ONE = Standing(CONTACT, (1, 0), frames=1)


class Far:
    """Hears what is told. Shape: `heard` (endpoint_id, place) in order."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, tuple[int, int]]] = []
        self.acknowledging = Acknowledging(self.tell)

    def tell(self, stored: Mapping[int, Standing]) -> None:
        self.heard += [(endpoint_id, standing.place) for endpoint_id, standing in stored.items()]


@virtual_time
async def test_a_frame_is_acknowledged_after_a_while() -> None:
    far = Far()
    far.acknowledging.note({1: ONE})

    await asyncio.sleep(DELAY * 0.9)
    assert [] == far.heard
    await asyncio.sleep(DELAY * 0.2)
    assert [(1, (1, 0))] == far.heard


@virtual_time
async def test_what_is_urgent_is_told_at_once_and_once() -> None:
    far = Far()
    far.acknowledging.note({1: ONE, 2: ONE})

    far.acknowledging.note({1: replace(ONE, place=(2, 0), is_urgent=True)})

    assert [(1, (2, 0))] == far.heard
    await asyncio.sleep(2 * DELAY)
    assert [(1, (2, 0)), (2, (1, 0))] == far.heard


@virtual_time
async def test_enough_is_enough_in_one_batch_or_several() -> None:
    far = Far()
    far.acknowledging.note({1: replace(ONE, frames=ENOUGH)})
    for number in range(1, ENOUGH + 1):
        far.acknowledging.note({2: replace(ONE, place=(number, 0))})

    assert [(1, (1, 0)), (2, (ENOUGH, 0))] == far.heard
    assert {} == far.acknowledging.pending


@virtual_time
async def test_message_that_carries_it_saves_the_frame() -> None:
    far = Far()
    far.acknowledging.note({1: replace(ONE, place=(3, 0)), 2: replace(ONE, place=(3, 0))})

    far.acknowledging.on_told(1, (3, 0))
    far.acknowledging.on_told(2, (2, 5))
    far.acknowledging.on_told(9, (1, 0))
    await asyncio.sleep(2 * DELAY)

    assert [(2, (3, 0))] == far.heard


@virtual_time
async def test_later_arrivals_do_not_put_it_off() -> None:
    far = Far()
    far.acknowledging.note({1: ONE})
    await asyncio.sleep(DELAY * 0.6)
    far.acknowledging.note({1: replace(ONE, place=(2, 0))})
    await asyncio.sleep(DELAY * 0.6)

    assert [(1, (2, 0))] == far.heard


@virtual_time
async def test_what_waits_is_told_at_the_end_and_nothing_after_it() -> None:
    far = Far()
    far.acknowledging.note({1: ONE})

    far.acknowledging.close()
    await asyncio.sleep(2 * DELAY)

    assert [(1, (1, 0))] == far.heard


@virtual_time
async def test_nothing_to_tell_is_not_told() -> None:
    far = Far()
    far.acknowledging.note({})
    far.acknowledging.close()

    assert [] == far.heard
