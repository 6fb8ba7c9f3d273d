"""Mirrored routes on real sockets: who is asked, where frames go, and in what order they leave."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

import broker
from broker.daemon.instance import Instance as Daemon
from broker.daemon.instance import serve
from broker.protocol.frame import Probe, ProbeReply
from broker.routing.address import NetworkAddress
from broker.routing.mirrored import MirroredRouteState
from broker.routing.route import MirroredPair, Route
from tests.support.loopback import Instance, Raw, accepted, instance, message, numbers, raw, raw_listener, until

BILLING = UUID(int=9)


class Partner:
    """One partner of the pair: a port, and whoever has connected to it last."""

    def __init__(self, port: socket.socket, stack: AsyncExitStack) -> None:
        self.address = NetworkAddress("127.0.0.1", port.getsockname()[1])
        self.link: Raw
        self._port = port
        self._stack = stack

    async def meet(self) -> Probe:
        """The instance connects and asks."""
        self.link = await self._stack.enter_async_context(accepted(self._port))
        await self.link.greet()
        return await self.asked()

    async def asked(self) -> Probe:
        probe = await self.link.hear(Probe)
        assert isinstance(probe, Probe)
        return probe

    async def says(self, role: str, epoch: int = 1, *, probe: int = 0) -> None:
        await self.link.say(ProbeReply(probe, BILLING.bytes, role, epoch))

    async def numbers(self, count: int) -> list[int]:
        return numbers(await self.link.dialog_frames(count))


class Pair:
    """A gateway, a neighbour that sends, and the two partners."""

    def __init__(self, gateway: Instance, sender: Raw, first: Partner, second: Partner) -> None:
        self.gateway, self.sender, self.first, self.second = gateway, sender, first, second
        self.route = Route("Pair", first.address, "//billing", BILLING, mirror_address=second.address)
        self.sent = 0
        gateway.route(self.route)

    @property
    def pair(self) -> MirroredPair:
        assert self.route.pair is not None
        return self.route.pair

    async def send(self, count: int = 1, *, body: bytes = b"body", **fields: object) -> None:
        """So many frames more arrive at the gateway."""
        frames = []
        for _ in range(count):
            self.sent += 1
            fields = {"to_broker_instance": BILLING.bytes, **fields}
            frames.append(message("//billing", self.sent, body, **fields))
        before = self.gateway.forwarder.received.total()
        await self.sender.say(*frames)
        await until(lambda: self.gateway.forwarder.received.total() == before + count)

    @property
    def waiting(self) -> list[int]:
        """The numbers of the frames that wait."""
        return numbers([held.frame for box in self.gateway.forwarder.table.all_outboxes() for held in box.held])

    @property
    def state(self) -> MirroredRouteState:
        return self.gateway.mirrors.in_use[self.pair].route.state

    async def begin(self) -> None:
        """The first partner is principal, the second one its mirror; a frame has arrived there."""
        await self.send()
        await asyncio.gather(self.first.meet(), self.second.meet())
        await self.first.says("principal")
        await self.second.says("mirror")
        assert [1] == await self.first.numbers(1)
        await until(lambda: self.state is MirroredRouteState.OPERATIONAL)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        first, second = [Partner(await stack.enter_async_context(raw_listener()), stack) for _ in range(2)]
        gateway = await stack.enter_async_context(instance())
        sender = await stack.enter_async_context(raw(gateway.address, name="sender"))
        yield Pair(gateway, sender, first, second)


@pytest.mark.promise("R6.1", "R6.7", "3a", "routing 33")
async def test_first_use_asks_both_and_nothing_leaves_before_one_claims(pair: Pair) -> None:
    """R6.1: an answer that is no claim lets nothing leave."""
    await pair.send(2)

    first, second = await asyncio.gather(pair.first.meet(), pair.second.meet())
    await pair.second.says("mirror", probe=second.id)
    await pair.first.says("unknown", probe=first.id)
    await pair.first.asked()

    assert [("//billing", BILLING.bytes)] * 2 == [(probe.service, probe.broker_instance) for probe in (first, second)]
    assert [1, 2] == pair.waiting
    await pair.first.says("principal")
    assert [1, 2] == await pair.first.numbers(2)
    assert [] == await pair.second.numbers(0)


@pytest.mark.promise("R6.3", "R6.7", "routing 35", "routing 36")
async def test_lost_principal_makes_its_partner_be_asked_and_frames_wait_until_it_claims(pair: Pair) -> None:
    """R6.3: a partner that does not claim gets nothing."""
    await pair.begin()

    pair.first.link.close()
    await pair.second.asked()
    await pair.second.says("mirror")
    await pair.send(3)
    assert [2, 3, 4] == pair.waiting
    states = [pair.state]

    await pair.second.says("principal", 2)
    assert [2, 3, 4] == await pair.second.numbers(3)
    states.append(pair.state)
    assert [MirroredRouteState.NOT_OPERATIONAL, MirroredRouteState.PRINCIPAL_ONLY] == states


@pytest.mark.promise("R6.6")
async def test_order_of_what_waits_is_kept_over_two_switches(pair: Pair) -> None:
    """What a principal did not take leaves for the next one, before what came later, and nothing twice."""
    await pair.begin()
    big = bytes(16_000)
    while len(pair.waiting) < 16:  # the first one reads nothing any more
        await pair.send(8, body=big)
    waiting = [*pair.waiting, pair.sent + 1, pair.sent + 2]

    await pair.first.says("mirror", 1)
    await until(lambda: pair.gateway.forwarder.routing_context.principals == {})
    await pair.send(2, body=big)
    assert waiting == pair.waiting
    await pair.second.says("principal", 2)
    arrived = await pair.second.numbers(2)
    pair.second.link.close()
    await until(lambda: pair.gateway.forwarder.routing_context.principals == {})
    left = pair.waiting
    await pair.send(2)

    await pair.first.says("principal", 3)
    await pair.first.link.dialog_frames(1)
    last = pair.sent
    while numbers([frame for frame in pair.first.link.frames if frame[4] >= 0x10])[-1] != last:
        await pair.first.link.read()

    came = await pair.first.numbers(0)
    assert arrived == waiting[: len(arrived)]
    assert came[-len(left) - 2 :] == [*left, last - 1, last]
    assert len(came) == len(set(came))


# --- at an endpoint, where dialogs begin ---


@dataclass
class Sending:
    """An instance with a database whose route leads to the two partners, and a dialog to //billing."""

    instance: Daemon
    first: Partner
    second: Partner

    @property
    def path(self) -> Path:
        return self.instance.endpoints["near"].path

    def send(self, *bodies: bytes) -> None:
        with closing(sqlite3.connect(self.path)) as db, db:
            dialog = broker.begin_dialog(db, from_service="//near", to_service="//billing")
            for body in bodies:
                dialog.send(body)

    def statuses(self) -> list[str]:
        transmitter = self.instance.endpoints["near"].transmitter
        return [transmitter.status_of(sender) for sender in transmitter.senders.values()]


@pytest.fixture
async def sending(tmp_path: Path) -> AsyncIterator[Sending]:
    async with AsyncExitStack() as stack:
        first, second = [Partner(await stack.enter_async_context(raw_listener()), stack) for _ in range(2)]
        (tmp_path / "near.sql").write_text(
            "CREATE QUEUE Q; CREATE SERVICE [//near] ON QUEUE Q; CREATE ROUTE pair WITH SERVICE_NAME = '//billing',"
            f" BROKER_INSTANCE = '{BILLING}', ADDRESS = '{first.address}', MIRROR_ADDRESS = '{second.address}'"
        )
        (tmp_path / "broker.toml").write_text(
            'instance = { name = "near", state_dir = "." }\n'
            'endpoint = { listen = ["127.0.0.1:0"] }\n'
            'databases.near = { path = "near.db", scripts = ["near.sql"] }\n'
            'observe = { listen = "" }\n'
            'dialog = { resend_first = "1m", resend_cap = "1m" }\n'
        )
        yield Sending(await stack.enter_async_context(serve(tmp_path / "broker.toml")), first, second)


@pytest.mark.promise("R6.1", "R6.3", "routing 33", "routing 35")
async def test_dialog_waits_for_the_principal_and_says_so(sending: Sending) -> None:
    """
    R6.1 at the place where messages begin: in words, and in the view. No resend is due for a minute: when the principal
    dies, what it had is sent to the next one at once.
    """
    sending.send(b"one", b"two")
    await asyncio.gather(sending.first.meet(), sending.second.meet())
    await sending.second.says("mirror", 4)
    pair = next(iter(sending.instance.mirrors.in_use))
    await until(lambda: "mirror" in sending.instance.mirrors.trouble_of(pair).problem)
    (status,) = sending.statuses()
    assert status.startswith(
        f"delayed, principal unknown (9794): {sending.first.address} has not answered yet,"
        f" {sending.second.address} says mirror, epoch 4; asked again at "
    )

    await sending.first.says("principal", 4)
    assert [0, 1] == await sending.first.numbers(2)
    assert [] == await sending.second.numbers(0)

    sending.first.link.reset()
    await sending.second.asked()
    assert [] == await sending.second.numbers(0)
    await sending.second.says("principal", 5)
    assert [0, 1] == await sending.second.numbers(2)
