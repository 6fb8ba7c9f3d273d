"""
The wall clock jumps a day forward, a day back, or forward and back, while two databases converse over a bad network.

What outlives a process (lifetimes, conversation timers, tombstones) goes by the wall clock, which is believed a minute
after a jump; what happens inside it (resends, acknowledgements) goes by the monotonic one and must not notice anything.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from broker.client.dialog import Dialog, begin_dialog
from broker.client.receiving import Message, receive
from broker.conversation.state import ConversationState
from broker.dialog.endpoint import MAINTENANCE_SECONDS, SETTLE_SECONDS
from broker.flow import Disposition
from broker.protocol.frame import decode_dialog
from broker.protocol.layout import FrameKind
from tests.simulation.performance import DAY
from tests.support.dialog import QUEUE, rows
from tests.support.network import Network, Node, Weather, Wire
from tests.support.virtual_time import virtual_time

SOON = 10.0  # virtual seconds within which everything is over on a network that loses a fifth
BAD = Weather(loss=0.2, repeat=0.1, delay=0.05)
HOUR = 3600.0
JUMPS = pytest.mark.parametrize("jumps", [(DAY,), (-DAY,), (DAY, -DAY), (-DAY, DAY)], ids=str)


@dataclass
class Played:
    """Two databases and their wall clock, which is `off` seconds from the right time."""

    network: Network
    shop: sqlite3.Connection
    bank: sqlite3.Connection
    off: float = 0.0

    def begin(self, lifetime: float = HOUR) -> Dialog:
        return begin_dialog(self.shop, from_service="Orders", to_service="Billing", lifetime=lifetime)

    def endpoint(self, name: str) -> Any:
        return self.network.nodes[name].endpoint

    async def received(self, db: sqlite3.Connection, count: int, *, within: float = SOON) -> list[Message]:
        """So many messages, as they come."""
        taken: list[Message] = []

        def is_all() -> bool:
            taken.extend(receive(db, queue=QUEUE))
            return len(taken) >= count

        await self.network.until(is_all, seconds=within)
        return taken

    async def jump(self, jumps: tuple[float, ...], *, pause: float = 1.0) -> None:
        """One jump after the other, each seen by the daemons before the next."""
        for seconds in jumps:
            self.off += seconds
            await asyncio.sleep(pause)


@asynccontextmanager
async def played(directory: Path, seed: int = 1) -> AsyncIterator[Played]:
    loop: Any = asyncio.get_running_loop()
    network = Network(loop, seed)
    ends = (("shop", "Orders", "Billing", "bank"), ("bank", "Billing", "Orders", "shop"))
    world: Played | None = None

    def wall_clock() -> float:
        right: float = loop.wall_clock()
        return right + (0.0 if world is None else world.off)

    with mock.patch("time.time", wall_clock):
        for name, service, far_service, far in ends:
            ways = [(far_service, f"tcp://{far}:4022")]
            network.add(Node(network, name, [(None, "LOCAL")], directory / f"{name}.db", service, ways))
        with (
            closing(sqlite3.connect(directory / "shop.db", isolation_level=None)) as shop,
            closing(sqlite3.connect(directory / "bank.db", isolation_level=None)) as bank,
        ):
            world = Played(network, shop, bank)
            try:
                yield world
            finally:
                tasks = [kept._task for node in network.nodes.values() for kept in world.endpoint(node.name)._tasks]
                for node in network.nodes.values():
                    node.crash()
                await asyncio.gather(*tasks, return_exceptions=True)


# --- inside the process: resends and acknowledgements ---------------------------------------------------------------


@JUMPS
@virtual_time
@pytest.mark.promise("A clock is wrong")
async def test_messages_come_once_and_in_order_and_no_later_than_without_a_jump(
    tmp_path: Path, jumps: tuple[float, ...]
) -> None:
    async with played(tmp_path) as world:
        world.network.weather = BAD
        dialog = world.begin(lifetime=3 * DAY)
        for number in range(20):
            dialog.send(b"%d" % number)
        await world.jump(jumps, pause=0.05)
        for number in range(20, 40):
            dialog.send(b"%d" % number)

        got = await world.received(world.bank, 40)
        await world.network.until(lambda: not rows(world.shop, "SELECT 1 FROM broker_transmission"), seconds=SOON)

        assert [b"%d" % number for number in range(40)] == [message.body for message in got]
        assert world.network.carried["shop"] < 40 * 5


@JUMPS
@virtual_time
async def test_resend_timer_goes_on_as_if_no_clock_had_jumped(tmp_path: Path, jumps: tuple[float, ...]) -> None:
    """A way that is dead while the clock jumps: neither a storm of resends nor none at all."""
    async with played(tmp_path) as world:
        dialog = world.begin(lifetime=3 * DAY)
        world.network.severed = {("shop", "bank")}
        dialog.send(b"a")
        await asyncio.sleep(2.0)
        before = world.network.carried["shop"]

        await world.jump(jumps, pause=10.0 / len(jumps))

        # From 0.2 s on doubled up to 2 s, so about one in two seconds by now.
        assert 3 <= world.network.carried["shop"] - before <= 7
        world.network.severed = set()
        assert [b"a"] == [message.body for message in await world.received(world.bank, 1, within=3.0)]


# --- lifetimes ------------------------------------------------------------------------------------------------------


@virtual_time
@pytest.mark.promise("A clock is wrong")
async def test_lifetime_is_not_over_by_a_jump_that_is_undone(tmp_path: Path) -> None:
    async with played(tmp_path) as world:
        dialog = world.begin()
        dialog.send(b"a")
        await world.received(world.bank, 1)

        await world.jump((DAY, -DAY), pause=SETTLE_SECONDS / 2)
        await asyncio.sleep(SETTLE_SECONDS)

        assert ConversationState.CONVERSING is dialog.state
        dialog.send(b"b")
        assert [b"b"] == [message.body for message in await world.received(world.bank, 1)]


# --- conversation timers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jumps", "after"),
    [((), 30.0), ((DAY,), SETTLE_SECONDS), ((DAY, -DAY), 30.0), ((-DAY, DAY), 1 + SETTLE_SECONDS)],
    ids=str,
)
@virtual_time
async def test_timer_fires_once_and_not_before_the_clock_is_believed(
    tmp_path: Path, jumps: tuple[float, ...], after: float
) -> None:
    async with played(tmp_path) as world:
        loop = asyncio.get_running_loop()
        dialog = world.begin(lifetime=3 * DAY)
        await asyncio.sleep(1.0)  # a daemon has to have seen the clock before it can see a jump
        dialog.set_timer(30)
        begun = loop.time()

        await world.jump(jumps)
        (timer,) = await world.received(world.shop, 1, within=100.0)

        assert timer.is_timer
        assert after <= loop.time() - begun <= after + 2 * MAINTENANCE_SECONDS
        await asyncio.sleep(SETTLE_SECONDS)
        assert [] == receive(world.shop, queue=QUEUE)


# --- tombstones -----------------------------------------------------------------------------------------------------


async def ended(world: Played) -> bytes:
    """A dialog is over at both ends; the frame that brought its message, as a gateway might repeat it late."""
    frames: list[bytes] = []
    carry = Wire._carry

    def note(wire: Wire, frame: bytes) -> None:
        frames.append(frame)
        carry(wire, frame)

    with mock.patch.object(Wire, "_carry", note):
        dialog = world.begin()
        dialog.send(b"a")
        for message in await world.received(world.bank, 1):
            message.dialog.end()
        (end,) = await world.received(world.shop, 1)
        end.dialog.end()
        await world.network.until(lambda: not rows(world.bank, "SELECT 1 FROM broker_conversation"), seconds=SOON)
    return next(frame for frame in frames if decode_dialog(frame)[0].kind == FrameKind.MESSAGE)


@pytest.mark.parametrize("jumps", [(-DAY,), (DAY, -DAY), (-DAY, DAY)], ids=str)
@virtual_time
@pytest.mark.promise("A clock is wrong")
async def test_late_copy_of_a_message_is_known_after_a_jump(tmp_path: Path, jumps: tuple[float, ...]) -> None:
    async with played(tmp_path) as world:
        frame = await ended(world)

        await world.jump(jumps, pause=SETTLE_SECONDS / 2)
        shop, bank = world.network.nodes["shop"], world.network.nodes["bank"]
        bank.receive(frame, Wire(world.network, shop, bank, bank.address))
        await asyncio.sleep(1.0)

        assert {Disposition.DUPLICATE: 1} == dict(world.endpoint("bank").dropped)
        assert [] == receive(world.bank, queue=QUEUE)
        assert 1 == len(rows(world.bank, "SELECT 1 FROM broker_tombstone"))
