"""What a database at work tells of its frames, where somebody follows them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import pytest

from broker.client.dialog import begin_dialog
from broker.dialog import arrivals as inbox
from broker.errors import StoreUnavailableError
from broker.flow import Disposition
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.pool import Limits
from broker.forwarding.ring import Ring
from broker.protocol.layout import FrameKind
from broker.routing.decide import AddressHealth, hosted
from broker.routing.route import RouteProperties, create_route
from broker.routing.table import build_table
from broker.store.port import WriteBatch, WriteResult
from broker.store.sqlite.write_batch import SqliteStore
from tests.support.dialog import far_initiator, make_endpoint, open_database
from tests.support.virtual_time import VirtualLoop, virtual_time
from tests.support.visits import VisitRecord, decode
from tests.unit.dialog.running import SOON, TUNING, Peer

WRITE = SqliteStore.write_in_writer

Told = tuple[int, Disposition | None]


class Instance:
    """A database with the services Orders and Billing on a forwarder with a ring; frames come in by the pass."""

    def __init__(self, path: Path) -> None:
        self.ring = Ring(1 << 20, sample=1)
        self.forwarder = Forwarder(
            Limits(pool_bytes=1 << 20, max_frame=1 << 20, max_hops=16),
            deliver=lambda _database, frames, origin: self.endpoint.receive(frames, origin),
            request_link=lambda _: None,
            health_of=lambda _: AddressHealth.CONNECTED,
            ring=self.ring,
        )
        now = datetime.now(UTC)
        table = build_table([create_route("here", RouteProperties(address="LOCAL"), now=now)], now=now)
        store = SqliteStore(path, open_database(path, "Orders", "Billing"), fragment_size=TUNING.fragment_size)
        self.endpoint = make_endpoint("orders", store, TUNING, self.forwarder)
        self.endpoint.transmitter.table = table
        self.endpoint.start()
        here = hosted({self.endpoint.broker_instance: ["Orders", "Billing"]})
        self.forwarder.set_routing(table=table, hosted=here, is_forwarding=False)

    def take(self, *frames: bytes) -> None:
        data = b"".join(frames)
        self.forwarder.slab[: len(data)] = data
        self.forwarder.forward(self.forwarder.slab, len(data), asyncio.get_running_loop().time(), Peer())

    def records(self) -> list[VisitRecord]:
        return list(decode(self.ring.take()))

    def verdicts(self) -> list[Told]:
        """Sequence number and fate of frames that arrived, as databases tell."""
        return [
            (record.header.sequence_number, record.disposition)
            for record in self.records()
            if record.entry is None and record.disposition is not None
        ]


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Instance]:
    """An instance on virtual time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    with mock.patch("time.time", loop.wall_clock):
        instance = Instance(path)
        try:
            yield instance
        finally:
            await instance.endpoint.close()


@virtual_time
async def test_every_arrival_has_a_verdict_after_the_commit(path: Path) -> None:
    async with running(path) as instance:
        far = far_initiator("Orders")
        first = far.message(0)
        broken = far.message(1)
        broken = broken[:-1] + bytes([broken[-1] ^ 1])
        began = asyncio.get_running_loop().time()

        instance.take(first, first, broken, far.message(2), far.fault(-8408))
        assert [] == instance.verdicts()
        await asyncio.sleep(SOON)
        records = [one for one in instance.records() if one.entry is None and one.arrival.entered == began]

    delivered = Disposition.DELIVERED
    fates = [(one.header.kind, one.header.sequence_number, one.disposition) for one in records]
    message = int(FrameKind.MESSAGE)
    assert [
        (message, 0, delivered),
        (message, 0, Disposition.DUPLICATE),
        (message, 1, Disposition.CORRUPTED),
        (message, 2, delivered),  # early, but stored
        (int(FrameKind.FAULT), 0, delivered),
    ] == fates
    assert {0} == {one.header.hop_count for one in records}
    assert all(one.left > began for one in records)


@virtual_time
async def test_frames_within_an_instance_are_sent_and_delivered_here(path: Path) -> None:
    async with running(path) as instance:
        with sqlite3.connect(path) as db:
            dialog = begin_dialog(db, from_service="Orders", to_service="Billing")
            dialog.send(b"x")
        await asyncio.sleep(1.0)
        records = [record for record in instance.records() if record.header.kind == FrameKind.MESSAGE]

    sent, delivered, acknowledged = records
    assert (True, Disposition.DELIVERED) == (sent.entry is not None, sent.disposition)
    assert (None, Disposition.DELIVERED, True, {}) == (
        delivered.entry,
        delivered.disposition,
        delivered.arrival.is_from_here,
        delivered.arrival.queued,
    )
    assert (None, None) == (acknowledged.entry, acknowledged.disposition)
    assert 1 == len({record.header.message_id for record in records})
    assert sent.arrival.entered == delivered.arrival.entered <= delivered.left <= acknowledged.left


@virtual_time
async def test_what_the_inbox_has_no_room_for_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "INBOX_MAX_BYTES", 300)
    async with running(path) as instance:
        far = far_initiator("Orders")
        frames = [far.message(number, b"x" * 100) for number in range(4)]

        instance.take(*frames)
        taken = 300 // len(frames[0]) + 1
        at_once = instance.verdicts()
        await asyncio.sleep(SOON)

        assert [(number, Disposition.STORE_BUSY) for number in range(taken, 4)] == at_once
        assert [(number, Disposition.DELIVERED) for number in range(taken)] == instance.verdicts()


@virtual_time
async def test_what_the_store_failed_with_is_told(path: Path) -> None:
    with mock.patch.object(
        SqliteStore, "write_in_writer", side_effect=StoreUnavailableError("shop.db", "disk I/O error")
    ):
        async with running(path) as instance:
            instance.take(*[far_initiator("Orders").message(0) for _ in range(3)])
            await asyncio.sleep(SOON)

            assert [(0, Disposition.STORE_FAILED)] * 3 == instance.verdicts()


@virtual_time
@pytest.mark.parametrize("has_failed", [False, True])
async def test_turn_under_way_at_the_end_has_stored_what_it_has_stored(path: Path, *, has_failed: bool) -> None:
    def do(store: SqliteStore, batch: WriteBatch) -> WriteResult:
        if has_failed and batch.frames:
            raise StoreUnavailableError("shop.db", "disk I/O error")
        return WRITE(store, batch)

    with mock.patch.object(SqliteStore, "write_in_writer", do):
        async with running(path) as instance:
            await asyncio.sleep(SOON)
            endpoint = instance.endpoint
            instance.take(far_initiator("Orders").message(0))
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            loop.executor_delay = lambda: 60.0
            await asyncio.sleep(SOON)  # the turn has begun
            assert not endpoint._inbox
            instance.take(far_initiator("Orders").message(0))
            await instance.endpoint.close()

            fate = Disposition.SHUTDOWN if has_failed else Disposition.DELIVERED
            assert [(0, fate), (0, Disposition.SHUTDOWN)] == instance.verdicts()
