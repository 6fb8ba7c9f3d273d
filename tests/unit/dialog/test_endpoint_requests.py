"""A database that asks for routes: its request leaves, the end is read, and what msdb has to ask for is left to it."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

from broker.client.dialog import begin_dialog
from broker.conversation.frames import Travel
from broker.conversation.window import Backoff
from broker.dialog.endpoint import Endpoint
from broker.dialog.route_requests import RETRY_SECONDS, Inquiry, render_inquiry
from broker.dialog.transmitter import REMATCH_SECONDS, DialogTuning
from broker.forwarding.entry import Buffer, frame_bounds
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.pool import Limits
from broker.protocol.frame import decode_dialog
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Hosted, RoutingFacts
from broker.routing.route import BROKER_CONFIGURATION, SERVICE_BROKER, Route
from broker.routing.table import RouteTable, build_table
from broker.store.sqlite.write_batch import SqliteStore
from tests.support.dialog import FarSide, far_target, open_database, states
from tests.support.virtual_time import VirtualLoop, virtual_time

DIRECTORY, SELF, FAR = NetworkAddress("directory", 1), NetworkAddress("self", 1), NetworkAddress("far", 1)
ASK = Route("ask", DIRECTORY, remote_service_name=BROKER_CONFIGURATION)
BILLING = "//far/Billing"
SOON = 0.5  # seconds within which a healthy database has done what there is to do


class Link:
    """An outlet that records."""

    max_frame = 1 << 20
    is_narrow = False
    can_send = True

    def __init__(self) -> None:
        self.bodies: dict[str, list[bytes]] = {}
        self.conversations: list[bytes] = []
        self.received: Counter[int] = Counter()

    def send(self, data: Buffer) -> int:
        for start, stop in frame_bounds(data):
            header, body = decode_dialog(bytes(data[start:stop]))
            if header.kind == 0x10:
                self.bodies.setdefault(header.to_service, []).append(body)
                self.conversations.append(header.conversation_id)
        return len(data)

    def finish(self, rest: Buffer) -> None:
        raise AssertionError("takes everything at once")

    def reject(self, frame: Buffer, disposition: object) -> None:
        raise AssertionError("nothing is refused")


class Shop:
    """A database with the service Orders; `asked` what another table than its own has to ask for."""

    def __init__(self, path: Path, *routes: Route) -> None:
        self.asked: list[RoutingFacts] = []
        self.link = Link()
        self.forwarder = Forwarder(
            Limits(pool_bytes=1 << 20, max_frame=1 << 20, max_hops=16),
            deliver=lambda database, frames, origin: None,
            want=lambda _: None,
            health_of=lambda _: AddressHealth.CONNECTED,
            ask=self.asked.append,
        )
        for address in (DIRECTORY, FAR):
            self.forwarder.outbox(address).outlet = self.link
        self.db = open_database(path, "Orders")
        settings = DialogTuning(Backoff(1.0, 8.0), Travel(), window=64, fragment_size=1000)
        store = SqliteStore(path, self.db, fragment_size=settings.fragment_size)
        self.endpoint = Endpoint("shop", path, store, settings=settings, forwarder=self.forwarder)
        self.route(*routes)
        self.application = sqlite3.connect(path, isolation_level=None)

    def route(self, *routes: Route, msdb: RouteTable | None = None) -> None:
        self.endpoint.transmitter.table = build_table(routes, now=datetime.now(UTC))
        self.forwarder.surround(table=msdb or RouteTable(), hosted=Hosted(), is_forwarding=False)
        self.endpoint.transmitter.on_paths()

    def send(self, *bodies: bytes, to: str = BILLING) -> None:
        """Each in a conversation of its own."""
        for body in bodies:
            begin_dialog(self.application, from_service="Orders", to_service=to).send(body)

    @property
    def requests(self) -> list[bytes]:
        return [
            body[-len(render_inquiry(Inquiry(BILLING))) :] for body in self.link.bodies.get(BROKER_CONFIGURATION, [])
        ]

    def directory(self) -> FarSide:
        """Who was asked last."""
        conversation = uuid.UUID(bytes=self.link.conversations[-1])
        known = {"service_name": BROKER_CONFIGURATION, "far_service": SERVICE_BROKER}
        return far_target(self.db, conversation, **known)

    async def close(self) -> None:
        await self.endpoint.close()
        self.application.close()


@asynccontextmanager
async def open_shop(path: Path, *routes: Route) -> AsyncIterator[Shop]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    with mock.patch("time.time", loop.wall_clock):
        shop = Shop(path, *routes)
        shop.endpoint.start()
        try:
            await asyncio.sleep(SOON)
            yield shop
        finally:
            await shop.close()


@virtual_time
async def test_conversations_without_a_route_wait_for_one_request(tmp_path: Path) -> None:
    async with open_shop(tmp_path / "shop.db", ASK) as shop:
        shop.send(b"one", b"two", b"three")
        await asyncio.sleep(SOON)

        assert [render_inquiry(Inquiry(BILLING))] == shop.requests
        assert BILLING not in shop.link.bodies


@virtual_time
async def test_a_route_that_comes_with_the_answer_is_used_at_once(tmp_path: Path) -> None:
    async with open_shop(tmp_path / "shop.db", ASK) as shop:
        shop.send(b"one", b"two")
        await asyncio.sleep(SOON)
        shop.endpoint.arrive([shop.directory().end(0, stored=(1, 0))], shop.link)
        shop.route(ASK, Route("found", FAR, remote_service_name=BILLING))
        await asyncio.sleep(SOON)

        assert [b"one", b"two"] == [body[-3:] for body in shop.link.bodies[BILLING]]
        assert ["CO", "CO"] == states(shop.db)


@virtual_time
async def test_an_answer_without_a_route_leads_to_another_request_after_the_time_out(tmp_path: Path) -> None:
    async with open_shop(tmp_path / "shop.db", ASK) as shop:
        shop.send(b"one")
        await asyncio.sleep(SOON)
        shop.endpoint.arrive([shop.directory().end(0, stored=(1, 0))], shop.link)
        await asyncio.sleep(RETRY_SECONDS - SOON)
        early = len(shop.requests)
        await asyncio.sleep(REMATCH_SECONDS + 2 * SOON)

        assert (1, 2) == (early, len(shop.requests))


@virtual_time
async def test_what_leads_back_to_this_very_instance_is_asked_for_by_the_instance(tmp_path: Path) -> None:
    msdb = build_table([ASK], now=datetime.now(UTC))
    async with open_shop(tmp_path / "shop.db", Route("self", SELF, remote_service_name=BILLING)) as shop:
        shop.forwarder.found_self({SELF}, 0.0)
        shop.route(Route("self", SELF, remote_service_name=BILLING), msdb=msdb)
        shop.send(b"one")
        await asyncio.sleep(SOON)

        assert {BILLING} == {facts.to_service for facts in shop.asked}
        assert [] == shop.requests
