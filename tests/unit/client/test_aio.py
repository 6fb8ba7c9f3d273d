"""The application's side for asyncio: every name of the synchronous one, and nothing lost by a cancellation."""

import asyncio
import inspect
import io
import json
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

import broker
from broker import aio
from broker.conversation.state import ConversationState
from broker.errors import ConversationError, StoreUnavailableError
from broker.protocol.layout import show_guid
from broker.store.sqlite.failure import ATTEMPTS
from broker.store.sqlite.schema import LARGE_BYTES
from tests.support.shop import Shop

LARGE = bytes(range(256)) * (LARGE_BYTES // 256) + b"end"
GROUP = uuid.UUID("5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")


async def begin(db: aio.Connection, **more: Any) -> aio.Dialog:
    return await aio.begin_dialog(db, **{"from_service": "Orders", "to_service": "//far/Billing", **more})


def test_calls_have_the_names_and_parameters_of_the_synchronous_ones() -> None:
    calls = ("begin_dialog", "get_dialog", "send", "receive", "get_conversation_group", "move_conversation")
    for name in calls:
        plain, twin = (list(inspect.signature(getattr(module, name)).parameters) for module in (broker, aio))
        assert plain == twin, name
    plain, twin = ([name for name in dir(of) if name[0] != "_"] for of in (broker.Dialog, aio.Dialog))
    assert ({"endpoint_id"}, set()) == (set(plain) - set(twin), set(twin) - set(plain))


async def test_headers_and_the_span_at_work_are_sent(shop: Shop) -> None:
    parent = SpanContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, False, TraceFlags(1))
    carried = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    async with aio.connect(shop.path) as db:
        dialog = await begin(db)
        with use_span(NonRecordingSpan(parent)):
            await dialog.send(b"one", headers={"a": "b"})
            await dialog.send_many([b"many"])
            await aio.send([dialog], b"all")
        await dialog.send(b"none")

    found = [text and json.loads(text) for text in shop.look("SELECT headers FROM broker_transmission")]
    assert [{"a": "b", "traceparent": carried}, {"traceparent": carried}, {"traceparent": carried}, None] == found


async def test_dialog_lives_its_life(shop: Shop) -> None:
    async with aio.connect(shop.path) as db:
        async with db:
            first = await begin(db, contract="C")
            dialog = await begin(db, related_conversation=first, broker_instance=GROUP, lifetime=60)
            numbers = [await dialog.send("zero"), *await dialog.send_many([b"1", ("T", io.BytesIO(b"2"))])]
            numbers += await aio.send([first, dialog], b"all", type="U")
            numbers += await aio.send([], b"")
            assert {"conversations": [], "sent": []} == shop.seen()
        same = await aio.get_dialog(db, dialog.conversation_handle)
        told = (await dialog.state, await same.priority, await dialog.far_broker_instance, repr(same))
        assert await first.conversation_group_id == await dialog.conversation_group_id
        await aio.move_conversation(dialog, GROUP)
        await dialog.set_timer(5)
        await dialog.cancel_timer()
        waits = await dialog.transmission_status
        lifetime = await dialog.lifetime
        group = await dialog.conversation_group_id
        await dialog.end(error=7, description="why")
        await first.end(cleanup=True)

    assert [0, 1, 2, 0, 3] == numbers
    assert (ConversationState.CONVERSING, 5, GROUP, f"<Dialog {show_guid(dialog.conversation_handle)}>") == told
    assert (GROUP, dialog.conversation_id) == (group, same.conversation_id)
    assert waits.startswith("4 messages wait: ")
    assert 0 < (lifetime - datetime.now(UTC)).total_seconds() <= 60
    assert ["DO"] == shop.seen()["conversations"]
    assert [b"zero", b"1", b"2", b"all"] == shop.seen()["sent"][:4]


async def test_messages_are_received_answered_and_consumed(shop: Shop) -> None:
    plain = shop.connect(isolation_level=None)
    dialog, other = shop.begin(plain), shop.begin(plain)
    shop.arrive(dialog, b"one", b"two")
    shop.arrive(other, b"three")

    async with aio.connect(shop.path) as db, db:
        group = await aio.get_conversation_group(db, queue="OrdersQueue")
        first = await aio.receive(db, queue="OrdersQueue", conversation_group=group)
        second = await aio.receive(db, queue="OrdersQueue", conversation=first[0].dialog)
        third = await aio.receive(db, queue="OrdersQueue", conversation=str(other.conversation_handle))
        assert await aio.get_conversation_group(db, queue="OrdersQueue", wait=1) is None
        await first[0].dialog.send(b"answer")
        pieces = [piece async for piece in first[1].pieces()]

    assert [b"one", b"two"] == [message.body for message in first]
    assert first[0].dialog is first[1].dialog
    assert ([], [b"two"], b"three") == (second, pieces, await third[0].read())
    assert [b"answer"] == shop.seen()["sent"]
    assert [] == shop.look("SELECT * FROM broker_message")


async def test_large_bodies_go_and_come_in_pieces(shop: Shop) -> None:
    plain = shop.connect(isolation_level=None)
    shop.arrive_large(shop.begin(plain), LARGE)

    async with aio.connect(shop.path) as db, db:
        (message,) = await aio.receive(db, queue="OrdersQueue")
        with pytest.raises(ValueError, match="the body is a large one"):
            _ = message.body
        sizes = [len(piece) async for piece in message.pieces()]
        body = await message.read()
        await message.dialog.send(iter([body, body]))

    assert LARGE == body
    assert (len(LARGE), aio.PIECE_BYTES) == (sum(sizes), max(sizes))
    assert [2 * len(LARGE)] == shop.look("SELECT body_length FROM broker_transmission")


async def test_waiting_receive_returns_with_what_comes(shop: Shop) -> None:
    plain = shop.connect(isolation_level=None)
    dialog = shop.begin(plain)

    async with aio.connect(shop.path) as db, db:
        waiting = asyncio.create_task(aio.receive(db, queue="OrdersQueue", wait=20))
        await asyncio.sleep(0.05)
        shop.arrive(dialog, b"at last")  # the file is free while it waits
        (message,) = await waiting

    assert b"at last" == message.body


async def test_receive_that_is_cancelled_loses_nothing_and_leaves_nothing_open(shop: Shop) -> None:
    """Cancelled at every moment of its life, again and again; what was taken is in the application's own table."""
    plain = shop.connect(isolation_level=None)
    dialog = shop.begin(plain)
    shop.arrive(dialog, *[b"%d" % n for n in range(30)])

    async with aio.connect(shop.path) as db:
        for attempt in range(200):
            task = asyncio.create_task(take(db))
            await asyncio.sleep(0.0002 * (attempt % 20))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            plain.execute("BEGIN IMMEDIATE")
            plain.execute("COMMIT")
        while await take(db):
            pass

    assert [str(n) for n in range(30)] == shop.look("SELECT state FROM orders ORDER BY id")


async def take(db: aio.Connection) -> int:
    """One message, and what follows from it."""
    async with db:
        messages = await aio.receive(db, queue="OrdersQueue", top=1, poison=0)
        await db.executemany(
            "INSERT INTO orders (state) VALUES (?)", [(message.body.decode(),) for message in messages]
        )
    return len(messages)


async def test_messages_that_nobody_saw_are_no_failures(shop: Shop) -> None:
    """Rolled back five times in a row, a message counts as poison; not when each time its receiver was cancelled."""
    plain = shop.connect(isolation_level=None)
    shop.arrive(shop.begin(plain), b"well")

    async with aio.connect(shop.path) as db:
        for _ in range(2 * ATTEMPTS):
            with pytest.raises(StoreUnavailableError):  # noqa: PT012
                async with db:
                    task = asyncio.create_task(aio.receive(db, queue="OrdersQueue", top=1))
                    await asyncio.sleep(0)
                    time.sleep(0.02)  # noqa: ASYNC251
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
        async with db:
            (message,) = await aio.receive(db, queue="OrdersQueue", top=1)

    assert b"well" == message.body


async def test_file_without_schema_and_receive_without_a_transaction_are_refused(shop: Shop, tmp_path: Path) -> None:
    async with aio.connect(tmp_path / "other.db") as db:
        with pytest.raises(StoreUnavailableError, match="no database of the broker"):
            await begin(db)
    async with aio.connect(shop.path) as db:
        with pytest.raises(ConversationError, match="to receive needs a transaction"):
            await aio.receive(db, queue="OrdersQueue")
