"""
Who asks for routes that are missing: one request per service name, however many conversations and frames wait.

Whoever meets matching step 4 says so (`ask`), every time; that costs a look-up. What was asked stays open until who
was asked ends the dialog, be it years: without an answer there is no new request. After the answer nothing is asked
about the same service for RETRY_SECONDS; by then either there is a route, or whoever still waits says so again. So
nothing has to be remembered about who waits, and nobody is asked for what nobody wants any more.

A gateway hears service names that strangers invented. What is open or was answered a moment ago is bounded, and with
it what requests take on the disk; above the bound no request is made.

Source: Service Broker documentation, "Service Broker Dynamic Routing"; messages 9761, 9770.
"""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import structlog

from broker.dialog.asking import FAILED, Ending, Progress, Request, ask_in_writer, open_requests_in_writer
from broker.dialog.flat_xml import can_hold
from broker.dialog.inquiry import Inquiry, group_of
from broker.errors import DemotedError, StoreUnavailableError
from broker.store.transaction import Connection
from broker.wire.layout import NO_GUID

RETRY_SECONDS = 10.0  # before the same is asked again: the time-out of the original, as for a delayed conversation
REQUESTS_MAX = 1000  # open or answered a moment ago: a thousand new services in ten seconds, or some 70 MB an hour
LOOK_SECONDS = 10.0  # between two looks at open requests, for those that an administrator has ended
FAILURE_PAUSE = 1.0  # seconds of rest after the store failed

log = structlog.get_logger(__name__)
_T = TypeVar("_T")


class InWriter(Protocol):
    """The port to the thread that owns the database's connection."""

    def __call__(self, work: Callable[[Connection], _T]) -> Awaitable[_T]:
        """Run `work` there, between two of its turns."""


@dataclass(frozen=True, slots=True)
class _Rest:
    """An answered request. Shape: `until` monotonic seconds; `problem` what it failed with, empty when it did not."""

    until: float
    problem: str


class Inquirer:
    """
    The requests of one database. Loop-only.

    Shape: `requests`, `answers`, `failures` since the start; `is_full` while no more may be asked.
    """

    def __init__(self, name: str, in_writer: InWriter) -> None:
        self.requests = 0
        self.answers = 0
        self.failures = 0
        self.is_full = False
        self._name = name
        self._in_writer = in_writer
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._wanted: dict[bytes, Inquiry] = {}
        self._open: dict[bytes, Request] = {}
        self._groups: dict[uuid.UUID, bytes] = {}
        self._names: dict[bytes, str] = {}  # of the open ones, where known: a restart forgets them
        self._resting: OrderedDict[bytes, _Rest] = OrderedDict()  # the first to end stands first
        self._has_arrived = False  # something may wait in the queue

    def ask(self, service_name: str, broker_instance: bytes) -> None:
        """A route to this service is missing. Cost: a look-up when that is known."""
        group = group_of(service_name)
        now = self._loop.time()
        while self._resting and next(iter(self._resting.values())).until <= now:
            self._resting.popitem(last=False)
        if group in self._open:
            self._names.setdefault(group, service_name)
        if group in self._open or group in self._wanted or group in self._resting:
            return
        if len(self._open) + len(self._wanted) + len(self._resting) >= REQUESTS_MAX:
            if not self.is_full:
                self.is_full = True
                log.warning("too many requests for routes", database=self._name, open=len(self._open))
            return
        self.is_full = False
        if not can_hold(service_name):
            self._resting[group] = _Rest(now + RETRY_SECONDS, "its name cannot be written in XML")
            return
        instance = None if broker_instance == NO_GUID else uuid.UUID(bytes=broker_instance)
        self._wanted[group] = Inquiry(service_name, instance)
        self._wake.set()

    def look(self) -> None:
        """Something has arrived for the service that asks."""
        self._has_arrived = True
        self._wake.set()

    def status(self, service_name: str) -> str:
        """What is known of the request for this service, as the end of a sentence."""
        group, now = group_of(service_name), self._loop.time()
        request, rest = self._open.get(group), self._resting.get(group)
        if request is not None:
            return f"asked {datetime.fromtimestamp(request.asked_at, UTC):%Y-%m-%d %H:%M:%S} UTC, not answered yet"
        if rest is not None and now < rest.until:
            answer = f"the request failed: {rest.problem}" if rest.problem else "answered, and there is still no route"
            return f"{answer}; asked again in {rest.until - now:.0f} s"
        if group not in self._wanted and self.is_full:
            return f"not asked yet, because {REQUESTS_MAX} other requests are open"
        return "about to be asked"

    # --- the task of the endpoint ---

    async def run(self) -> None:
        """Carry out what was asked, until cancelled."""
        await self._patiently(self._find_open)
        while True:
            await self._patiently(self._round)
            await self._pause()

    async def _pause(self) -> None:
        """Until something is to be done; while requests are open, not for ever."""
        try:
            async with asyncio.timeout(LOOK_SECONDS if self._open else None):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _patiently(self, step: Callable[[], Awaitable[None]]) -> None:
        """Do it, and when the store fails do it again."""
        while True:
            try:
                await step()
            except DemotedError:
                problem = ""  # the turns tell it, to whoever keeps the role
            except (sqlite3.Error, StoreUnavailableError) as error:
                problem = str(error)
            else:
                return
            if problem:
                log.error("store failed", database=self._name, reason=problem, requests=len(self._wanted))
            await asyncio.sleep(FAILURE_PAUSE)

    async def _find_open(self) -> None:
        for request in await self._in_writer(open_requests_in_writer):
            self._add(request)
            wanted = self._wanted.pop(request.group, None)  # asked for before this was known
            if wanted is not None:
                self._names[request.group] = wanted.service_name

    async def _round(self) -> None:
        self._wake.clear()
        wanted = dict(self._wanted)
        known = list(self._groups)
        if not known and not wanted and not self._has_arrived:
            return
        has_arrived, self._has_arrived = self._has_arrived, False
        try:
            progress = await self._in_writer(lambda db: ask_in_writer(db, wanted.values(), known))
        except BaseException:
            self._has_arrived = has_arrived
            raise
        self._note(progress, wanted)

    def _note(self, progress: Progress, wanted: dict[bytes, Inquiry]) -> None:
        for request in progress.begun:
            self._wanted.pop(request.group, None)
            self._names[request.group] = wanted[request.group].service_name
            self._add(request)
            self.requests += 1
            log.info("route asked for", database=self._name, service=self._names[request.group])
        for ending in progress.endings:
            self._end(ending)

    def _add(self, request: Request) -> None:
        self._open[request.group] = request
        self._groups[request.handle] = request.group

    def _end(self, ending: Ending) -> None:
        group = self._groups.pop(ending.handle, None)
        if group is None or self._open[group].handle != ending.handle:
            return  # not ours, or one of two for the same service, of which the other decides
        del self._open[group]
        service = self._names.pop(group, "asked for before the start")
        problem = f"{ending.description} ({ending.code})" if ending.code else ""
        self._resting[group] = _Rest(self._loop.time() + RETRY_SECONDS, problem)
        self.answers += 1
        if ending.code:
            self.failures += 1
            log.warning(
                "request for a route failed",
                number=FAILED,
                database=self._name,
                service=service,
                code=ending.code,
                reason=ending.description,
            )
