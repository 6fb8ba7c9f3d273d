"""
The conversations of one database, from the daemon's side.

The loop decides what is sent when (`transmitter`); a single writer thread does everything that touches the file, one
*turn* at a time (`turn`); while a turn runs, arrivals collect for the next one. Acknowledgements leave after the commit
that made them true. Applications are noticed by SQLite's `data_version`, which changes with every commit of theirs:
polling is the truth, and cheap.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import structlog

from broker.dialog.contact import ack_frame, fault_frame
from broker.dialog.detour import alternatives
from broker.dialog.inquirer import Inquirer
from broker.dialog.receiving import Receipt
from broker.dialog.store import broker_instance, open_watch, settle_fragment_size
from broker.dialog.transmitter import DialogSettings, Transmitter
from broker.dialog.turn import Turn, turn_in_writer
from broker.flow import Disposition
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.way import Buffer, Origin, Way
from broker.routing.decide import Pass, decide
from broker.routing.facts import Facts
from broker.routing.route import SERVICE_BROKER
from broker.wire.layout import Kind

INBOX_MAX_BYTES = 16 * 1024 * 1024  # arrivals that wait for the writer; past it they are dropped and come again
POLL_SECONDS = (0.002, 0.02)  # between two looks at data_version: right after a change, and at most
EXPIRE_SECONDS = 1.0  # between two looks for dialogs past their lifetime
FAILURE_PAUSE = 1.0  # seconds of rest after the store failed

log = structlog.get_logger(__name__)
_T = TypeVar("_T")


class Endpoint:
    """
    One database at work. Loop-only, but for what its writer thread does.

    Shape: `broker_instance` 16 bytes; `delivered` whole messages by service, `dropped` frames by disposition since the
    start; `problem` what the store last failed with, empty while it works.
    """

    def __init__(
        self, name: str, path: Path, db: sqlite3.Connection, *, settings: DialogSettings, forwarder: Forwarder
    ) -> None:
        self.name = name
        self.path = path
        self.broker_instance = broker_instance(db)
        self.transmitter = Transmitter(settings, forwarder, self._wake_up, ask=self.ask)
        self.inquirer = Inquirer(name, self.in_writer)
        self.delivered: Counter[str] = Counter()
        self.dropped: Counter[Disposition] = Counter()
        self.problem = ""
        self._db = db
        self._watch = open_watch(path)
        self._travel = settings.travel
        self._fragment_size = settle_fragment_size(db, settings.fragment_size)
        self._forwarder = forwarder
        self._loop = asyncio.get_running_loop()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"writer {name}")
        self._wake = asyncio.Event()
        self._inbox: list[bytes] = []
        self._inbox_bytes = 0
        self._found_up_to = 0
        self._has_news = True
        self._expire_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to work."""
        self._tasks = [
            self._loop.create_task(self._work(), name=f"{self.name} turns"),
            self._loop.create_task(self._poll(), name=f"{self.name} poll"),
            self._loop.create_task(self.inquirer.run(), name=f"{self.name} requests"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._on_end)
        self._wake_up()

    async def close(self) -> None:
        """Stop behind the turn under way; what is queued stays queued."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.transmitter.close()
        await self._loop.run_in_executor(None, self._writer.shutdown)
        self._watch.close()
        self._db.close()

    async def in_writer(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Do something with the database between two turns, in the writer thread; for catalog changes."""
        return await self._loop.run_in_executor(self._writer, work, self._db)

    @contextmanager
    def borrow(self) -> Iterator[sqlite3.Connection]:
        """
        The connection, while the writer thread stands still between two turns; for another thread than the loop's.

        Whoever has it needs nothing of the loop to give it back, so it is given back even when the loop has ended.
        """
        stands, may_go = threading.Event(), threading.Event()

        def stand_still() -> None:
            stands.set()
            may_go.wait()

        self._writer.submit(stand_still)
        stands.wait()
        try:
            yield self._db
        finally:
            may_go.set()

    def arrive(self, frames: list[bytes], origin: Origin) -> None:
        """Frames for this database, in the order of arrival; stored in the next turn."""
        for frame in frames:
            if self._inbox_bytes >= INBOX_MAX_BYTES:
                self.dropped[Disposition.STORE_BUSY] += 1
                origin.reject(frame, Disposition.STORE_BUSY)
            else:
                self._inbox.append(frame)
                self._inbox_bytes += len(frame)
        self._wake_up()

    def ask(self, facts: Facts) -> None:
        """What has these facts has no route, and its table says whom to ask for one (R2.4)."""
        passes: list[Pass] = []
        decide(facts, replace(self._forwarder.here, table=self.transmitter.table), passes)
        if len(passes) == 1:
            self.inquirer.ask(facts.to_service, facts.to_broker_instance)
        else:  # its route leads back to this very instance, whose own table did not know on (R3.9)
            self._forwarder.ask(facts)

    def _wake_up(self) -> None:
        self._wake.set()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """A task that ends by itself has met a bug: this database stands still, and says so."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.problem = f"stopped by {error!r}"
            log.error("database stopped", database=self.name, task=task.get_name(), exc_info=error)

    # --- turns of the writer thread ---

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            turn = self._next_turn()
            try:
                result = await self._loop.run_in_executor(
                    self._writer, turn_in_writer, self._db, self.broker_instance, turn, self._fragment_size
                )
            except sqlite3.Error as error:
                await self._rest(turn, str(error))
                continue
            self.problem = ""
            if result.found_up_to is not None:
                self._found_up_to = result.found_up_to
            for found in result.found:
                self.transmitter.found(found)
            for want, messages in result.loaded:
                self.transmitter.loaded(want, messages)
            self.transmitter.unwanted(result.postponed)
            for endpoint_id in result.expired:
                self.transmitter.finish(endpoint_id)
            self._answer(result.receipt)

    def _next_turn(self) -> Turn:
        now = self._loop.time()
        is_time_to_expire = now >= self._expire_at
        if is_time_to_expire:
            self._expire_at = now + EXPIRE_SECONDS
        turn = Turn(
            now=time.time(),
            frames=self._inbox,
            find_after=self._found_up_to if self._has_news else None,
            wants=self.transmitter.wants(),  # before the next line: it may make room
            load_max_bytes=self.transmitter.load_max_bytes,
            is_time_to_expire=is_time_to_expire,
        )
        self._inbox, self._inbox_bytes, self._has_news = [], 0, False
        return turn

    async def _rest(self, turn: Turn, problem: str) -> None:
        """The store failed: nothing was stored, so nothing is acknowledged and all of it comes again."""
        self.problem = problem
        log.error("store failed", database=self.name, reason=problem, frames=len(turn.frames))
        self.dropped[Disposition.STORE_FAILED] += len(turn.frames)
        self._has_news = True
        self.transmitter.unwanted(turn.wants)
        await asyncio.sleep(FAILURE_PAUSE)
        self._wake_up()

    def _answer(self, receipt: Receipt) -> None:
        """After the commit: note what the far sides have, and tell them what is stored here."""
        transmitter, travel = self.transmitter, self._travel
        self.delivered += receipt.delivered
        self.dropped += receipt.dropped
        if receipt.delivered[SERVICE_BROKER]:
            self.inquirer.look()
        for endpoint_id, contact in receipt.contacts.items():
            transmitter.bind(endpoint_id, contact)
        for endpoint_id, place in receipt.acknowledged.items():
            transmitter.acknowledge(endpoint_id, place)
        frames: list[tuple[Way, Buffer]] = []
        for endpoint_id, (contact, place) in receipt.stored.items():
            transmitter.stored(endpoint_id, place)
            way, _ = transmitter.way(endpoint_id, contact, Kind.ACK)
            frames.append((way, ack_frame(contact, travel, transmitter.message_id(), place)))
        for contact, fault in receipt.faults:
            # Nobody sends it again, and the best address may lead to another target: a copy to each.
            frames += [
                (
                    self._forwarder.way_for(one, Kind.FAULT),
                    fault_frame(contact, travel, transmitter.message_id(), fault),
                )
                for one in alternatives(transmitter.decide(contact))
            ]
        for endpoint_id in receipt.finished:
            transmitter.finish(endpoint_id)
        if frames:
            self._forwarder.submit(frames, self._loop.time(), transmitter)

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
                self._has_news = True
                pause = shortest if now is not None else FAILURE_PAUSE
                self._wake_up()
            else:
                pause = min(longest, pause * 1.3)
                if self._loop.time() >= self._expire_at:
                    self._wake_up()

    def _version(self) -> int | None:
        """What every commit of another connection changes; None while it cannot be read, so that the writer looks."""
        try:
            version: int = self._watch.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error as error:
            log.warning("watch failed", database=self.name, reason=str(error))
            return None
        return version
