"""One database at work: when it acknowledges, what it says to strangers, what time and a failing disk do to it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from broker.conversation.frames import AckNote, Travel, ack_frame
from broker.dialog.arrivals import ACK_DELAY
from broker.dialog.endpoint import BATCH_PAUSE, MAINTENANCE_SECONDS, PAUSE_EACH, RIDE_SECONDS
from broker.flow import Disposition
from broker.protocol.frame import decode_dialog, decode_fault, decode_stored
from broker.protocol.layout import NO_GUID, FrameKind
from broker.store.port import WriteBatch, WriteResult
from broker.store.sqlite.metadata import put_queue
from broker.store.sqlite.write_batch import SqliteStore
from tests.support.dialog import QUEUE, far_initiator, rows
from tests.support.virtual_time import virtual_time
from tests.unit.dialog.running import SOON, open_shop

WRITE = SqliteStore.write_in_writer

MANY = int(BATCH_PAUSE / PAUSE_EACH)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[WriteBatch]:
    """The turns from now on."""
    turns: list[WriteBatch] = []

    def note(store: SqliteStore, batch: WriteBatch) -> WriteResult:
        turns.append(batch)
        return WRITE(store, batch)

    monkeypatch.setattr(SqliteStore, "write_in_writer", note)
    return turns


@virtual_time
async def test_acknowledgements_wait_a_little_for_a_commit_to_share(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that finds no company is stored by itself."""
    async with open_shop(path) as shop:
        dialog = shop.begin(b"a")
        await asyncio.sleep(SOON)
        turns = watched(monkeypatch)
        target, query = shop.target_of(dialog), "SELECT count(*) FROM broker_transmission"
        shop.arrive(target.ack(1, 0))
        await asyncio.sleep(RIDE_SECONDS / 4)
        shop.arrive(far_initiator("Orders").message(0))
        await asyncio.sleep(RIDE_SECONDS / 2)

        assert [2] == [len(turn.frames) for turn in turns if turn.frames]
        assert [0] == rows(shop.application, query)
        dialog.send(b"b")
        await asyncio.sleep(SOON)
        shop.arrive(target.ack(2, 0))
        await asyncio.sleep(RIDE_SECONDS / 2)
        before = rows(shop.application, query)
        await asyncio.sleep(RIDE_SECONDS)
        assert ([1], [0]) == (before, rows(shop.application, query))
        shop.arrive(target.ack(2, 0))  # and the end comes before its time


@virtual_time
@pytest.mark.parametrize(
    ("first", "pause", "frames"), [(MANY, BATCH_PAUSE / 6, [MANY, 4]), (1, BATCH_PAUSE / 4, [1] * 5)]
)
async def test_what_comes_shortly_after_a_turn_for_several_shares_the_next_one(
    path: Path, monkeypatch: pytest.MonkeyPatch, first: int, pause: float, frames: list[int]
) -> None:
    """A turn for one keeps the next waiting for nothing."""
    async with open_shop(path) as shop:
        await asyncio.sleep(SOON)
        turns = watched(monkeypatch)
        shop.arrive(*[far_initiator("Orders").message(0) for _ in range(first)])
        for _ in range(4):
            await asyncio.sleep(pause)
            shop.arrive(far_initiator("Orders").message(0))
        await asyncio.sleep(BATCH_PAUSE)

        assert frames == [len(turn.frames) for turn in turns if turn.frames]


@virtual_time
@pytest.mark.parametrize("more", [0, 1])
async def test_acknowledgement_that_fixes_the_target_is_answered_by_its_name(path: Path, more: int) -> None:
    """By itself only when no message leaves that names it."""
    async with open_shop(path) as shop:
        dialog = shop.begin(b"a")
        await asyncio.sleep(SOON)
        target = shop.target_of(dialog)
        shop.arrive(target.ack(1, 0))
        await asyncio.sleep(ACK_DELAY / 2)
        if more:
            dialog.send(b"b")
        await asyncio.sleep(SOON)

        kinds = [(header.kind, header.to_broker_instance) for header, _ in map(decode_dialog, shop.link.frames)]
        named = (FrameKind.MESSAGE if more else FrameKind.ACK, target.contact.broker_instance)
        assert [(FrameKind.MESSAGE, NO_GUID), named] == kinds


@virtual_time
async def test_far_side_learns_that_a_queue_is_off_and_when_it_is_on_again(path: Path) -> None:
    async with open_shop(path) as shop:
        put_queue(shop.application, QUEUE, is_receive_enabled=False)
        shop.arrive(far_initiator("Orders").message(0))
        await asyncio.sleep(MAINTENANCE_SECONDS * 2)
        put_queue(shop.application, QUEUE, is_receive_enabled=True)
        await asyncio.sleep(MAINTENANCE_SECONDS * 3)

        said = [
            (header.ack_sequence, decode_stored(body).code) for header, body in map(decode_dialog, shop.link.frames)
        ]
        assert [(0, 11219), (0, 0)] == said


@virtual_time
@pytest.mark.promise("statements 5")
async def test_what_a_queue_did_not_take_is_sent_again_when_it_is_on(path: Path) -> None:
    """Without the wait that has doubled meanwhile; the status says why it waits."""
    async with open_shop(path) as shop:
        dialog = shop.begin(b"a")
        await asyncio.sleep(SOON)
        contact, refusal = shop.target_of(dialog).contact, AckNote(11219, "queue disabled")
        for _ in range(5):
            shop.arrive(ack_frame(contact, Travel(), bytes(16), (0, 0), note=refusal))
            await asyncio.sleep(8.0)
        sent, sender = len(shop.link.headers()), shop.endpoint.transmitter.senders[1]
        status, blocked = shop.endpoint.transmitter.status_of(sender), shop.endpoint.transmitter.blocked()
        shop.arrive(ack_frame(contact, Travel(), bytes(16), (0, 0)))
        await asyncio.sleep(SOON)

        assert "not stored by the far side: queue disabled (11219)" in status
        [(where, (dialogs, _))] = blocked.items()
        assert (1, "//far/Billing", "queue disabled (11219)") == (dialogs, where[:13], where.rpartition(": ")[2])
        assert {} == shop.endpoint.transmitter.blocked()
        assert sent + 1 == len(shop.link.headers())
        assert "not stored" not in shop.endpoint.transmitter.status_of(sender)


@virtual_time
async def test_dialog_that_was_closed_is_still_acknowledged(path: Path) -> None:
    async with open_shop(path) as shop:
        far = far_initiator("Orders")
        shop.arrive(far.message(0), far.end(1))
        await asyncio.sleep(SOON)
        shop.application.execute(
            "INSERT INTO broker_tombstone VALUES (?, 0, 2, 0, 0, 9e9, NULL, NULL, NULL, NULL)",
            (far.contact.conversation_id,),
        )
        shop.application.execute("DELETE FROM broker_conversation")
        shop.link.frames.clear()

        shop.arrive(far.end(1))
        await asyncio.sleep(SOON)

        assert [(2, 0)] == shop.link.acks()


@virtual_time
async def test_far_side_of_a_dialog_that_is_gone_hears_of_it_and_not_too_often(path: Path) -> None:
    async with open_shop(path) as shop:
        far = far_initiator("Orders", far_broker_instance=shop.endpoint.broker_instance)
        for _ in range(3):
            shop.arrive(far.message(7, stored=(2, 0)))
            await asyncio.sleep(SOON)

        ((header, body),) = map(decode_dialog, shop.link.frames)
        assert (FrameKind.FAULT, -8462) == (header.kind, decode_fault(body).code)
        assert Counter({Disposition.UNKNOWN_CONVERSATION: 3}) == shop.endpoint.dropped
