"""
The conversations of one database, from the daemon's side: window, fragments, acknowledgements, resends.

The loop decides what is sent when; a single writer thread does everything that touches the file. A *turn* of that
thread stores what arrived (one transaction: the group commit), finds what applications have queued, and loads what the
windows ask for; while it runs, arrivals collect for the next turn. Acknowledgements leave after the commit that
made them true. Applications are noticed by SQLite's `data_version`, which changes with every commit of theirs.

Frames of conversations never wait in the forwarding pool on purpose: a dialog sends only while its next hop takes
frames at once; until then its messages stay in the transmission queue.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import sqlite3
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import structlog

from broker.dialog.contact import Contact, Travel, ack_frame, fault_frame, message_frame
from broker.dialog.conversation import NEVER, Backoff, Outbound, Outgoing
from broker.dialog.receiving import Receipt, receive_in_writer
from broker.dialog.sending import Found, Want, expire_in_writer, find_in_writer, load_in_writer
from broker.flow import Disposition
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.outbox import Outbox
from broker.forwarding.way import Buffer, Origin, Way
from broker.routing.decide import Decision, Surroundings, decide
from broker.routing.table import RouteTable
from broker.wire.frame import Rejected
from broker.wire.layout import CONVERSATION_AT, SEQUENCE_AT, Kind

INBOX_MAX_BYTES = 16 * 1024 * 1024  # arrivals that wait for the writer; past it they are dropped and sent again
LOAD_MAX_BYTES = 1024 * 1024  # bodies loaded for one dialog at a time; one larger message is loaded whole
BURST_FRAMES = 64  # of one dialog before the next one's turn
PUMP_BYTES = 256 * 1024  # handed to the forwarder at once
POLL_SECONDS = (0.002, 0.02)  # between two looks at data_version: right after a change, and at most
REMATCH_SECONDS = 10.0  # after which a delayed conversation is matched again without a change of routes
EXPIRE_SECONDS = 1.0  # between two looks for dialogs whose lifetime is over
FAILURE_PAUSE = 1.0  # seconds of rest after the store failed

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DialogSettings:
    """Shape: `window` frames in flight for each dialog; `fragment_size` bytes of payload in one frame."""

    backoff: Backoff
    travel: Travel
    window: int
    fragment_size: int


@dataclass(slots=True)
class Sender:
    """
    A dialog that has something to send or unacknowledged. Loop-only.

    Shape: `load_from` the next sequence number to load; `stored` what is acknowledged with every frame; `way` as of
    `generation`; `outlet` the link its frames in flight were given to.
    """

    endpoint_id: int
    contact: Contact
    outbound: Outbound
    load_from: int
    stored: tuple[int, int]
    is_loading: bool = False
    has_more: bool = True
    is_queued: bool = False
    decision: Decision | None = None
    way: Way | None = None
    generation: int = -1
    outlet: object = None
    advice: str = ""


@dataclass(slots=True)
class Turn:
    """What the writer thread does next. Shape: `find_after` a transmission_id, None when nothing has changed."""

    frames: list[bytes]
    find_after: int | None
    wants: list[Want]
    expires: bool


@dataclass(slots=True)
class TurnResult:
    """What came of a turn."""

    receipt: Receipt = field(default_factory=Receipt)
    found: list[Found] = field(default_factory=list)
    found_up_to: int | None = None
    loaded: list[tuple[Want, list[Outgoing]]] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Ledger:
    """What this database sent and got since the daemon started; plain counters."""

    sent: Counter[str] = field(default_factory=Counter)
    resent: Counter[str] = field(default_factory=Counter)
    acknowledged: Counter[str] = field(default_factory=Counter)
    delivered: Counter[str] = field(default_factory=Counter)
    dropped: Counter[Disposition] = field(default_factory=Counter)


class Endpoint:
    """
    One database at work.

    Shape: `broker_instance` 16 bytes; `table` its own routes; `ledger` counters by service and disposition.
    """

    def __init__(
        self, name: str, path: Path, db: sqlite3.Connection, *, instance: bytes, settings: DialogSettings, forwarder: Forwarder
    ) -> None:
        self.name = name
        self.broker_instance = instance
        self.table = RouteTable()
        self.ledger = Ledger()
        self.problem = ""
        self._db = db
        self._watch = sqlite3.connect(path, isolation_level=None)
        self._settings = settings
        self._forwarder = forwarder
        self._loop = asyncio.get_running_loop()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"writer-{name}")
        self._wake = asyncio.Event()
        self._inbox: list[bytes] = []
        self._inbox_bytes = 0
        self._senders: dict[int, Sender] = {}
        self._by_conversation: dict[bytes, Sender] = {}
        self._runnable: deque[Sender] = deque()
        self._waiting: set[int] = set()  # senders that have something to send and no way to
        self._timers: list[tuple[float, int]] = []
        self._found_up_to = 0
        self._is_dirty = True
        self._is_pumping = False
        self._message_ids = (os.urandom(8), count(int.from_bytes(os.urandom(4), "big")))
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to work."""
        self._tasks = [
            self._loop.create_task(work, name=f"{self.name} {what}")
            for work, what in ((self._work(), "turns"), (self._poll(), "poll"), (self._keep_time(), "time"))
        ]
        self._wake.set()

    async def close(self) -> None:
        """Stop after the turn under way; what is queued stays queued."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._loop.run_in_executor(None, self._writer.shutdown)
        self._watch.close()
        self._db.close()
