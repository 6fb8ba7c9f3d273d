"""One timer for many instants."""

from __future__ import annotations

import asyncio

from broker.conversation.frames import Contact
from broker.conversation.outbound import Outbound
from broker.conversation.window import NEVER, Backoff, RoundTrip, Window
from broker.dialog.send_queue import Alarms, Sender
from tests.support.virtual_time import virtual_time


def sender(endpoint_id: int) -> Sender:
    outbound = Outbound(RoundTrip(Backoff(1.0, 64.0)), Window(10, 1000))
    return Sender(endpoint_id, Contact(bytes(16), True, "A", bytes(16), "B"), outbound, (0, 0))


@virtual_time
async def test_alarms_ring_in_their_order() -> None:
    rung: list[tuple[float, int]] = []
    alarms = Alarms(lambda at, endpoint_id: rung.append((at, endpoint_id)))

    for endpoint_id, at in ((1, 3.0), (2, 1.0), (3, 2.0)):
        alarms.set(sender(endpoint_id), at)
    first = alarms.next_at
    await asyncio.sleep(2.5)

    assert (first, rung, len(alarms)) == (1.0, [(1.0, 2), (2.0, 3)], 1)
    alarms.close()


@virtual_time
async def test_alarm_is_moved_forward_and_never_back() -> None:
    rung: list[float] = []
    alarms = Alarms(lambda at, _: rung.append(at))
    one = sender(1)

    for at in (3.0, 5.0, 1.0):
        alarms.set(one, at)
    await asyncio.sleep(10.0)

    assert (one.armed_at, rung) == (1.0, [1.0, 3.0])


@virtual_time
async def test_alarm_may_be_set_while_one_rings() -> None:
    rung: list[float] = []
    one = sender(1)

    def ring(at: float, _: int) -> None:
        rung.append(at)
        one.armed_at = NEVER
        if at < 3.0:
            alarms.set(one, at + 1.0)

    alarms = Alarms(ring)
    alarms.set(one, 1.0)
    await asyncio.sleep(10.0)

    assert (rung, alarms.next_at) == ([1.0, 2.0, 3.0], NEVER)


@virtual_time
async def test_closed_alarms_do_not_ring() -> None:
    rung: list[float] = []
    alarms = Alarms(lambda at, _: rung.append(at))
    alarms.close()
    alarms.set(sender(1), 1.0)

    alarms.close()
    await asyncio.sleep(2.0)

    assert rung == []
