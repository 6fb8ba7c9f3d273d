"""One database at work: arrivals are stored and answered, what applications commit is sent, failures are survived."""

import asyncio
import sqlite3
import uuid
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import structlog

from broker.conversation.frames import AckNote, Travel, ack_frame
from broker.dialog import arrivals as inbox
from broker.dialog.arrivals import ACK_DELAY
from broker.dialog.endpoint import (
    BATCH_PAUSE,
    FAILURE_PAUSE,
    JUMP_SECONDS,
    MAINTENANCE_SECONDS,
    PAUSE_EACH,
    REFUSAL_SECONDS,
    RIDE_SECONDS,
    SETTLE_SECONDS,
    ClockJumpDetector,
)
from broker.dialog.route_requests import Inquiry, render_inquiry
from broker.flow import Disposition
from broker.protocol.frame import Rejected, decode_dialog, decode_fault, decode_stored
from broker.protocol.layout import NO_GUID, FrameKind
from broker.routing.route import BROKER_CONFIGURATION, SERVICE_BROKER, Route, RouteProperties, create_route
from broker.routing.table import build_table
from broker.store.port import WriteBatch, WriteResult
from broker.store.sqlite.hints import HINTS_VARIABLE, libc
from broker.store.sqlite.metadata import put_queue
from broker.store.sqlite.transaction import DaemonConnection
from broker.store.sqlite.write_batch import SqliteStore
from tests.support.dialog import QUEUE, begin, far_initiator, far_target, queued, rows, states
from tests.support.virtual_time import virtual_time
from tests.unit.dialog.running import GATEWAY, OTHER, SOON, Link, Shop, open_shop

# --- sending ----------------------------------------------------------------------------------------------------


@virtual_time
@pytest.mark.promise(5)
async def test_what_was_committed_before_the_start_is_sent(path: Path) -> None:
    async with open_shop(path) as shop:
        shop.begin(b"a")
    async with open_shop(path) as shop:
        await asyncio.sleep(SOON)

        assert len(shop.link.headers()) == 1


@virtual_time
@pytest.mark.promise(1)
async def test_uncommitted_messages_are_not_sent(path: Path) -> None:
    async with open_shop(path) as shop:
        dialog = shop.begin()
        shop.application.execute("BEGIN")
        dialog.send(b"a")
        await asyncio.sleep(SOON)
        assert shop.link.frames == []

        shop.application.execute("COMMIT")
        await asyncio.sleep(SOON)
        assert len(shop.link.headers()) == 1


@virtual_time
@pytest.mark.parametrize("routes", [(Route("to the gateway", GATEWAY),), ()], ids=["sent", "waits for a route"])
async def test_what_an_application_has_ended_with_cleanup_is_sent_no_more(
    path: Path, routes: tuple[Route, ...]
) -> None:
    """Whether another dialog began to wait after it or not."""
    async with open_shop(path, *routes) as shop:
        ended, later = shop.begin(b"ended"), shop.begin(b"later")
        await asyncio.sleep(SOON)
        sent = len(shop.link.frames)

        ended.end(cleanup=True)
        await asyncio.sleep(SOON)
        shop.route(Route("to the gateway", GATEWAY))
        await asyncio.sleep(60)

        assert {later.conversation_id.bytes} == {header.conversation_id for header in shop.link.headers()[sent:]}
        assert [1] == [len(shop.endpoint.transmitter.senders)]
        later.end(cleanup=True)
        await asyncio.sleep(SOON)
        assert {} == shop.endpoint.transmitter.senders


@pytest.mark.parametrize("hints", ["", "off"])
async def test_commit_of_any_program_is_sent_with_and_without_hints(
    path: Path, monkeypatch: pytest.MonkeyPatch, hints: str
) -> None:
    """In real time: after a rollback that had written to the log, and of two applications that commit together."""
    monkeypatch.setenv(HINTS_VARIABLE, hints)
    libc.cache_clear()
    shop = Shop(path)
    shop.endpoint.start()
    try:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("PRAGMA cache_size = 1")
        other.execute("BEGIN IMMEDIATE")
        other.execute(
            "CREATE TABLE large AS WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 999)"
            " SELECT zeroblob(4000) FROM n"
        )
        await asyncio.sleep(0.05)
        other.execute("ROLLBACK")
        shop.begin(b"a")
        begin(other, b"b")
        other.close()
        async with asyncio.timeout(20.0):
            while len(shop.link.headers()) < 2:  # noqa: ASYNC110 - nothing says when a link was given a frame
                await asyncio.sleep(0.01)
    finally:
        await shop.close()
        libc.cache_clear()


# --- receiving --------------------------------------------------------------------------------------------------


@virtual_time
@pytest.mark.promise(6, "forwarding 17")
async def test_nothing_is_acknowledged_before_the_writer_has_said_so(path: Path) -> None:
    loop: Any = asyncio.get_running_loop()
    loop.executor_delay = lambda: 1.0
    async with open_shop(path) as shop:
        await asyncio.sleep(2.5)
        shop.arrive(far_initiator("Orders").message(0))

        await asyncio.sleep(0.9)
        assert shop.link.acks() == []
        await asyncio.sleep(2.5)
        assert shop.link.acks() == [(1, 0)]
        loop.executor_delay = lambda: 0.001


@virtual_time
async def test_what_is_stored_is_acknowledged_again_when_a_next_hop_accepts_what_it_refused(
    path: Path,
) -> None:
    async with open_shop(path) as shop:
        far = far_initiator("Orders")
        shop.arrive(far.message(0))
        await asyncio.sleep(2.5)
        [sent] = shop.link.headers(FrameKind.ACK)
        for code, conversation in ((11215, sent.conversation_id), (0, bytes(16)), (0, sent.conversation_id)):
            rejected = Rejected(conversation=conversation, code=code, retry_after_ms=100)
            shop.endpoint.on_rejected(rejected, shop.link, "gw")
            await asyncio.sleep(SOON)

        assert [(1, 0), (1, 0)] == shop.link.acks()


@virtual_time
async def test_fault_goes_to_every_address_as_nobody_sends_it_again(path: Path) -> None:
    async with open_shop(path) as shop:
        other, now = Link(), datetime.now(UTC)
        shop.forwarder.table.outbox(OTHER).outlet = other
        routes = [create_route(str(a), RouteProperties(address=str(a)), now=now) for a in (GATEWAY, OTHER)]
        shop.endpoint.transmitter.table = build_table(routes, now=now)

        shop.arrive(far_initiator("Nobody", far_broker_instance=shop.endpoint.broker_instance).message(0))
        await asyncio.sleep(SOON)

        faults = shop.link.headers(FrameKind.FAULT) + other.headers(FrameKind.FAULT)
        assert [1, 1] == [len(link.headers(FrameKind.FAULT)) for link in (shop.link, other)]
        assert 2 == len({header.message_id for header in faults})
        assert -8490 == decode_fault(decode_dialog(shop.link.frames[0])[1]).code
        assert shop.endpoint.dropped == Counter({Disposition.SERVICE_NOT_FOUND: 1})


@virtual_time
async def test_arrivals_past_the_bound_of_the_inbox_are_dropped_and_their_senders_advised(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "INBOX_MAX_BYTES", 500)
    async with open_shop(path) as shop:
        far = far_initiator("Orders")
        shop.arrive(*[far.message(number, b"x" * 100) for number in range(10)])
        taken = 10 - len(shop.peer.advice)
        await asyncio.sleep(SOON)

        assert set(shop.peer.advice) == {Disposition.STORE_BUSY}
        assert 0 < taken < 5
        assert shop.endpoint.dropped == Counter({Disposition.STORE_BUSY: 10 - taken})
        assert shop.link.acks() == [(taken, 0)]
        shop.arrive(far.message(taken))
        await asyncio.sleep(SOON)
        assert shop.link.acks()[-1] == (taken + 1, 0)


# --- lifetime ---------------------------------------------------------------------------------------------------


@virtual_time
@pytest.mark.promise(12)
async def test_dialogs_at_both_ends_fail_when_their_lifetime_is_over(path: Path) -> None:
    async with open_shop(path) as shop:
        shop.begin(b"a", lifetime=5)
        far = far_initiator("Orders")
        far.envelope = type(far.envelope)(type="T", contract="C", lifetime=5)
        shop.arrive(far.message(0))

        await asyncio.sleep(4.9)
        assert states(shop.application) == ["CO", "CO"]
        await asyncio.sleep(0.2 + MAINTENANCE_SECONDS)

        assert states(shop.application) == ["ER", "ER"]
        assert shop.endpoint.transmitter.senders == {}


DAY = 86_400.0


@virtual_time
@pytest.mark.parametrize("jumps", [(), (DAY,), (-DAY,), (DAY, -DAY), (-DAY, DAY)], ids=str)
@pytest.mark.promise("A clock is wrong")
async def test_clock_that_jumps_is_believed_after_a_while_and_holds_up_no_resend(
    path: Path, jumps: tuple[float, ...]
) -> None:
    """Lifetimes, conversation timers and tombstones go by the wall clock, which may be put right meanwhile."""
    loop: Any = asyncio.get_running_loop()
    right, off = loop.wall_clock, 0.0
    loop.wall_clock = lambda: right() + off
    async with open_shop(path) as shop:
        shop.begin(lifetime=3600).set_timer(3000)
        shop.begin(b"never acknowledged", lifetime=3 * DAY)
        closed = "INSERT INTO broker_tombstone VALUES (?, 1, 0, 0, 0, ?, NULL, NULL, NULL, NULL)"
        shop.application.execute(closed, (bytes(16), right() + 3600))

        def known() -> tuple[list[str], int, int]:
            (tombstones,) = shop.application.execute("SELECT count(*) FROM broker_tombstone").fetchone()
            return states(shop.application), len(queued(shop.application)), tombstones

        for jump in (0.0, *jumps):  # a daemon has to have seen the clock before it can see a jump
            off += jump
            await asyncio.sleep(SETTLE_SECONDS / 3)
        assert (["SO", "CO"], 0, 1) == known()
        await asyncio.sleep((4 - len(jumps)) * SETTLE_SECONDS / 3)

        is_over = sum(jumps) > 0
        assert ((["ER", "CO"], 2, 0) if is_over else (["SO", "CO"], 0, 1)) == known()  # its error, and the timer
        assert 13 <= len(shop.link.headers()) <= 17


@virtual_time
@pytest.mark.promise("A clock is wrong")
async def test_message_whose_lifetime_seemed_to_be_over_is_sent_again_once_the_clock_is_right(path: Path) -> None:
    loop: Any = asyncio.get_running_loop()
    right, off = loop.wall_clock, 0.0
    loop.wall_clock = lambda: right() + off
    async with open_shop(path) as shop:
        shop.begin(b"a", lifetime=3600)
        for ahead in (0.0, DAY, 0.0):
            off = ahead
            sent = len(shop.link.headers())
            await asyncio.sleep(SETTLE_SECONDS / 3)

        assert len(shop.link.headers()) > sent


# --- failures ---------------------------------------------------------------------------------------------------


@virtual_time
@pytest.mark.promise("A disk is full")
async def test_while_the_store_fails_nothing_is_acknowledged_and_afterwards_all_goes_on(path: Path) -> None:
    async with open_shop(path) as shop:
        await asyncio.sleep(SOON)
        far = far_initiator("Orders")
        dialog = shop.begin()
        shop.application.execute("BEGIN IMMEDIATE")
        dialog.send(b"a")
        shop.arrive(far.message(0))
        await asyncio.sleep(SOON)
        assert "keeps a write transaction open" in shop.endpoint.problem
        assert shop.link.frames == []

        shop.application.execute("COMMIT")
        await asyncio.sleep(FAILURE_PAUSE + SOON)
        assert shop.endpoint.problem == ""
        assert len(shop.link.headers()) == 1
        shop.arrive(far.message(0))
        await asyncio.sleep(SOON)

        assert shop.link.acks() == [(1, 0)]
        assert shop.endpoint.dropped == Counter({Disposition.STORE_FAILED: 1})


@virtual_time
async def test_borrowed_connection_is_touched_by_no_turn(path: Path) -> None:
    """A script may take long, or fail; turns wait for it, and go on after it."""
    async with open_shop(path) as shop:

        def borrow() -> tuple[bool, bool]:
            with shop.endpoint.pause_writer() as db:
                turn = shop.endpoint._writer.submit(lambda: None)
                return db is shop.endpoint._store.catalog_connection(), turn.done()

        def fail() -> None:
            with shop.endpoint.pause_writer():
                raise ValueError

        assert await asyncio.to_thread(borrow) == (True, False)
        with pytest.raises(ValueError):  # noqa: PT011 - it is ours
            await asyncio.to_thread(fail)
        assert await shop.endpoint.run_in_writer(lambda db: db is shop.endpoint._store.catalog_connection())


@virtual_time
async def test_bug_in_a_turn_is_told_and_survived(path: Path) -> None:
    async with open_shop(path) as shop:
        await asyncio.sleep(SOON)
        far = far_initiator("Orders")
        with mock.patch.object(SqliteStore, "write_in_writer", side_effect=AssertionError("bug")):
            shop.arrive(far.message(0))
            await asyncio.sleep(SOON)
            assert "AssertionError('bug')" in shop.supervision.problems["shop turns"]

        shop.begin(b"a")
        shop.arrive(far.message(0))
        await asyncio.sleep(FAILURE_PAUSE)

        assert shop.link.acks() == [(1, 0)]
        assert len(shop.link.headers()) == 1
        assert shop.endpoint.dropped == Counter({Disposition.STORE_FAILED: 1})


@virtual_time
@pytest.mark.parametrize("name", ["shop turns", "shop requests"])
async def test_task_that_somebody_cancels_is_begun_anew(path: Path, name: str) -> None:
    async with open_shop(path) as shop:
        await asyncio.sleep(SOON)
        next(task for task in asyncio.all_tasks() if task.get_name() == name).cancel()
        await asyncio.sleep(SOON)

        shop.begin(b"a")
        await asyncio.sleep(SOON)

        assert len(shop.link.headers()) == 1
        assert shop.supervision.failures[name] == 1


# --- between two turns, and the end -----------------------------------------------------------------------------


@virtual_time
@pytest.mark.promise(6)
async def test_message_stored_and_not_acknowledged_is_acknowledged_when_it_comes_again(path: Path) -> None:
    loop: Any = asyncio.get_running_loop()
    far = far_initiator("Orders")
    async with open_shop(path) as shop:
        await asyncio.sleep(SOON)
        loop.executor_delay = lambda: 10.0
        shop.arrive(far.message(0))
        await asyncio.sleep(SOON)
        loop.executor_delay = lambda: 0.001
    assert shop.link.acks() == []

    async with open_shop(path) as shop:
        shop.arrive(far.message(0))
        await asyncio.sleep(SOON)

        assert shop.link.acks() == [(1, 0)]
        assert len(queued(shop.application)) == 1


@virtual_time
@pytest.mark.parametrize("is_kept", [True, False])
async def test_whoever_is_not_the_principal_any_more_is_told_and_acknowledges_nothing(
    path: Path, *, is_kept: bool
) -> None:
    """Where the role is kept by nothing, a lost database is a store that failed."""
    told: list[str] = []
    with structlog.testing.capture_logs() as logs:
        async with open_shop(path) as shop:
            if is_kept:
                shop.endpoint._on_demoted = told.append
            assert isinstance(shop.db, DaemonConnection)
            shop.db.epoch = 0
            await asyncio.sleep(SOON)
            shop.application.execute("UPDATE broker_database SET epoch = 2")
            shop.arrive(far_initiator().message(0, b"hello"))
            await asyncio.sleep(SOON)

            assert [] == shop.link.acks()
            assert (0,) == shop.application.execute("SELECT count(*) FROM broker_message").fetchone()
    failed = [one["reason"] for one in logs if one["event"] == "store failed"]
    assert "its epoch is 2, ours was 0" in (told if is_kept else failed)[0]


@virtual_time
@pytest.mark.parametrize("is_confirmed", [True, False])
async def test_what_is_stored_and_sent_leaves_only_while_the_role_is_confirmed(
    path: Path, *, is_confirmed: bool
) -> None:
    """It was stored in time, and the process stood still behind that: who is the principal by then acknowledges it."""
    async with open_shop(path) as shop:
        shop.endpoint.transmitter.is_role_confirmed = lambda: is_confirmed
        shop.arrive(far_initiator("Orders").message(0, b"hello"))
        shop.begin(b"a")
        await asyncio.sleep(SOON)

        kinds = {frame[4] for frame in shop.link.frames}
        assert 1 == len(queued(shop.application))
        assert ({FrameKind.ACK, FrameKind.MESSAGE} if is_confirmed else set()) == kinds


@virtual_time
async def test_database_is_at_rest_when_all_that_came_is_stored_and_acknowledged(path: Path) -> None:
    async with open_shop(path) as shop:
        await asyncio.sleep(SOON)

        shop.endpoint.quiesce()
        shop.begin(b"a")  # its own messages stay where they are
        shop.arrive(far_initiator("Orders").message(0))
        assert not shop.endpoint.is_quiet
        await asyncio.sleep(SOON)

        assert shop.endpoint.is_quiet
        assert [FrameKind.ACK] == [frame[4] for frame in shop.link.frames]


@virtual_time
async def test_refused_frames_are_logged_once_a_minute_for_each_kind(path: Path) -> None:
    async with open_shop(path) as shop:
        with structlog.testing.capture_logs() as logs:
            for now, disposition in (
                (1000.0, Disposition.SEAL_BROKEN),
                (1000.0 + REFUSAL_SECONDS - 1, Disposition.SEAL_BROKEN),
                (1001.0, Disposition.NOT_SEALED),
                (1000.0 + 2 * REFUSAL_SECONDS, Disposition.SEAL_BROKEN),
            ):
                shop.endpoint._log_refusals({disposition: "because"}, now)

    assert [("shop", number, "because") for number in (11230, 11232, 11230)] == [
        (line["database"], line["number"], line["reason"]) for line in logs if line["event"] == "frame refused"
    ]


# --- requests for routes -----------------------------------------------------------------------------------------

BILLING = "//far/Billing"
ASK = Route("ask", GATEWAY, remote_service_name=BROKER_CONFIGURATION)


def requests(shop: Shop) -> list[bytes]:
    size = len(render_inquiry(Inquiry(BILLING)))
    return [body[-size:] for body in shop.link.bodies(BROKER_CONFIGURATION)]


def answer_request(shop: Shop) -> None:
    """The peer that was asked last ends the dialog."""
    conversation = [one.conversation_id for one in shop.link.headers() if one.to_service == BROKER_CONFIGURATION][-1]
    known = {"service_name": BROKER_CONFIGURATION, "far_service": SERVICE_BROKER}
    shop.arrive(far_target(shop.db, uuid.UUID(bytes=conversation), **known).end(0, stored=(1, 0)))


@virtual_time
async def test_conversations_without_a_route_wait_for_one_request_and_use_the_route_that_it_brings(path: Path) -> None:
    async with open_shop(path, ASK) as shop:
        for body in (b"one", b"two"):
            shop.begin(body)
        await asyncio.sleep(2 * SOON)
        assert [render_inquiry(Inquiry(BILLING))] == requests(shop)
        assert [] == shop.link.bodies(BILLING)

        answer_request(shop)
        shop.route(ASK, Route("found", GATEWAY, remote_service_name=BILLING))
        await asyncio.sleep(2 * SOON)

        assert [b"one", b"two"] == [body[-3:] for body in shop.link.bodies(BILLING)]
        assert ["CO", "CO"] == states(shop.db)


@virtual_time
async def test_what_leads_back_to_this_very_instance_is_asked_for_by_the_instance(path: Path) -> None:
    back = Route("self", OTHER, remote_service_name=BILLING)
    async with open_shop(path, back) as shop:
        shop.forwarder.add_own_addresses({OTHER}, 0.0)
        shop.route(back, msdb=build_table([ASK], now=datetime.now(UTC)))
        shop.begin(b"one")
        await asyncio.sleep(2 * SOON)

        assert {BILLING} == {facts.to_service for facts in shop.asked}
        assert [] == requests(shop)


WALL = 1_750_000_000.0


@pytest.mark.parametrize("step", [JUMP_SECONDS - 0.1, -JUMP_SECONDS + 0.1, 86_400.0])
def test_jump_forward_is_believed_when_it_stays(step: float) -> None:
    """A correction is no jump, and one that is undone has done no harm."""
    clock = ClockJumpDetector()
    clock.observe(WALL, 100.0)
    is_jump = step > JUMP_SECONDS

    assert (step if is_jump else 0.0) == clock.observe(WALL + 1 + step, 101.0)
    assert is_jump != clock.is_settled(101.0)
    if is_jump:
        assert 0.0 == clock.observe(WALL + 2 + step, 102.0)
        assert not clock.is_settled(101.0 + SETTLE_SECONDS - 0.1)
        assert clock.is_settled(101.0 + SETTLE_SECONDS)
        clock.observe(WALL + 3 + 2 * step, 103.0)
        assert -2 * step == clock.observe(WALL + 4.0, 104.0)
        assert clock.is_settled(104.0)


# --- acknowledgements, and what the far side hears ---

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
