"""A database at work for tests: its endpoint, the link it sends by, its application, and what the instance is asked."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

from broker.client.dialog import Dialog
from broker.conversation.frames import Travel
from broker.conversation.window import Backoff
from broker.dialog.endpoint import Endpoint
from broker.dialog.transmitter import DialogTuning
from broker.flow import Disposition
from broker.forwarding.entry import Buffer, frame_bounds
from broker.forwarding.ring import Ring
from broker.protocol.frame import Header, decode_dialog
from broker.protocol.layout import FrameKind
from broker.routing.address import NetworkAddress
from broker.routing.decide import Hosted, RoutingFacts
from broker.routing.route import Route
from broker.routing.table import RouteTable, build_table
from broker.store.sqlite.write_batch import SqliteStore
from broker.supervision import Supervision
from tests.support.dialog import FarSide, begin, far_target, make_endpoint, make_forwarder, open_database
from tests.support.virtual_time import VirtualLoop

GATEWAY, OTHER = NetworkAddress("gateway", 1), NetworkAddress("other", 1)
SOON = 0.2  # seconds within which a healthy database has done what there is to do
TUNING = DialogTuning(Backoff(1.0, 8.0), Travel(), window=64, fragment_size=1000)


class Link:
    """An outlet that records."""

    max_frame = 1 << 20
    is_narrow = False
    can_send = True

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def send(self, data: Buffer) -> int:
        self.frames += [bytes(data[start:stop]) for start, stop in frame_bounds(data)]
        return len(data)

    def keep_rest(self, rest: Buffer) -> None:
        raise AssertionError("accepts everything at once")

    def headers(self, kind: FrameKind = FrameKind.MESSAGE) -> list[Header]:
        return [header for header, _ in map(decode_dialog, self.frames) if header.kind == kind]

    def bodies(self, service: str) -> list[bytes]:
        """What messages to a service carry."""
        frames = map(decode_dialog, self.frames)
        return [body for header, body in frames if header.kind == FrameKind.MESSAGE and header.to_service == service]

    def acks(self) -> list[tuple[int, int]]:
        return [(header.ack_sequence, header.ack_fragment) for header in self.headers(FrameKind.ACK)]


class Peer:
    """An origin that remembers what it was advised."""

    def __init__(self) -> None:
        self.received: Counter[int] = Counter()
        self.advice: list[Disposition] = []

    def reject(self, _frame: Buffer, disposition: Disposition) -> None:
        self.advice.append(disposition)


class Shop:
    """A database with the service Orders, and others; its instance was `asked` for routes, its `ring` follows all."""

    def __init__(self, path: Path, *routes: Route, others: Sequence[str] = (), ring: Ring | None = None) -> None:
        self.asked: list[RoutingFacts] = []
        self.ring = ring
        self.forwarder = make_forwarder(
            deliver=lambda _, frames, origin: self.endpoint.receive(frames, origin), ask_for_route=self._ask, ring=ring
        )
        self.link = Link()
        self.forwarder.table.outbox(GATEWAY).outlet = self.link
        self.peer = Peer()
        self.db = open_database(path, "Orders", *others)
        self.db.execute("PRAGMA busy_timeout = 0")
        store = SqliteStore(path, self.db, fragment_size=TUNING.fragment_size)
        self.supervision = Supervision()
        self.endpoint: Endpoint = make_endpoint("shop", store, TUNING, self.forwarder, supervision=self.supervision)
        self.route(*(routes or [Route("everywhere", GATEWAY)]))
        self.application = sqlite3.connect(path, isolation_level=None, timeout=0)

    def _ask(self, facts: RoutingFacts) -> bool:
        self.asked.append(facts)
        return False

    def route(self, *routes: Route, msdb: RouteTable | None = None) -> None:
        self.endpoint.transmitter.table = build_table(routes, now=datetime.now(UTC))
        self.forwarder.set_routing(table=msdb or RouteTable(), hosted=Hosted(), is_forwarding=False)
        self.endpoint.transmitter.on_paths_changed()

    def begin(self, *bodies: bytes, **more: Any) -> Dialog:
        return begin(self.application, *bodies, **more)

    def arrive(self, *frames: bytes) -> None:
        self.endpoint.receive(list(frames), self.peer)

    def target_of(self, dialog: Dialog) -> FarSide:
        return far_target(self.application, dialog.conversation_id)

    async def close(self) -> None:
        await self.endpoint.close()
        self.application.close()


@asynccontextmanager
async def open_shop(path: Path, *routes: Route, **more: Any) -> AsyncIterator[Shop]:
    """A shop that is open for the length of a test, on virtual time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    with mock.patch("time.time", loop.wall_clock):
        shop = Shop(path, *routes, **more)
        shop.endpoint.start()
        try:
            yield shop
        finally:
            await shop.close()
