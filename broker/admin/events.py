"""
`GET /v1/events`: the activity of the instance as server-sent events, one snapshot a second for all clients together.

Without a client only one row of the past is recorded a second. A snapshot is made once and its bytes are sent on every
stream. A stream holds the newest only, so a slow reader misses some, and one that reads nothing is cut off. A snapshot
that costs more than a hundredth of a second of processor time makes the next one wait longer, so that watching
does not slow the instance.

Source: HTML Living Standard, "Server-sent events".
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import msgspec
import structlog
from aiohttp import web
from msgspec import Meta

from broker.admin.audit import Audit
from broker.admin.problems import TooManyStreamsError
from broker.errors import BrokerError
from broker.forwarding.latency import BOUNDS
from broker.observe.database_stats import DatabaseStats, read_database_stats
from broker.observe.instance import Running
from broker.observe.snapshot import read_snapshot
from broker.observe.stream import LATENCIES, SECTIONS, StatsHistory, StatsStream, read_counters

SNAPSHOT_SECONDS = 1.0  # between two snapshots
COST_SHARE = 100  # times the processor time of a snapshot that pass before the next: one part in a hundred at most
SNAPSHOT_MAX_SECONDS = 5.0  # whatever it costs
STREAMS_MAX = 16  # of one caller at the same time
NUMBER_MAX = 18  # digits of an id; a row a second never gets there
STUCK_SECONDS = 10.0  # for which a stream may take nothing before it is cut off
STREAM_SECONDS = 300.0  # of life, after which the client has to authenticate again
STATS_SECONDS, STATS_SHARE = 5.0, 50  # between two reads of the files, and times as long as the last one took
MEDIA_TYPE = "text/event-stream"
QUANTILES = (0.5, 0.99)
_RETRY_MS = 1000

log = structlog.get_logger(__name__)


class EventsRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The parameters of a stream."""

    since: Annotated[
        str | None, Meta(description="The id of the last event that was received; as the header Last-Event-ID.")
    ] = None
    history: Annotated[bool, Meta(description="Whether to begin with the last ten minutes.")] = True


@dataclass(eq=False)
class Stream:
    """
    A client that listens.

    Attributes:
        owner: The caller.
        newest: The next bytes to send.
        reason: Why the stream ends; "" while it does not.
        woken: Set by either.
    """

    owner: str = ""
    newest: bytes = b""
    reason: str = ""
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def give(self, data: bytes) -> None:
        """Send this next, instead of what is not sent yet."""
        self.newest = data
        self.woken.set()

    def end(self, reason: str) -> None:
        """Send nothing more."""
        self.reason = reason
        self.woken.set()

    async def take(self) -> bytes:
        """Wait for the next bytes to send; empty when the stream has ended."""
        await self.woken.wait()
        self.woken.clear()
        data, self.newest = self.newest, b""
        return data


class Events:
    """
    The snapshots of one instance, and its streams. Loop-only.

    Args:
        instance: The instance.
        executor: Where files are read.
        audit: Knows whether changes can be recorded.
    """

    def __init__(self, instance: Running, executor: Executor, audit: Audit) -> None:
        self.streams: set[Stream] = set()
        self.history = StatsHistory()
        self._instance = instance
        self._executor = executor
        self._audit = audit
        self._run = f"{time.time_ns():x}"
        self._changes = StatsStream()
        self._hops, self._trips = Latency(), Latency()
        self._latency: dict[str, float | None] = dict.fromkeys(LATENCIES)
        self._stats: Mapping[str, DatabaseStats | None] = {}
        self._problems: dict[str, str] = {}
        self._stats_due = 0.0
        self._reading_stats: asyncio.Task[None] | None = None
        self._newest = b""
        self._asked = asyncio.Event()
        self._is_closed = False

    def start(self, stack: AsyncExitStack) -> None:
        """Record the past, and make snapshots; `stack` ends it."""
        supervision = self._instance.supervision
        supervision.keep_within(stack, "past", self._record)  # the names of tasks are labels of a metric
        supervision.keep_within(stack, "pulse", self._send_snapshots)
        stack.push_async_callback(self._leave_files)

    async def _leave_files(self) -> None:
        if self._reading_stats is not None:
            self._reading_stats.cancel()
            await asyncio.gather(self._reading_stats, return_exceptions=True)

    def close(self) -> None:
        """End all streams: the instance stops."""
        self._is_closed = True
        for stream in self.streams:
            stream.end("the instance stops")

    async def serve(self, request: web.Request, asked: EventsRequest, owner: str) -> web.StreamResponse:
        """
        Answer with events for as long as the client listens, some minutes at most.

        Args:
            request: Of the client.
            asked: The parameters of the request.
            owner: The caller.

        Raises:
            TooManyStreamsError: the caller has `STREAMS_MAX` streams already, or the instance stops.
        """
        if self._is_closed or sum(stream.owner == owner for stream in self.streams) >= STREAMS_MAX:
            raise TooManyStreamsError(STREAMS_MAX)
        response = web.StreamResponse(headers={"Content-Type": MEDIA_TYPE, "X-Accel-Buffering": "no"})
        stream = Stream(owner)
        self.streams.add(stream)
        self._asked.set()
        try:
            await response.prepare(request)
            await self._write(response, request, self._beginning(request, asked))
            if self._newest:
                stream.give(self._newest)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STREAM_SECONDS):
                    while not stream.reason:
                        await self._write(response, request, await stream.take())
            reason = stream.reason or "this stream is old: listen again"
            await self._write(response, request, _event("end", {"reason": reason}))
        except ConnectionError:
            pass
        finally:
            self.streams.discard(stream)
            if not self.streams:
                self._forget()
        return response

    def _beginning(self, request: web.Request, asked: EventsRequest) -> bytes:
        """When to come again, and the past."""
        retry = f"retry: {_RETRY_MS}\n\n".encode()
        if not asked.history:
            return retry
        run, _, number = (asked.since or request.headers.get("Last-Event-ID") or "").rpartition("-")
        is_known = run == self._run and number.isascii() and number.isdigit() and len(number) <= NUMBER_MAX
        known = int(number) if is_known else 0
        return retry + _event("history", self.history.since(known), self._id)

    @property
    def _id(self) -> str:
        return f"{self._run}-{self.history.number}"

    async def _write(self, response: web.StreamResponse, request: web.Request, data: bytes) -> None:
        """Raises ConnectionError when the client has gone, or takes nothing."""
        if not data:
            return
        try:
            async with asyncio.timeout(STUCK_SECONDS):
                await response.write(data)
        except TimeoutError:
            log.info("stream cut off", reason="its client reads nothing")
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionAbortedError("the client reads nothing") from None

    async def _record(self) -> None:
        """Record a row of the past every second, for ever."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            counts = read_counters(self._instance)
            quantiles = (*self._hops.update(counts.hops), *self._trips.update(counts.trips))
            lag = round(self._instance.lag.seconds, 6)
            self._latency = dict(zip(LATENCIES, (lag, *quantiles), strict=True))
            self.history.record(counts, self._latency, at=time.time(), now=loop.time())
            due = max(due + SNAPSHOT_SECONDS, loop.time())
            await asyncio.sleep(due - loop.time())

    async def _send_snapshots(self) -> None:
        """Make a snapshot every second while there are clients, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self._asked.wait()
            began, used = loop.time(), time.thread_time()
            try:
                data = self._snapshot()
            except BrokerError as error:  # the next one may be made, and those who listen see that none comes
                log.warning("snapshot failed", reason=str(error))
            else:
                self._newest = data if self.streams else b""
                for stream in self.streams:
                    stream.give(data)
            wait = min(max(SNAPSHOT_SECONDS, COST_SHARE * (time.thread_time() - used)), SNAPSHOT_MAX_SECONDS)
            await asyncio.sleep(max(0.0, began + wait - loop.time()))

    def _snapshot(self) -> bytes:
        loop = asyncio.get_running_loop()
        if loop.time() >= self._stats_due and (self._reading_stats is None or self._reading_stats.done()):
            self._reading_stats = loop.create_task(self._read_stats(), name="database stats")
        snapshot, counters = read_snapshot(self._instance, SECTIONS), read_counters(self._instance)
        event = self._changes.next(snapshot, counters, self._stats, self._latency, **self._problems)
        return _event("pulse", {"id": self._id, **event}, self._id)

    async def _read_stats(self) -> None:
        """Read the files of databases in a thread."""
        loop = asyncio.get_running_loop()
        paths = {name: endpoint.path for name, endpoint in self._instance.endpoints.items()}
        problems = partial(self._audit.problems, self._instance.settings.instance.state_dir)
        began = loop.time()
        self._problems, self._stats = await loop.run_in_executor(
            self._executor, lambda: (problems(), read_database_stats(paths))
        )
        ended = loop.time()
        self._stats_due = ended + max(STATS_SECONDS, STATS_SHARE * (ended - began))

    def _forget(self) -> None:
        """Forget what was for the last client: the next one begins again."""
        self._asked.clear()
        if self._reading_stats is not None:
            self._reading_stats.cancel()
        self._changes, self._newest, self._stats, self._stats_due = StatsStream(), b"", {}, 0.0


def _event(name: str, data: object, number: str = "") -> bytes:
    """One event. JSON has no line breaks, so it is one line."""
    head = f"event: {name}\n" + (f"id: {number}\n" if number else "")
    return head.encode() + b"data: " + msgspec.json.encode(data) + b"\n\n"


class Latency:
    """Quantiles of what one histogram counted since the last call. For one caller."""

    def __init__(self) -> None:
        self._before: tuple[float, ...] | None = None

    def update(self, counts: Sequence[float]) -> tuple[float | None, ...]:
        """
        The `QUANTILES` in seconds of what is new; None where nothing is, and at the first call.

        Args:
            counts: As `Times.counts`; empty where nothing is counted.
        """
        before, self._before = self._before, tuple(counts)
        if before is None or len(before) != len(counts):
            return (None,) * len(QUANTILES)
        new = [max(0.0, count - old) for count, old in zip(counts, before, strict=True)]
        return tuple(quantile(new, part) for part in QUANTILES)


def quantile(counts: Sequence[float], part: float) -> float | None:
    """
    The time that this part of all did not exceed; None when there are none.

    Within a bucket times are taken to be spread evenly, as Prometheus does; above the last bound a time is that bound.
    """
    rank, below = part * sum(counts), 0.0
    for index, count in enumerate(counts):
        if count and below + count >= rank:
            if index >= len(BOUNDS):
                return BOUNDS[-1]
            low = BOUNDS[index - 1] if index else 0.0
            return round(low + (BOUNDS[index] - low) * (rank - below) / count, 7)
        below += count
    return None
