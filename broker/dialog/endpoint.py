"""
The conversations of one database, from the daemon's side.

The loop decides what is sent when (`transmitter`); a single writer thread does everything that touches the file, one
*turn* at a time (`turn`); while a turn runs, arrivals collect for the next one. Acknowledgements leave after the commit
that made them true. Applications are noticed by SQLite's `data_version`, which changes with every commit of theirs:
polling is the truth, and cheap.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import structlog

from broker.dialog.arrivals import GONE, Acknowledging, Inbox, Refusals, Strangers
from broker.dialog.journal_hooks import Verdicts
from broker.dialog.route_requests import Inquirer
from broker.dialog.send_queue import Trips
from broker.dialog.transmitter import DialogTuning, Transmitter, alternatives
from broker.errors import DemotedError, StoreUnavailableError
from broker.flow import Disposition
from broker.forwarding.entry import Buffer, ForwardingEntry, FrameOrigin
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.latency import Times
from broker.protocol.frame import Header
from broker.protocol.layout import KIND_AT, FrameKind
from broker.routing.decide import Pass, RoutingFacts, decide
from broker.routing.route import SERVICE_BROKER
from broker.security.session import DialogCredentials
from broker.store.port import AckState, Find, ReceiveResult, Store, WriteBatch, WriteResult
from broker.store.sqlite.transaction import DaemonConnection
from broker.supervision import SupervisedTask, Supervision

# --- borrowing ---
# The connection of a database, used by others between two turns of its writer thread: in that thread, or lent.


_T = TypeVar("_T")


def checked(store: Store, work: Callable[[DaemonConnection], _T]) -> Callable[[], _T]:
    """The work, for the writer thread; raises StoreUnavailableError when what it commits would not be found again."""

    def do_in_writer() -> _T:
        return work(store.catalog_connection())

    return do_in_writer


@contextmanager
def borrowed(store: Store, writer: Executor) -> Iterator[DaemonConnection]:
    """
    The connection, while the one thread of `writer` stands still; for another thread than the loop's.

    Whoever has it needs nothing of the loop to give it back, so it is given back even when the loop has ended.

    Raises:
        StoreUnavailableError: what would be committed now would not be found again.
    """
    stands, may_go = threading.Event(), threading.Event()

    def stand_still() -> None:
        stands.set()
        may_go.wait()

    writer.submit(stand_still)
    stands.wait()
    try:
        yield store.catalog_connection()
    finally:
        may_go.set()


# --- wall_clock ---
# Whether the wall clock can be believed.
#
# Lifetimes, timers and tombstones are instants of the wall clock, for they outlive the process. A clock that jumps
# forward would end them all at once, and many such jumps are undone a moment later: a wrong time server, a typing
# error.
# So after a jump nothing is ended for a minute. A jump that stays is the truth from then on; one that goes back has
# done
# no harm. Delays inside the process use the monotonic clock and do not care.


JUMP_SECONDS = 5.0  # forward between two looks; less is a correction
SETTLE_SECONDS = 60.0


class WallClock:
    """How the wall clock goes beside the monotonic one. Changed by `look` only."""

    def __init__(self) -> None:
        self._offset: float | None = None
        self._settled_at = 0.0

    def look(self, wall: float, now: float) -> float:
        """Both clocks now; seconds by which the wall clock has jumped since the last look, 0 when it has not."""
        offset = wall - now
        jump = 0.0 if self._offset is None else offset - self._offset
        self._offset = offset
        if abs(jump) < JUMP_SECONDS:
            return 0.0
        self._settled_at = now + SETTLE_SECONDS if jump > 0 else now
        return jump

    def is_settled(self, now: float) -> bool:
        """Whether what the wall clock says may end something."""
        return now >= self._settled_at


POLL_SECONDS = (0.002, 0.02)  # between two looks at data_version: right after a change, and at most
RIDE_SECONDS = 0.01  # that acknowledgements wait for another commit to share: one that is lost costs a resend at most
TURN_SECONDS = 0.004  # behind a turn with work for several: what comes meanwhile shares one commit, and costs the less
KEEP_SECONDS = 1.0  # between two looks for what is past its lifetime or has served
FAILURE_PAUSE = 1.0  # seconds of rest after the store failed

_ACK = int(FrameKind.ACK)  # an enum's operators are slow

log = structlog.get_logger(__name__)


class Endpoint:
    """
    One database at work. Loop-only, but for what its writer thread does.

    Shape: `broker_instance` 16 bytes; `delivered` whole messages by service, `dropped` frames by disposition since the
    start; `commits` how long transactions took; `problem` what the store last failed with, empty while it works;
    `on_demoted` is told when another daemon has taken the database over, or may have, and nothing is stored any more.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        store: Store,
        *,
        settings: DialogTuning,
        forwarder: Forwarder,
        credentials: DialogCredentials | None = None,
        supervision: Supervision | None = None,
    ) -> None:
        self.name = name
        self.path = path
        self.broker_instance = store.broker_instance
        self._acknowledging = Acknowledging(self._acknowledge)
        self.credentials = credentials or DialogCredentials()
        told, own = self._acknowledging.on_told, self.credentials
        self.transmitter = Transmitter(settings, forwarder, self._wake_up, ask=self.ask, on_told=told, credentials=own)
        self.inquirer = Inquirer(name, self.in_writer)
        self.transmitter.asked, self.transmitter.database = self.inquirer.status, name
        self.delivered: Counter[str] = Counter()
        self.dropped: Counter[Disposition] = Counter()
        self.last_dropped: dict[Disposition, tuple[float, Header | None]] = {}
        self.problem = ""
        self.commits = Times()
        self.on_demoted: Callable[[str], None] | None = None
        self._store = store
        self._forwarder = forwarder
        self._loop = asyncio.get_running_loop()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"writer {name}")
        self._wake = asyncio.Event()
        self._inbox = Inbox()
        self._refusals = Refusals(name)
        self._find = Find.ALL  # what the next batch looks for
        self._is_turning = False
        self._verdicts = None if forwarder.ring is None else Verdicts(forwarder.ring)
        self._receipt: ReceiveResult | None = None  # of the last turn, unless that failed
        self._strangers = Strangers()
        self._clock = WallClock()
        self._keep_at = 0.0
        self._turn_at = 0.0
        self._ride: asyncio.TimerHandle | None = None
        self._next_timer: float | None = None
        self._supervision = supervision or Supervision()
        self._tasks: list[SupervisedTask] = []
        self._is_closing = False

    def start(self) -> None:
        """Begin to work."""
        works = {"turns": self._work, "poll": self._poll, "requests": self.inquirer.run}
        self._tasks = [self._supervision.keep(f"{self.name} {what}", work) for what, work in works.items()]
        self._wake_up()

    def rest(self) -> None:
        """Send nothing of its own any more; what comes is stored and acknowledged until `close`."""
        self.transmitter.is_resting = True

    @property
    def is_at_rest(self) -> bool:
        """Whether all that has come is stored and acknowledged."""
        return not (self._inbox or self._is_turning or self._acknowledging.pending)

    async def close(self) -> None:
        """Stop behind the turn under way; what is queued stays queued."""
        self._is_closing = True
        await asyncio.gather(*(task.stop() for task in self._tasks))
        if self._ride is not None:
            self._ride.cancel()
        self._acknowledging.close()
        self.transmitter.close()
        await self._loop.run_in_executor(None, self._writer.shutdown)
        receipt, self._receipt = self._receipt, None
        if self._verdicts is not None:
            if receipt is not None and receipt.headers:  # nobody waits for that turn any more, but it has stored them
                self._verdicts.judge(receipt.verdicts(), self._loop.time(), receipt.traced)
            self._verdicts.close(self._loop.time())
        self._store.close()

    async def in_writer(self, work: Callable[[DaemonConnection], _T]) -> _T:
        """Do something with the database between two turns, in the writer thread; for requests for routes."""
        return await self._loop.run_in_executor(self._writer, checked(self._store, work))

    def borrow(self) -> AbstractContextManager[DaemonConnection]:
        """The connection, while the writer thread stands still; for another thread than the loop's: see `borrowed`."""
        return borrowed(self._store, self._writer)

    def arrive(self, frames: list[bytes], origin: FrameOrigin) -> None:
        """Frames for this database, in the order of arrival; stored in the next turn."""
        is_urgent = False
        sender = origin if isinstance(origin, Transmitter) else None
        verdicts = self._verdicts
        for frame in frames:
            is_ack = frame[KIND_AT] == _ACK
            is_urgent |= not is_ack
            inside = None if sender is None else sender.sealed_later(frame)
            if not self._inbox.put(frame, origin, inside, is_ack=is_ack):
                self.dropped[Disposition.STORE_BUSY] += 1
                if verdicts is not None:
                    verdicts.refuse(frame, Disposition.STORE_BUSY, self._loop.time())
                origin.reject(frame, Disposition.STORE_BUSY)
            elif verdicts is not None:
                verdicts.expect(frame, is_ack=is_ack)
        if is_urgent:
            self._wake_up()
        elif self._ride is None:
            self._ride = self._loop.call_later(RIDE_SECONDS, self._on_ride)

    def ask(self, facts: RoutingFacts) -> None:
        """What has these facts has no route, and its table says whom to ask for one (R2.4)."""
        passes: list[Pass] = []
        decide(facts, self._forwarder.here.with_table(self.transmitter.table), passes)
        if len(passes) == 1:
            self.inquirer.ask(facts.to_service, facts.to_broker_instance)
        else:  # its route leads back to this very instance, whose own table did not know on (R3.9)
            self._forwarder.ask(facts)

    def _on_ride(self) -> None:
        """Acknowledgements found nothing to share a commit with."""
        self._ride = None
        if self._inbox:
            self._wake_up()

    def _wake_up(self) -> None:
        self._wake.set()

    # --- turns of the writer thread ---

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(max(0.0, self._turn_at - self._loop.time()))
            self._wake.clear()
            self._is_turning = True
            left = self._next_turn().parts()
            try:
                done = await self._do(left)
            except BaseException:
                if not self._is_closing:  # a bug, or somebody's doing: nobody knows what became of it
                    self._undo(left)
                    self._find = Find.ALL
                raise
            self._is_turning = False
            if self._inbox:  # more than one turn stores
                self._wake_up()
            if done > 1:
                self._turn_at = self._loop.time() + TURN_SECONDS

    async def _do(self, left: list[WriteBatch]) -> int:
        """Do these turns, and take each away that is done; how much was in them."""
        done = 0
        while left:
            try:
                result = await self._loop.run_in_executor(self._writer, self._turn_in_writer, left[0])
            except StoreUnavailableError as error:
                if isinstance(error, DemotedError) and self.on_demoted is not None:
                    self.on_demoted(error.problem)
                    self.problem = error.problem  # no failure of the store: whoever heard it tells it
                await self._rest(left, error.problem)
                break
            if self.problem:
                self.problem = ""
                log.info("store works again", database=self.name)
            done += len(left[0].frames) + len(result.found)
            self._note(result)
            del left[0]
        return done

    def _turn_in_writer(self, turn: WriteBatch) -> WriteResult:
        self._receipt = None
        result = self._store.write_in_writer(turn)
        self._receipt = result.received
        return result

    def _note(self, result: WriteResult) -> None:
        """After a turn: what was found and loaded is sent, what was stored is answered."""
        if result.commit_seconds is not None:
            self.commits.observe(result.commit_seconds, 1)
        for found in result.found:
            self.transmitter.found(found)
        for loaded in result.loaded:
            self.transmitter.loaded(loaded)
        self.transmitter.unwanted(result.postponed)
        for endpoint_id in result.finished:
            self.transmitter.finish(endpoint_id)
        self._next_timer = result.next_timer
        if result.has_more_maintenance:
            self._keep_at = 0.0
            self._wake_up()
        self._answer(result.received)

    def _next_turn(self) -> WriteBatch:
        now, wall = self._loop.time(), time.time()
        jump = self._clock.look(wall, now)
        if jump:
            log.warning("wall clock has jumped", database=self.name, seconds=round(jump, 1))
        is_time_to_keep = self._is_time_to_keep(now, wall) and self._clock.is_settled(now)
        if is_time_to_keep:
            self._keep_at = now + KEEP_SECONDS
        waiting = self._inbox.take()
        turn = WriteBatch(
            now=wall,
            frames=waiting.frames,
            origins=waiting.origins,
            inside=waiting.inside,
            find=self._find,
            load=self.transmitter.wants(),  # before the next line: it may make room
            load_max_bytes=self.transmitter.load_max_bytes,
            known=self.transmitter.senders,
            first_frames=self.transmitter.settings.first_frames,
            is_maintenance_due=is_time_to_keep,
            is_probe=bool(self.problem),
            statuses=self.transmitter.statuses(),
            faults=self.transmitter.faults,
        )
        self._find, self.transmitter.faults = Find.NOTHING, {}
        if self._verdicts is not None:
            self._verdicts.begin(len(waiting.frames) - waiting.acks, waiting.acks)
        return turn

    async def _rest(self, turns: list[WriteBatch], problem: str) -> None:
        """The store failed: nothing was stored, so nothing is acknowledged and all of it comes again."""
        frames = sum([len(turn.frames) for turn in turns])
        if problem != self.problem:  # told once, however long it lasts
            log.error("store failed", database=self.name, reason=problem, frames=frames)
        self.problem = problem
        self._undo(turns)
        await asyncio.sleep(FAILURE_PAUSE)

    def _undo(self, turns: list[WriteBatch]) -> None:
        """What these turns were for has to be done again; what they brought comes again."""
        self.dropped[Disposition.STORE_FAILED] += sum([len(turn.frames) for turn in turns])
        if self._verdicts is not None:
            self._verdicts.drop(Disposition.STORE_FAILED, self._loop.time())
        self._find = max(self._find, Find.NEW, *(turn.find for turn in turns))
        for turn in turns:
            self.transmitter.unwanted(turn.load)
            self.transmitter.untold(turn.statuses)
            self.transmitter.faults |= turn.faults
        turns.clear()
        self._wake_up()

    def _answer(self, receipt: ReceiveResult) -> None:
        """After the commit: note what the far sides have, and tell them what is stored here."""
        transmitter, framing = self.transmitter, self.transmitter.framing
        self._receipt = None
        if self._verdicts is not None and receipt.headers:
            self._verdicts.judge(receipt.verdicts(), self._loop.time(), receipt.traced)
        self.delivered += receipt.delivered
        self.dropped += receipt.dropped
        self._refusals.tell(receipt.refusals, self._loop.time())
        self.last_dropped |= {what: (self._loop.time(), header) for what, header in receipt.last_dropped.items()}
        if receipt.delivered[SERVICE_BROKER]:
            self.inquirer.look()
        for (conversation_id, is_initiator), heard in receipt.keys.items():
            framing.heard(conversation_id, heard, is_initiator=is_initiator)
        for endpoint_id, contact in receipt.contacts.items():
            transmitter.bind(endpoint_id, contact)
        for endpoint_id, place in receipt.acknowledged.items():
            transmitter.acknowledge(endpoint_id, place, receipt.held_there.get(endpoint_id, ()))
        for endpoint_id, standing in receipt.stored.items():
            transmitter.stored(endpoint_id, standing.place)
        self._acknowledging.note(receipt.stored)
        now = self._loop.time()
        frames: list[tuple[ForwardingEntry, Buffer | None]] = []
        for contact, place in receipt.closed:
            way = self._forwarder.way_for(transmitter.decide(contact), FrameKind.ACK)
            frames.append((way, framing.ack(contact, way, place)))
        for contact, is_certain in receipt.unknown_dialogs:
            if self._strangers.may_tell(contact, now, is_certain=is_certain):
                receipt.faults.append((contact, GONE))
        for contact, fault in receipt.faults:
            # Nobody sends it again, and the best address may lead to another target: a copy to each.
            ways = [self._forwarder.way_for(one, FrameKind.FAULT) for one in alternatives(transmitter.decide(contact))]
            frames += [(way, framing.fault(contact, way, fault)) for way in ways]
        for endpoint_id in receipt.finished:
            transmitter.finish(endpoint_id)
        self._submit(frames, now)

    def _acknowledge(self, stored: Mapping[int, AckState]) -> None:
        """Tell far sides what is stored here, by a frame of its own each."""
        transmitter = self.transmitter
        frames: list[tuple[ForwardingEntry, Buffer | None]] = []
        for endpoint_id, standing in stored.items():
            way, _ = transmitter.way(endpoint_id, standing.contact, FrameKind.ACK)
            contact, place, held, is_urgent = standing.contact, standing.place, standing.held, standing.is_urgent
            frames.append((way, transmitter.framing.ack(contact, way, place, held, is_urgent=is_urgent)))
        self._submit(frames, self._loop.time())

    def _submit(self, frames: list[tuple[ForwardingEntry, Buffer | None]], now: float) -> None:
        """Send those that could be made, unless somebody else may be the principal by now."""
        made = [(way, frame) for way, frame in frames if frame is not None]
        if made and self.transmitter.is_confirmed():
            self._forwarder.submit(made, now, self.transmitter)

    def _is_time_to_keep(self, now: float, wall: float) -> bool:
        return now >= self._keep_at or (self._next_timer is not None and wall >= self._next_timer)

    # --- applications ---

    async def _poll(self) -> None:
        """Notice commits of other connections; look often while there are some."""
        shortest, longest = POLL_SECONDS
        pause = longest
        version: int | None = None
        while True:
            await asyncio.sleep(pause)
            now = self._version()
            if now is None or now != version:
                version = now
                self._find = max(self._find, Find.NEW)
                pause = shortest if now is not None else FAILURE_PAUSE
                self._wake_up()
            else:
                pause = min(longest, pause * 1.3)
                if self._is_time_to_keep(self._loop.time(), time.time()):
                    self._wake_up()

    def _version(self) -> int | None:
        """What every commit of another connection changes; None while it cannot be read, so that the writer looks."""
        try:
            return self._store.change_count()
        except StoreUnavailableError as error:
            log.warning("watch failed", database=self.name, reason=error.problem)
            return None


# --- past ---
# Part of `broker.daemon.databases`.


@dataclass(slots=True)
class EndpointTotals:
    """What databases counted that are not here any more; so no sum over all of them ever shrinks."""

    received: Counter[int] = field(default_factory=Counter)
    delivered: Counter[str] = field(default_factory=Counter)
    dropped: Counter[Disposition] = field(default_factory=Counter)
    resent_to: Counter[str] = field(default_factory=Counter)
    round_trips: Trips = field(default_factory=Counter)

    def add(self, endpoint: Endpoint) -> None:
        """What one that goes has counted."""
        self.received += endpoint.transmitter.received
        self.delivered += endpoint.delivered
        self.dropped += endpoint.dropped
        self.resent_to += endpoint.transmitter.resent_to
        self.round_trips += endpoint.transmitter.round_trips
