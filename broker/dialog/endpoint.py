"""
The endpoint of one database: it stores frames that arrive for the database, and sends the messages in it.

The loop decides which messages are sent and when (`dialog.transmitter`). A single writer thread does everything that
touches the store, one batch at a time. Arrivals queue during a batch, so under load many frames share one commit.
Acknowledgements are sent after the commit that made them true, never before. Commits of applications are noticed by
polling a change counter. When the store fails, no frame of the batch is acknowledged: peers send again, and the next
batch probes whether the store works again. Loop-only, except functions named `_in_writer` and `pause_writer`.

The writer is idle until frames wait, an application has committed, messages are to be loaded or maintenance is due.
Then it processes a batch, in a reading and a writing part. After StoreUnavailableError the remaining parts are undone,
and the writer pauses for FAILURE_PAUSE. After any other exception they are undone as well, and the task that
supervision starts in place of this one finds everything again.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

import structlog

from broker.conversation.frames import CONFIRM, NO_NOTE, AckNote, Contact, Place
from broker.dialog.arrivals import GONE, QUEUE_OFF, Confirmations, DelayedAcks, Inbox, RefusedDialogs, UnknownDialogs
from broker.dialog.commit_watch import CommitWatch
from broker.dialog.journal_hooks import ReceiverJournal
from broker.dialog.route_requests import RouteRequester
from broker.dialog.send_queue import RoundTripCounts
from broker.dialog.status import DialogContext
from broker.dialog.transmitter import DialogTuning, Transmitter, path_alternatives
from broker.errors import DemotedError, StoreUnavailableError
from broker.flow import Disposition
from broker.forwarding.entry import Buffer, ForwardingEntry, FrameOrigin
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.latency import Times
from broker.protocol.frame import Header, Rejected
from broker.protocol.layout import KIND_AT, FrameKind
from broker.ratelimit import TokenBucket
from broker.routing.decide import Pass, RoutingFacts, decide
from broker.routing.route import SERVICE_BROKER
from broker.security.session import DialogCredentials
from broker.store.port import AckState, Find, ReceiveResult, WriteBatch, WriteResult
from broker.store.sqlite.transaction import DaemonConnection
from broker.store.sqlite.write_batch import SqliteStore
from broker.store.sqlite.write_lock import WriteWaits
from broker.supervision import SupervisedTask, Supervision, Timer

RIDE_SECONDS = 0.01  # that acknowledgements wait for another commit to share: a lost one costs a resend at most
BATCH_PAUSE = 0.004  # at most, after a batch of several: frames that arrive in the pause share one commit
PAUSE_EACH = 0.0001  # of it for each frame and dialog in that batch: with few of them a pause costs more than a commit
MAINTENANCE_SECONDS = 1.0  # between two scans for what is past its lifetime or has served
FAILURE_PAUSE = 1.0  # seconds of rest after the store failed
REFUSAL_SECONDS = 60.0  # between two log lines about one kind of refused frames, as anybody may send many
INVITATIONS_PER_SECOND = 100  # to acknowledge again, as any peer may send them
JUMP_SECONDS = 5.0  # by which the wall clock moves forward between two batches; less is a correction
SETTLE_SECONDS = 60.0

_ACK = int(FrameKind.ACK)  # an enum's operators are slow
_T = TypeVar("_T")

log = structlog.get_logger(__name__)


class Endpoint:
    """One database at work."""

    def __init__(
        self,
        name: str,
        store: SqliteStore,
        *,
        tuning: DialogTuning,
        forwarder: Forwarder,
        context: DialogContext,
        credentials: DialogCredentials,
        supervision: Supervision,
    ) -> None:
        self.name = name
        self.path = store.path
        self.broker_instance = store.broker_instance  # 16 bytes
        self.delivered: Counter[str] = Counter()  # whole messages by service
        self.dropped: Counter[Disposition] = Counter()  # frames
        self.last_dropped: dict[Disposition, tuple[float, Header | None, str]] = {}  # instant, header, reason
        self.problem = ""  # what the store last failed with, empty while it works
        self.commits = Times()  # how long transactions took
        self._store = store
        self._forwarder = forwarder
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()  # the writer has something to do
        self._acks = DelayedAcks(self._send_acks)
        self.route_requester = RouteRequester(name, self.run_in_writer)
        self.transmitter = Transmitter(
            name,
            tuning,
            forwarder,
            context,
            wake_writer=self._wake.set,
            ask_for_route=self.ask_for_route,
            on_acks_carried=self._acks.on_carried,
            request_status=self.route_requester.status,
            credentials=credentials,
        )
        self._inbox = Inbox()
        self._journal = None if forwarder.ring is None else ReceiverJournal(forwarder.ring)
        self._unknown_dialogs = UnknownDialogs()
        self._refused_dialogs = RefusedDialogs()
        self._confirmations = Confirmations()
        self._refusals: dict[Disposition, TokenBucket] = {}
        self._invited: set[bytes] = set()  # conversations whose acknowledgements are accepted again
        self._invitations = TokenBucket(INVITATIONS_PER_SECOND, INVITATIONS_PER_SECOND, self._loop.time())
        self._on_demoted: Callable[[str], None] | None = None
        self._writer = WriterThread(f"writer {name}")
        self._commit_watch = CommitWatch(str(store.path), self._check_commits)
        self._find = Find.ALL  # what the next batch looks for
        self._is_writing = False
        self._is_calm = True  # the last batch had one frame or dialog at most
        self._received: ReceiveResult | None = None  # of the last batch, until the loop has acted on it
        self._clock = ClockJumpDetector()
        self._maintenance_at = self._pause_until = 0.0
        self._next_timer: float | None = None  # of conversations, UTC seconds
        self._ride = Timer()
        self._supervision = supervision
        self._tasks: list[SupervisedTask] = []
        self._is_closing = False

    # --- life ---

    def fence_by(self, is_role_confirmed: Callable[[], bool], on_demoted: Callable[[str], None]) -> None:
        """
        Send nothing while it is not known that this instance is the principal; called once, before `start`.

        Args:
            is_role_confirmed: Whether that is known now.
            on_demoted: Called when another daemon has taken over the database, or may have; no frame is stored then.
        """
        self.transmitter.is_role_confirmed = is_role_confirmed
        self._on_demoted = on_demoted

    def start(self) -> None:
        """Begin to work."""
        works = {"turns": self._run_writer, "requests": self.route_requester.run}
        self._tasks = [self._supervision.keep(f"{self.name} {what}", work) for what, work in works.items()]
        self._wake.set()

    def quiesce(self) -> None:
        """Send no new messages; arriving frames are stored and acknowledged until `close`."""
        self.transmitter.is_quiesced = True

    @property
    def write_waits(self) -> WriteWaits:
        """How long the writer has waited for the write transactions of applications."""
        return self._store.lock_waits.now()

    @property
    def is_quiet(self) -> bool:
        """Whether all that has arrived is stored and acknowledged."""
        return not (self._inbox or self._is_writing or self._acks.pending)

    async def close(self) -> None:
        """Stop after the batch under way; what is queued stays queued."""
        self._is_closing = True
        await asyncio.gather(*(task.stop() for task in self._tasks))
        self._ride.cancel()
        self._commit_watch.close()
        self._acks.close()
        self.transmitter.close()
        await self._loop.run_in_executor(None, self._writer.shutdown)
        received, self._received = self._received, None
        if self._journal is not None:
            if received is not None and received.headers:  # the loop has not acted on that batch, but it is stored
                self._journal.finish(received.verdicts(), self._loop.time(), received.traced)
            self._journal.close(self._loop.time())
        self._store.close()

    # --- for others ---

    def receive(self, frames: list[bytes], origin: FrameOrigin) -> None:
        """Frames for this database, in the order of arrival; stored with the next batch."""
        is_urgent = False
        sender = origin if isinstance(origin, Transmitter) else None
        for frame in frames:
            is_ack = frame[KIND_AT] == _ACK
            is_urgent |= not is_ack
            inside = None if sender is None else sender.sealed_later(frame)
            if not self._inbox.put(frame, origin, inside, is_ack=is_ack):
                self.dropped[Disposition.STORE_BUSY] += 1
                if self._journal is not None:
                    self._journal.refuse(frame, Disposition.STORE_BUSY, self._loop.time())
                origin.reject(frame, Disposition.STORE_BUSY)
            elif self._journal is not None:
                self._journal.on_received(frame, is_ack=is_ack)
        if is_urgent:
            self._wake.set()
        elif self._ride.due is None:
            self._ride.after(RIDE_SECONDS, self._on_ride_over)

    def on_rejected(self, rejected: Rejected, link: object, peer: str) -> None:
        """
        A next hop refused a frame of this database, or accepts now what it refused before (`code` 0).

        The latter may have been an acknowledgement, which is made again: nothing else repeats it before the far side
        sends again, as much as a minute later. `peer` names the next hop for people.
        """
        self.transmitter.on_rejected(rejected, link, peer)
        if not rejected.code and rejected.retry_after_ms and self._invitations.allow(self._loop.time()):
            self._invited.add(rejected.conversation)
            self._wake.set()

    def ask_for_route(self, facts: RoutingFacts) -> bool:
        """As `AskForRoute`, for a dialog with these facts: the table of the database says which peer to ask."""
        passes: list[Pass] = []
        decide(facts, self._forwarder.routing_context.with_table(self.transmitter.table), passes)
        if len(passes) == 1:
            return self.route_requester.ask(facts)
        # Its route leads back to this instance, whose instance table has none either (R3.9).
        return self._forwarder.ask_for_route(facts)

    async def run_in_writer(self, work: Callable[[DaemonConnection], _T]) -> _T:
        """
        Do something with the database between two batches, in the writer thread.

        Raises:
            StoreUnavailableError: what would be committed now would not be found again.
        """
        try:
            return await self._loop.run_in_executor(self._writer, lambda: work(self._store.catalog_connection()))
        finally:
            self._check_commits()  # it may have sent something

    @contextmanager
    def pause_writer(self) -> Iterator[DaemonConnection]:
        """
        The connection, while the writer thread waits; for another thread than the loop's.

        Giving it back needs nothing of the loop, so that works even when the loop has ended.

        Raises:
            StoreUnavailableError: what would be committed now would not be found again.
        """
        is_waiting, may_go_on = threading.Event(), threading.Event()

        def wait_in_writer() -> None:
            is_waiting.set()
            may_go_on.wait()

        self._writer.submit(wait_in_writer)
        is_waiting.wait()
        try:
            yield self._store.catalog_connection()
        finally:
            may_go_on.set()

    # --- batches of the writer thread ---

    def _check_commits(self) -> None:
        self._find = max(self._find, Find.NEW)
        self._wake.set()

    def _on_ride_over(self) -> None:
        """Acknowledgements found no commit to share."""
        if self._inbox:
            self._wake.set()

    async def _run_writer(self) -> None:
        while True:
            await self._wake.wait()
            if (pause := self._pause_until - self._loop.time()) > 0.0:
                await asyncio.sleep(pause)
            self._wake.clear()
            self._is_writing = True
            batch = self._next_batch()
            self._commit_watch.begin(is_writing=batch.writes)
            remaining = batch.parts()
            try:
                count = await self._write_parts(remaining)
            except BaseException:
                if not self._is_closing:  # a bug, or cancelled from outside: it is not known what was stored
                    self._undo(remaining)
                    self._find = Find.ALL
                raise
            self._is_writing = False
            if self._inbox:  # more than one batch stores
                self._wake.set()
            timer = 0.0 if self._next_timer is None else self._next_timer - time.time()
            longest = timer if timer > 0.0 else math.inf  # one that is due waits for a clock that has jumped
            self._commit_watch.end(has_found=count > 0, had_work=count > 0 or bool(batch.frames), longest=longest)
            self._is_calm = count <= 1
            if not self._is_calm:
                self._pause_until = self._loop.time() + min(BATCH_PAUSE, PAUSE_EACH * count)

    def _next_batch(self) -> WriteBatch:
        now, wall = self._loop.time(), time.time()
        jump = self._clock.observe(wall, now)
        if jump:
            log.warning("wall clock has jumped", database=self.name, seconds=round(jump, 1))
            self._find = Find.ALL  # a clock that was ahead has hidden messages whose lifetime seemed to be over
        is_timer_due = self._next_timer is not None and wall >= self._next_timer
        is_maintenance_due = (now >= self._maintenance_at or is_timer_due) and self._clock.is_settled(now)
        if is_maintenance_due:
            self._maintenance_at = now + MAINTENANCE_SECONDS
        waiting, transmitter = self._inbox.pop_batch(), self.transmitter
        batch = WriteBatch(
            now=wall,
            frames=waiting.frames,
            origins=waiting.origins,
            inside=waiting.inside,
            find=self._find,
            is_hinted=self._commit_watch.is_hinted and self._is_calm and not waiting.frames,
            load=transmitter.budget.requests(),  # before the next line: it may evict
            load_max_bytes=transmitter.budget.max_bytes,
            request_for=transmitter.request_for,
            is_maintenance_due=is_maintenance_due,
            is_probe=bool(self.problem),
            statuses=transmitter.statuses.due(now),
            faults=transmitter.faults,
            off=self._refused_dialogs.services if is_maintenance_due else (),
            acknowledge=self._invited,
        )
        self._find, transmitter.faults, self._invited = Find.NOTHING, {}, set()
        if self._journal is not None:
            self._journal.begin(len(waiting.frames) - waiting.acks, waiting.acks)
        return batch

    async def _write_parts(self, parts: list[WriteBatch]) -> int:
        """Write these parts, removing each that is done; returns how many frames and dialogs were in them."""
        count = 0
        while parts:
            try:
                result = await self._loop.run_in_executor(self._writer, self._write_in_writer, parts[0])
            except StoreUnavailableError as error:
                if isinstance(error, DemotedError) and self._on_demoted is not None:
                    self._on_demoted(error.problem)
                    self.problem = error.problem  # not a failure of the store: the keeper of the role logs it
                await self._retry_later(parts, error.problem)
                break
            if self.problem:
                self.problem = ""
                log.info("store works again", database=self.name)
            count += len(parts[0].frames) + len(result.found)
            self._apply(result)
            del parts[0]
        return count

    def _write_in_writer(self, batch: WriteBatch) -> WriteResult:
        self._received = None
        result = self._store.write_in_writer(batch)
        self._received = result.received
        return result

    def _apply(self, result: WriteResult) -> None:
        """Send what was found and loaded, answer what was stored."""
        for found in result.found:
            self.transmitter.on_found(found)
        if result.is_all_found:
            self.transmitter.keep({found.endpoint_id for found in result.found})
        for loaded in result.loaded:
            self.transmitter.on_loaded(loaded)
        self.transmitter.budget.requeue(result.postponed)
        for endpoint_id in result.finished:
            self.transmitter.finish(endpoint_id)
        self._next_timer = result.next_timer
        if result.has_more_maintenance:
            self._maintenance_at = 0.0
            self._wake.set()
        if result.commit_seconds is not None:
            self.commits.observe(result.commit_seconds, 1)
            self._apply_received(result.received)
        if result.unconfirmed:
            self._send_acks(self._confirmations.due(result.unconfirmed, self._loop.time()))
        if result.acknowledged_again:
            self._send_acks(result.acknowledged_again)
        for service in result.on_again:
            self._acknowledge_places(self._refused_dialogs.pop(service))

    def _apply_received(self, received: ReceiveResult) -> None:
        """Act on what arrivals led to, and acknowledge what is stored."""
        transmitter, builder, now = self.transmitter, self.transmitter.frames, self._loop.time()
        self._received = None
        if self._journal is not None and received.headers:
            self._journal.finish(received.verdicts(), now, received.traced)
        self.delivered += received.delivered
        self.dropped += received.dropped
        self._log_refusals(received.refusals, now)
        self.last_dropped |= {
            disposition: (now, header, received.refusals.get(disposition, ""))
            for disposition, header in received.last_dropped.items()
        }
        if received.delivered[SERVICE_BROKER]:
            self.route_requester.on_arrived()
        for (conversation_id, is_initiator), evidence in received.keys.items():
            builder.on_key_evidence(conversation_id, evidence, is_initiator=is_initiator)
        for endpoint_id, contact in received.contacts.items():
            transmitter.bind(endpoint_id, contact)
        for endpoint_id, place in received.acknowledged.items():
            transmitter.on_acknowledged(endpoint_id, place, received.held_there.get(endpoint_id, ()))
        for endpoint_id, said in received.said.items():
            transmitter.on_said(endpoint_id, said)
        for endpoint_id, state in received.stored.items():
            transmitter.on_stored(endpoint_id, state.place)
        self._acks.on_stored(received.stored)
        self._acknowledge_places(received.closed)
        for contact, place in received.refused:
            self._refused_dialogs.add(contact, place)
        self._acknowledge_places(received.refused, QUEUE_OFF)
        frames: list[tuple[ForwardingEntry, Buffer | None]] = []
        for contact, is_certain in received.unknown_dialogs:
            if self._unknown_dialogs.may_answer(contact, now, is_certain=is_certain):
                received.faults.append((contact, GONE))
        # These are not sent again by themselves, and the best address may lead to another target: a copy to each.
        for contact, place in received.asked:
            frames += [(entry, builder.ack(contact, entry, place)) for entry in self._paths(contact, FrameKind.ACK)]
        for contact, fault in received.faults:
            frames += [(entry, builder.fault(contact, entry, fault)) for entry in self._paths(contact, FrameKind.FAULT)]
        for endpoint_id in received.finished:
            transmitter.finish(endpoint_id)
        self._submit(frames, now)

    def _log_refusals(self, refusals: Mapping[Disposition, str], now: float) -> None:
        for disposition, reason in refusals.items():
            bucket = self._refusals.setdefault(disposition, TokenBucket(1 / REFUSAL_SECONDS, 1, now))
            if bucket.allow(now):
                number, kind = disposition.number, str(disposition)
                log.warning("frame refused", database=self.name, number=number, kind=kind, reason=reason)

    def _send_acks(self, stored: Mapping[int, AckState]) -> None:
        """Acknowledge what is stored here, by a separate frame to each far side."""
        frames: list[tuple[ForwardingEntry, Buffer | None]] = []
        for endpoint_id, state in stored.items():
            entry, _ = self.transmitter.path_for(endpoint_id, state.contact, FrameKind.ACK)
            note = CONFIRM if state.is_confirmation_wanted else NO_NOTE
            ack = self.transmitter.frames.ack(
                state.contact, entry, state.place, state.held, is_urgent=state.is_urgent, note=note
            )
            frames.append((entry, ack))
        self._submit(frames, self._loop.time())

    def _acknowledge_places(self, places: list[tuple[Contact, Place]], note: AckNote = NO_NOTE) -> None:
        """Acknowledge everything before a place of each of these dialogs, of which no side may be here."""
        frames: list[tuple[ForwardingEntry, Buffer | None]] = []
        for contact, place in places:
            entry = self._forwarder.table.entry_for(self.transmitter.decide(contact), FrameKind.ACK)
            frames.append((entry, self.transmitter.frames.ack(contact, entry, place, note=note)))
        self._submit(frames, self._loop.time())

    def _paths(self, contact: Contact, kind: FrameKind) -> list[ForwardingEntry]:
        """All paths to the far side of a dialog."""
        decisions = path_alternatives(self.transmitter.decide(contact))
        return [self._forwarder.table.entry_for(decision, kind) for decision in decisions]

    def _submit(self, frames: list[tuple[ForwardingEntry, Buffer | None]], now: float) -> None:
        """Send those that could be made, unless another instance may be the principal by now."""
        made = [(entry, frame) for entry, frame in frames if frame is not None]
        if made and self.transmitter.may_send:
            self._forwarder.submit(made, now, self.transmitter)

    async def _retry_later(self, parts: list[WriteBatch], problem: str) -> None:
        """The store failed: nothing was stored, so nothing is acknowledged and all of it is sent again."""
        if problem != self.problem:  # logged once, however long it lasts
            frames = sum([len(part.frames) for part in parts])
            log.error("store failed", database=self.name, reason=problem, frames=frames)
        self.problem = problem
        self._undo(parts)
        await asyncio.sleep(FAILURE_PAUSE)

    def _undo(self, parts: list[WriteBatch]) -> None:
        """Do what these parts were for again; their frames are dropped, and peers send them again."""
        self.dropped[Disposition.STORE_FAILED] += sum([len(part.frames) for part in parts])
        if self._journal is not None:
            self._journal.drop(Disposition.STORE_FAILED, self._loop.time())
        self._find = max(self._find, Find.NEW, *(part.find for part in parts))
        for part in parts:
            self.transmitter.budget.requeue(part.load)
            self.transmitter.statuses.mark_unwritten(part.statuses)
            self.transmitter.faults |= part.faults
        parts.clear()
        self._wake.set()


class WriterThread(Executor):
    """One thread that makes calls for this loop, in order: each costs a third of what a `ThreadPoolExecutor` takes."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls = SimpleQueue[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]] | None]()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[..., Any], /, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Make a call, after those before it; for any thread. The future is one of the loop."""
        future = self._loop.create_future()
        self._calls.put((future, call, args))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """End after the calls so far, and wait for that."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while work := self._calls.get():
            future, call, args = work
            try:
                give, result = future.set_result, call(*args)
            except BaseException as error:  # noqa: BLE001 - for the caller
                give, result = future.set_exception, error
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(_give, future, give, result)
            del future, call, args, give, result, work  # nothing is kept while this waits


def _give(future: asyncio.Future[Any], give: Callable[[Any], None], result: Any) -> None:
    if not future.done():  # the caller was cancelled
        give(result)


class ClockJumpDetector:
    """
    Whether the wall clock is to be trusted.

    Lifetimes, timers and tombstones are instants of the wall clock, because they outlive the process. A clock that
    jumps forward would end them all at once, and many such jumps are undone a moment later: a wrong time server, a
    typing error. So nothing expires for SETTLE_SECONDS after a jump forward. A jump that lasts is the truth from then
    on; one that is undone has done no harm.
    """

    def __init__(self) -> None:
        self._offset: float | None = None
        self._settled_at = 0.0

    def observe(self, wall: float, now: float) -> float:
        """Both clocks now; returns the seconds by which the wall clock has jumped since the last call, or 0."""
        offset = wall - now
        jump = 0.0 if self._offset is None else offset - self._offset
        self._offset = offset
        if abs(jump) < JUMP_SECONDS:
            return 0.0
        self._settled_at = now + SETTLE_SECONDS if jump > 0 else now
        return jump

    def is_settled(self, now: float) -> bool:
        """Whether the wall clock may end something."""
        return now >= self._settled_at


@dataclass(slots=True)
class EndpointTotals:
    """The final counts of closed databases, added to those of open ones so that no sum over all databases shrinks."""

    received: Counter[int] = field(default_factory=Counter)
    delivered: Counter[str] = field(default_factory=Counter)
    dropped: Counter[Disposition] = field(default_factory=Counter)
    resent_to: Counter[str] = field(default_factory=Counter)
    round_trips: RoundTripCounts = field(default_factory=Counter)

    def add(self, endpoint: Endpoint) -> None:
        """Add what a database has counted."""
        self.received += endpoint.transmitter.received
        self.delivered += endpoint.delivered
        self.dropped += endpoint.dropped
        self.resent_to += endpoint.transmitter.resent_to
        self.round_trips += endpoint.transmitter.round_trips
