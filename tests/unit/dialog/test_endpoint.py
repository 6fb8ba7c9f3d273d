"""One database at work: arrivals are stored and answered, what applications commit is sent, failures are survived."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import structlog

from broker.client.dialog import Dialog, begin_dialog
from broker.conversation.frames import Travel
from broker.conversation.window import Backoff
from broker.dialog import arrivals as inbox
from broker.dialog import send_queue as loading
from broker.dialog.endpoint import (
    FAILURE_PAUSE,
    JUMP_SECONDS,
    KEEP_SECONDS,
    POLL_SECONDS,
    SETTLE_SECONDS,
    Endpoint,
    WallClock,
    borrowed,
    checked,
)
from broker.dialog.transmitter import DialogTuning
from broker.errors import StoreUnavailableError
from broker.flow import Disposition
from broker.forwarding.entry import Buffer, frame_bounds
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.pool import Limits
from broker.protocol.frame import Header, decode_dialog, decode_fault
from broker.protocol.layout import NO_GUID, FrameKind
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth
from broker.routing.route import RouteProperties, create_route
from broker.routing.table import build_table
from broker.store.port import Find, WriteBatch, WriteResult
from broker.store.sqlite.transaction import LAPSED, DaemonConnection
from broker.store.sqlite.write_batch import SqliteStore
from broker.supervision import Supervision
from tests.support.dialog import FarSide, far_initiator, far_target, open_database, queued, rows, states
from tests.support.virtual_time import VirtualLoop, virtual_time

WRITE = SqliteStore.write_in_writer

# --- test_borrowing ---
# A connection is lent while its writer thread stands still, and given back whatever happens.


@pytest.fixture
def writer() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
def store() -> Iterator[Any]:
    with closing(sqlite3.connect(":memory:")) as db:
        yield SimpleNamespace(catalog_connection=lambda: db)


def test_writer_stands_still_meanwhile(store: Any, writer: ThreadPoolExecutor) -> None:
    with borrowed(store, writer) as db:
        turn = writer.submit(lambda: "turn")
        assert (db is store.catalog_connection(), turn.done()) == (True, False)

    assert turn.result() == "turn"


def test_writer_goes_on_after_a_failure(store: Any, writer: ThreadPoolExecutor) -> None:
    with pytest.raises(ZeroDivisionError), borrowed(store, writer):
        raise ZeroDivisionError

    assert writer.submit(lambda: "turn").result() == "turn"


def test_what_would_not_be_found_again_is_not_lent(store: Any, writer: ThreadPoolExecutor) -> None:
    def lend() -> None:
        raise StoreUnavailableError("orders.db", "the file has been replaced")

    store.catalog_connection = lend

    with pytest.raises(StoreUnavailableError), borrowed(store, writer):
        pytest.fail("lent")

    assert writer.submit(lambda: "turn").result() == "turn"


def test_work_is_given_the_connection(store: Any) -> None:
    assert checked(store, lambda db: db)() is store.catalog_connection()


def test_work_is_not_done_on_what_would_not_be_found_again(store: Any) -> None:
    def lend() -> None:
        raise StoreUnavailableError("orders.db", "the file has been replaced")

    store.catalog_connection = lend

    with pytest.raises(StoreUnavailableError):
        checked(store, lambda _: pytest.fail("done"))()


GATEWAY, OTHER = NetworkAddress("gateway", 1), NetworkAddress("other", 1)
SOON = 0.2  # seconds within which a healthy database has done what there is to do


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

    def finish(self, rest: Buffer) -> None:
        raise AssertionError("takes everything at once")

    def headers(self, kind: FrameKind = FrameKind.MESSAGE) -> list[Header]:
        return [header for header, _ in map(decode_dialog, self.frames) if header.kind == kind]

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
    """A database with the service Orders, its endpoint, the link it sends by, and its application's connection."""

    def __init__(self, path: Path, *, fragment_size: int = 1000) -> None:
        self.forwarder = Forwarder(
            Limits(pool_bytes=1 << 20, max_frame=1 << 20, max_hops=16),
            deliver=lambda database, frames, origin: None,
            want=lambda _: None,
            health_of=lambda _: AddressHealth.CONNECTED,
        )
        self.link = Link()
        self.forwarder.outbox(GATEWAY).outlet = self.link
        self.peer = Peer()
        self.db = open_database(path, "Orders")
        self.db.execute("PRAGMA busy_timeout = 0")
        settings = DialogTuning(Backoff(1.0, 8.0), Travel(), window=64, fragment_size=fragment_size)
        store = SqliteStore(path, self.db, fragment_size=settings.fragment_size)
        self.supervision = Supervision()
        self.endpoint = Endpoint(
            "shop", path, store, settings=settings, forwarder=self.forwarder, supervision=self.supervision
        )
        now = datetime.now(UTC)
        everywhere = create_route("everywhere", RouteProperties(address=str(GATEWAY)), now=now)
        self.endpoint.transmitter.table = build_table([everywhere], now=now)
        self.application = sqlite3.connect(path, isolation_level=None, timeout=0)

    def begin(self, *bodies: bytes, **more: Any) -> Dialog:
        dialog = begin_dialog(self.application, from_service="Orders", to_service="//far/Billing", **more)
        for body in bodies:
            dialog.send(body)
        return dialog

    def arrive(self, *frames: bytes) -> None:
        self.endpoint.arrive(list(frames), self.peer)

    def target_of(self, dialog: Dialog) -> FarSide:
        return far_target(self.application, dialog.conversation_id)

    async def close(self) -> None:
        await self.endpoint.close()
        self.application.close()


@asynccontextmanager
async def open_shop(path: Path, **more: Any) -> AsyncIterator[Shop]:
    """A shop that is open for the length of a test, on virtual time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    with mock.patch("time.time", loop.wall_clock):
        shop = Shop(path, **more)
        shop.endpoint.start()
        try:
            yield shop
        finally:
            await shop.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


# --- sending ----------------------------------------------------------------------------------------------------


@virtual_time
async def test_what_an_application_commits_is_sent(path: Path) -> None:
    async with open_shop(path) as shop:
        await asyncio.sleep(SOON)
        shop.begin(b"a", b"b")
        await asyncio.sleep(SOON)

        assert [(0, 0), (1, 0)] == [(h.sequence_number, h.fragment_number) for h in shop.link.headers()]


@virtual_time
async def test_what_was_committed_before_the_start_is_sent(path: Path) -> None:
    async with open_shop(path) as shop:
        shop.begin(b"a")
    async with open_shop(path) as shop:
        await asyncio.sleep(SOON)

        assert len(shop.link.headers()) == 1


@virtual_time
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
async def test_idle_database_is_looked_at_now_and_then_only(path: Path) -> None:
    async with open_shop(path) as shop:
        with mock.patch.object(shop.endpoint, "_version", wraps=shop.endpoint._version) as look:
            await asyncio.sleep(10.0)

        assert look.call_count <= 1.2 * 10.0 / POLL_SECONDS[1]


@virtual_time
async def test_acknowledgement_ends_the_sending_and_binds_the_dialog(path: Path) -> None:
    async with open_shop(path) as shop:
        dialog = shop.begin(b"a")
        await asyncio.sleep(SOON)
        target = shop.target_of(dialog)
        shop.arrive(target.ack(1, 0))
        await asyncio.sleep(SOON)
        assert shop.endpoint.transmitter.senders == {}

        dialog.send(b"b")
        await asyncio.sleep(SOON)

        assert [NO_GUID, target.contact.broker_instance] == [h.to_broker_instance for h in shop.link.headers()]
        assert rows(shop.application, "SELECT count(*) FROM broker_transmission") == [1]


@virtual_time
async def test_dialog_is_bound_even_while_its_messages_are_under_way(path: Path) -> None:
    async with open_shop(path) as shop:
        dialog = shop.begin(b"a", b"b")
        await asyncio.sleep(SOON)
        target = shop.target_of(dialog)

        shop.arrive(target.ack(1, 0))
        await asyncio.sleep(1.5)

        assert (1, target.contact.broker_instance) == (
            shop.link.headers()[-1].sequence_number,
            shop.link.headers()[-1].to_broker_instance,
        )


@virtual_time
async def test_answers_acknowledge_what_has_arrived(path: Path) -> None:
    async with open_shop(path) as shop:
        far = far_initiator("Orders")
        shop.arrive(far.message(0))
        await asyncio.sleep(SOON)
        handle = rows(shop.application, "SELECT conversation_handle FROM broker_conversation")[0]
        shop.arrive(far.message(1))
        await asyncio.sleep(SOON)

        Dialog(shop.application, 1, handle, handle).send(b"answer")
        await asyncio.sleep(SOON)

        ((answer),) = shop.link.headers()
        assert (answer.is_from_target, answer.ack_sequence) == (True, 2)


@virtual_time
async def test_dialog_that_is_sending_acknowledges_what_arrives_meanwhile(path: Path) -> None:
    async with open_shop(path) as shop:
        dialog = shop.begin(b"a")
        await asyncio.sleep(SOON)

        shop.arrive(shop.target_of(dialog).message(0))
        await asyncio.sleep(SOON)
        dialog.send(b"b")
        await asyncio.sleep(SOON)

        assert [0, 1] == [header.ack_sequence for header in shop.link.headers()]


@virtual_time
async def test_loading_that_found_no_room_is_taken_up_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "LOADED_MAX_BYTES", 10)
    async with open_shop(path, fragment_size=300_000) as shop:
        dialogs = [shop.begin(b"x" * 200_000) for _ in range(5)]
        acknowledged = 0
        while acknowledged < len(dialogs):
            await asyncio.sleep(SOON)
            sent = {header.conversation_id for header in shop.link.headers()}
            assert len(sent) == acknowledged + 1
            (new,) = [d for d in dialogs if d.conversation_id.bytes in sent and _is_waiting(shop, d)]
            shop.arrive(shop.target_of(new).ack(1, 0))
            acknowledged += 1


def _is_waiting(shop: Shop, dialog: Dialog) -> bool:
    query = "SELECT acknowledged_sequence FROM broker_conversation WHERE conversation_id = ?"
    return rows(shop.application, query, dialog.conversation_id.bytes) == [0]


@virtual_time
async def test_fragment_size_holds_until_no_message_waits_that_was_cut_by_it(path: Path) -> None:
    """The far side may have some of the fragments, and the others have to fit them."""
    async with open_shop(path, fragment_size=10) as shop:
        dialog = shop.begin(b"x" * 25)

    async with open_shop(path, fragment_size=1000) as shop:
        await asyncio.sleep(SOON)
        assert [0, 1, 2] == [header.fragment_number for header in shop.link.headers()]
        shop.arrive(shop.target_of(dialog).ack(1, 0))
        await asyncio.sleep(SOON)

    async with open_shop(path, fragment_size=1000) as shop:
        shop.begin(b"x" * 25)
        await asyncio.sleep(SOON)
        assert [0] == [header.fragment_number for header in shop.link.headers()]


# --- receiving --------------------------------------------------------------------------------------------------


@virtual_time
async def test_what_arrives_is_stored_and_acknowledged(path: Path) -> None:
    async with open_shop(path) as shop:
        far = far_initiator("Orders")
        shop.arrive(far.message(0, b"0"), far.message(1, b"1"))
        await asyncio.sleep(SOON)

        assert [body for _, body in queued(shop.application)] == [b"0", b"1"]
        assert shop.link.acks() == [(2, 0)]
        assert shop.endpoint.delivered == Counter(Orders=2)
        assert shop.forwarder.unaccounted == 0


@virtual_time
async def test_nothing_is_acknowledged_before_the_writer_has_said_so(path: Path) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
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
async def test_arrivals_during_a_turn_are_one_batch_of_the_next(path: Path) -> None:
    async with open_shop(path) as shop:
        await asyncio.sleep(SOON)
        far = far_initiator("Orders")
        for number in range(100):
            shop.arrive(far.message(number))
        await asyncio.sleep(SOON)

        assert shop.link.acks() == [(100, 0)]


@virtual_time
async def test_absent_service_is_answered_with_a_fault(path: Path) -> None:
    async with open_shop(path) as shop:
        shop.arrive(far_initiator("Nobody", far_broker_instance=shop.endpoint.broker_instance).message(0))
        await asyncio.sleep(SOON)

        ((header, body),) = map(decode_dialog, shop.link.frames)
        assert (header.kind, decode_fault(body).code) == (FrameKind.FAULT, -8490)
        assert shop.endpoint.dropped == Counter({Disposition.SERVICE_NOT_FOUND: 1})


@virtual_time
async def test_fault_goes_to_every_address_as_nobody_sends_it_again(path: Path) -> None:
    async with open_shop(path) as shop:
        other, now = Link(), datetime.now(UTC)
        shop.forwarder.outbox(OTHER).outlet = other
        routes = [create_route(str(a), RouteProperties(address=str(a)), now=now) for a in (GATEWAY, OTHER)]
        shop.endpoint.transmitter.table = build_table(routes, now=now)

        shop.arrive(far_initiator("Nobody", far_broker_instance=shop.endpoint.broker_instance).message(0))
        await asyncio.sleep(SOON)

        faults = shop.link.headers(FrameKind.FAULT) + other.headers(FrameKind.FAULT)
        assert [1, 1] == [len(link.headers(FrameKind.FAULT)) for link in (shop.link, other)]
        assert 2 == len({header.message_id for header in faults})


@virtual_time
async def test_fault_ends_the_sending(path: Path) -> None:
    async with open_shop(path) as shop:
        dialog = shop.begin(b"a")
        await asyncio.sleep(SOON)

        shop.arrive(shop.target_of(dialog).fault(-8408))
        await asyncio.sleep(10.0)

        assert (len(shop.link.headers()), shop.endpoint.transmitter.senders) == (1, {})


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


@virtual_time
async def test_crowd_of_arrivals_is_stored_in_turns_and_all_of_it_acknowledged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "TURN_FRAMES", 3)
    async with open_shop(path) as shop:
        far = far_initiator("Orders")
        shop.arrive(*[far.message(number) for number in range(10)])
        await asyncio.sleep(SOON)

        first, *_, last = shop.link.acks()
        assert first[0] in {3, 6, 9}
        assert (10, 0) == last


# --- lifetime ---------------------------------------------------------------------------------------------------


@virtual_time
async def test_dialogs_at_both_ends_fail_when_their_lifetime_is_over(path: Path) -> None:
    async with open_shop(path) as shop:
        shop.begin(b"a", lifetime=5)
        far = far_initiator("Orders")
        far.envelope = type(far.envelope)(type="T", contract="C", lifetime=5)
        shop.arrive(far.message(0))

        await asyncio.sleep(4.9)
        assert states(shop.application) == ["CO", "CO"]
        await asyncio.sleep(0.2 + KEEP_SECONDS)

        assert states(shop.application) == ["ER", "ER"]
        assert shop.endpoint.transmitter.senders == {}


# --- failures ---------------------------------------------------------------------------------------------------


@virtual_time
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
async def test_nothing_is_answered_while_the_file_is_away_and_afterwards_all_goes_on(path: Path) -> None:
    async with open_shop(path) as shop:
        await asyncio.sleep(SOON)
        far = far_initiator("Orders")
        os.rename(path, path.with_name("away"))  # noqa: PTH104 - the loop stands still in any case
        shop.arrive(far.message(0))
        await asyncio.sleep(SOON)
        assert "the file is gone while it is in use" in shop.endpoint.problem
        with pytest.raises(StoreUnavailableError):
            await shop.endpoint.in_writer(lambda db: db.execute("DELETE FROM broker_route"))
        with pytest.raises(StoreUnavailableError):
            await asyncio.to_thread(shop.endpoint.borrow().__enter__)
        assert shop.link.acks() == []

        os.rename(path.with_name("away"), path)  # noqa: PTH104 - likewise
        await asyncio.sleep(FAILURE_PAUSE)
        shop.arrive(far.message(0))
        await asyncio.sleep(SOON)

        assert (shop.endpoint.problem, shop.link.acks()) == ("", [(1, 0)])


@virtual_time
async def test_loading_that_failed_is_tried_again(path: Path) -> None:
    failures = iter([True, True])

    def do(store: SqliteStore, batch: WriteBatch) -> WriteResult:
        if batch.find and next(failures, False):
            raise StoreUnavailableError("shop.db", "disk I/O error")
        return WRITE(store, batch)

    with mock.patch.object(SqliteStore, "write_in_writer", do):
        async with open_shop(path) as shop:
            shop.begin(b"a")
            await asyncio.sleep(2 * FAILURE_PAUSE + 2 * SOON)

            assert len(shop.link.headers()) >= 1
            assert shop.endpoint.problem == ""


@virtual_time
async def test_what_a_turn_reads_is_known_though_its_writing_fails(path: Path) -> None:
    def do(store: SqliteStore, batch: WriteBatch) -> WriteResult:
        if batch.frames:
            raise StoreUnavailableError("shop.db", "disk I/O error")
        return WRITE(store, batch)

    with mock.patch.object(SqliteStore, "write_in_writer", do):
        async with open_shop(path) as shop:
            await asyncio.sleep(SOON)
            shop.begin(b"a")
            shop.endpoint._find = Find.NEW
            shop.arrive(far_initiator("Orders").message(0))
            await asyncio.sleep(SOON)

            assert "disk I/O error" in shop.endpoint.problem
            assert set(shop.endpoint.transmitter.senders) == {1}
            assert shop.endpoint.dropped == Counter({Disposition.STORE_FAILED: 1})

            await asyncio.sleep(2 * FAILURE_PAUSE)
            assert (len(shop.link.headers()) >= 1, shop.link.acks()) == (True, [])


@virtual_time
async def test_store_that_cannot_be_watched_is_asked_by_the_writer(path: Path) -> None:
    async with open_shop(path) as shop:
        await asyncio.sleep(SOON)
        with mock.patch.object(shop.endpoint._store, "_watch") as watch:
            watch.execute.side_effect = StoreUnavailableError("shop.db", "disk I/O error")
            await asyncio.sleep(SOON)
            shop.begin(b"a")
            await asyncio.sleep(FAILURE_PAUSE)

        assert len(shop.link.headers()) == 1


@virtual_time
async def test_borrowed_connection_is_touched_by_no_turn(path: Path) -> None:
    """A script may take long; turns wait for it, and go on behind it."""
    async with open_shop(path) as shop:

        def borrow() -> tuple[bool, bool]:
            with shop.endpoint.borrow() as db:
                turn = shop.endpoint._writer.submit(lambda: None)
                return db is shop.endpoint._store.catalog_connection(), turn.done()

        assert await asyncio.to_thread(borrow) == (True, False)
        assert await shop.endpoint.in_writer(lambda db: db is shop.endpoint._store.catalog_connection())


@virtual_time
async def test_connection_is_given_back_after_a_failure(path: Path) -> None:
    async with open_shop(path) as shop:

        def fail() -> None:
            with shop.endpoint.borrow():
                raise ValueError

        with pytest.raises(ValueError):  # noqa: PT011 - it is ours
            await asyncio.to_thread(fail)

        assert await shop.endpoint.in_writer(lambda db: db is shop.endpoint._store.catalog_connection())


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
async def test_what_a_turn_had_loaded_when_it_died_is_loaded_again(path: Path) -> None:
    """The file was read, and nobody has heard of it: the dialog must not wait for an answer for ever."""
    async with open_shop(path) as shop:
        await asyncio.sleep(SOON)
        with mock.patch.object(shop.endpoint.transmitter, "loaded", side_effect=AssertionError("bug")):
            shop.begin(b"a", b"b")
            await asyncio.sleep(SOON)
        assert shop.link.headers() == []

        await asyncio.sleep(FAILURE_PAUSE)

        assert [0, 1] == [header.sequence_number for header in shop.link.headers()]


@virtual_time
@pytest.mark.parametrize("name", ["shop turns", "shop poll", "shop requests"])
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
async def test_changes_of_the_catalog_run_on_the_connection_of_the_writer(path: Path) -> None:
    async with open_shop(path) as shop:
        assert await shop.endpoint.in_writer(lambda db: db is shop.db)


@pytest.mark.parametrize("is_started", [True, False])
@virtual_time
async def test_closed_database_is_not_touched_any_more(path: Path, *, is_started: bool) -> None:
    shop = Shop(path)
    if is_started:
        shop.endpoint.start()
        await asyncio.sleep(SOON)

    await shop.close()

    with pytest.raises(sqlite3.ProgrammingError):
        shop.db.execute("SELECT 1")


@virtual_time
async def test_what_arrived_too_late_for_the_last_turn_comes_again(path: Path) -> None:
    async with open_shop(path) as shop:
        await asyncio.sleep(SOON)
        shop.arrive(far_initiator("Orders").message(0))

    assert shop.link.acks() == []


@virtual_time
async def test_message_stored_and_not_acknowledged_is_acknowledged_when_it_comes_again(path: Path) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
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
async def test_whoever_is_not_the_principal_any_more_is_told_and_acknowledges_nothing(path: Path) -> None:
    async with open_shop(path) as shop:
        told: list[str] = []
        shop.endpoint.on_demoted = told.append
        assert isinstance(shop.db, DaemonConnection)
        shop.db.epoch = 0
        await asyncio.sleep(SOON)
        shop.application.execute("UPDATE broker_database SET epoch = 2")
        shop.arrive(far_initiator().message(0, b"hello"))
        await asyncio.sleep(SOON)

        assert "its epoch is 2, ours was 0" in told[0]
        assert [] == shop.link.acks()
        assert (0,) == shop.application.execute("SELECT count(*) FROM broker_message").fetchone()


@virtual_time
async def test_where_nobody_keeps_the_role_a_lost_database_is_a_store_that_failed(path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        async with open_shop(path) as shop:
            assert isinstance(shop.db, DaemonConnection)
            shop.db.is_confirmed = lambda: False
            shop.arrive(far_initiator("Orders").message(0, b"hello"))
            await asyncio.sleep(SOON)

    assert LAPSED in [one["reason"] for one in logs if one["event"] == "store failed"]


@virtual_time
async def test_whoever_stood_still_for_too_long_is_told_and_stores_and_sends_and_acknowledges_nothing(
    path: Path,
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with open_shop(path) as shop:
            told: list[str] = []
            shop.endpoint.on_demoted = told.append
            await asyncio.sleep(SOON)
            shop.begin(b"found before, and not sent yet")
            assert isinstance(shop.db, DaemonConnection)
            shop.db.is_confirmed = shop.endpoint.transmitter.is_confirmed = lambda: False
            shop.arrive(far_initiator("Orders").message(0, b"hello"))
            await asyncio.sleep(SOON)

            assert LAPSED == told[0]
            assert "store failed" not in [one["event"] for one in logs]  # who was told tells what it is
            assert [] == shop.link.frames
            assert [] == queued(shop.application)


@virtual_time
@pytest.mark.parametrize("is_confirmed", [True, False])
async def test_what_is_stored_and_sent_leaves_only_while_the_role_is_confirmed(
    path: Path, *, is_confirmed: bool
) -> None:
    """It was stored in time, and the process stood still behind that: who is the principal by then acknowledges it."""
    async with open_shop(path) as shop:
        shop.endpoint.transmitter.is_confirmed = lambda: is_confirmed
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

        shop.endpoint.rest()
        shop.begin(b"a")  # its own messages stay where they are
        shop.arrive(far_initiator("Orders").message(0))
        assert not shop.endpoint.is_at_rest
        await asyncio.sleep(SOON)

        assert shop.endpoint.is_at_rest
        assert [FrameKind.ACK] == [frame[4] for frame in shop.link.frames]


# --- test_wall_clock ---
# A clock that jumps forward is not believed for a while; every other one is.


WALL = 1_750_000_000.0


def watched() -> WallClock:
    clock = WallClock()
    clock.look(WALL, 100.0)
    return clock


def test_clock_that_goes_on_is_believed() -> None:
    clock = watched()

    assert [0.0] * 50 == [clock.look(WALL + second, 100.0 + second) for second in range(50)]
    assert clock.is_settled(150.0)


@pytest.mark.parametrize("step", [JUMP_SECONDS - 0.1, -JUMP_SECONDS + 0.1])
def test_correction_is_no_jump(step: float) -> None:
    clock = watched()

    assert 0.0 == clock.look(WALL + 1 + step, 101.0)
    assert clock.is_settled(101.0)


def test_jump_forward_is_believed_when_it_stays() -> None:
    clock = watched()

    assert 86_400.0 == clock.look(WALL + 86_401.0, 101.0)
    assert 0.0 == clock.look(WALL + 86_402.0, 102.0)

    assert not clock.is_settled(101.0 + SETTLE_SECONDS - 0.1)
    assert clock.is_settled(101.0 + SETTLE_SECONDS)


def test_jump_that_is_undone_has_done_no_harm() -> None:
    clock = watched()
    clock.look(WALL + 86_401.0, 101.0)

    assert -86_400.0 == clock.look(WALL + 2.0, 102.0)
    assert clock.is_settled(102.0)


def test_first_look_cannot_tell() -> None:
    clock = WallClock()

    assert 0.0 == clock.look(WALL, 5.0)
    assert clock.is_settled(5.0)
