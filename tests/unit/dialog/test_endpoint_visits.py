"""What a database at work tells of its frames, where somebody follows them."""

import asyncio
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
from broker.forwarding.ring import Ring
from broker.protocol.layout import FrameKind
from broker.routing.decide import hosted
from broker.routing.route import RouteProperties, create_route
from broker.store.port import WriteBatch, WriteResult
from broker.store.sqlite.write_batch import SqliteStore
from tests.support.dialog import far_initiator
from tests.support.virtual_time import VirtualLoop, virtual_time
from tests.support.visits import VisitRecord, decode
from tests.unit.dialog.running import SOON, Shop, open_shop

WRITE = SqliteStore.write_in_writer

Told = tuple[int, Disposition | None]


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Shop]:
    """A shop with the services Orders and Billing, which are reached by routes, and a ring."""
    here = create_route("here", RouteProperties(address="LOCAL"), now=datetime.now(UTC))
    async with open_shop(path, here, others=("Billing",), ring=Ring(1 << 20, sample=1)) as shop:
        known = hosted({shop.endpoint.broker_instance: ["Orders", "Billing"]})
        shop.forwarder.set_routing(table=shop.endpoint.transmitter.table, hosted=known, is_forwarding=False)
        yield shop


def take(shop: Shop, *frames: bytes) -> None:
    """Frames come in by the pass."""
    data = b"".join(frames)
    shop.forwarder.slab[: len(data)] = data
    shop.forwarder.forward(shop.forwarder.slab, len(data), asyncio.get_running_loop().time(), shop.peer)


def records(shop: Shop) -> list[VisitRecord]:
    assert shop.ring is not None
    return list(decode(shop.ring.take()))


def verdicts(shop: Shop) -> list[Told]:
    """Sequence number and fate of frames that arrived, as databases tell."""
    return [
        (record.header.sequence_number, record.disposition)
        for record in records(shop)
        if record.entry is None and record.disposition is not None
    ]


@virtual_time
async def test_every_arrival_has_a_verdict_after_the_commit(path: Path) -> None:
    async with running(path) as shop:
        far = far_initiator("Orders")
        first = far.message(0)
        broken = far.message(1)
        broken = broken[:-1] + bytes([broken[-1] ^ 1])
        began = asyncio.get_running_loop().time()

        take(shop, first, first, broken, far.message(2), far.fault(-8408))
        assert [] == verdicts(shop)
        await asyncio.sleep(SOON)
        told = [one for one in records(shop) if one.entry is None and one.arrival.entered == began]

    delivered = Disposition.DELIVERED
    fates = [(one.header.kind, one.header.sequence_number, one.disposition) for one in told]
    message = int(FrameKind.MESSAGE)
    assert [
        (message, 0, delivered),
        (message, 0, Disposition.DUPLICATE),
        (message, 1, Disposition.CORRUPTED),
        (message, 2, delivered),  # early, but stored
        (int(FrameKind.FAULT), 0, delivered),
    ] == fates
    assert {0} == {one.header.hop_count for one in told}
    assert all(one.left > began for one in told)


@virtual_time
async def test_frames_within_an_instance_are_sent_and_delivered_here(path: Path) -> None:
    async with running(path) as shop:
        with shop.application as db:
            begin_dialog(db, from_service="Orders", to_service="Billing").send(b"x")
        await asyncio.sleep(1.0)
        told = [record for record in records(shop) if record.header.kind == FrameKind.MESSAGE]

    sent, delivered, acknowledged = told
    assert (True, Disposition.DELIVERED) == (sent.entry is not None, sent.disposition)
    assert (None, Disposition.DELIVERED, True, {}) == (
        delivered.entry,
        delivered.disposition,
        delivered.arrival.is_from_here,
        delivered.arrival.queued,
    )
    assert (None, None) == (acknowledged.entry, acknowledged.disposition)
    assert 1 == len({record.header.message_id for record in told})
    assert sent.arrival.entered == delivered.arrival.entered <= delivered.left <= acknowledged.left


@virtual_time
async def test_what_the_inbox_has_no_room_for_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "INBOX_MAX_BYTES", 300)
    async with running(path) as shop:
        far = far_initiator("Orders")
        frames = [far.message(number, b"x" * 100) for number in range(4)]

        take(shop, *frames)
        taken = 300 // len(frames[0]) + 1
        at_once = verdicts(shop)
        await asyncio.sleep(SOON)

        assert [(number, Disposition.STORE_BUSY) for number in range(taken, 4)] == at_once
        assert [(number, Disposition.DELIVERED) for number in range(taken)] == verdicts(shop)


@virtual_time
async def test_what_the_store_failed_with_is_told(path: Path) -> None:
    with mock.patch.object(
        SqliteStore, "write_in_writer", side_effect=StoreUnavailableError("shop.db", "disk I/O error")
    ):
        async with running(path) as shop:
            take(shop, *[far_initiator("Orders").message(0) for _ in range(3)])
            await asyncio.sleep(SOON)

            assert [(0, Disposition.STORE_FAILED)] * 3 == verdicts(shop)


@virtual_time
@pytest.mark.parametrize("has_failed", [False, True])
async def test_turn_under_way_at_the_end_has_stored_what_it_has_stored(path: Path, *, has_failed: bool) -> None:
    def do(store: SqliteStore, batch: WriteBatch) -> WriteResult:
        if has_failed and batch.frames:
            raise StoreUnavailableError("shop.db", "disk I/O error")
        return WRITE(store, batch)

    with mock.patch.object(SqliteStore, "write_in_writer", do):
        async with running(path) as shop:
            await asyncio.sleep(SOON)
            endpoint = shop.endpoint
            take(shop, far_initiator("Orders").message(0))
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            loop.executor_delay = lambda: 60.0
            await asyncio.sleep(SOON)  # the turn has begun
            assert not endpoint._inbox
            take(shop, far_initiator("Orders").message(0))
            await shop.endpoint.close()

            fate = Disposition.SHUTDOWN if has_failed else Disposition.DELIVERED
            assert [(0, fate), (0, Disposition.SHUTDOWN)] == verdicts(shop)
