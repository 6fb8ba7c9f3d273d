"""
Requests for routes that a database sends to its BROKER_CONFIGURATION service, and their state.

When matching step 4 finds that a peer has to be asked for a route, `RouteRequester` begins one ordinary dialog for each
service name, however many conversations and frames wait. The dialog is from the service `SERVICE_BROKER`, which every
database of the original has, to `BROKER_CONFIGURATION`, wherever the route to it leads. It has the largest lifetime
there is, and its conversation group identifies the requested service. The only answer is the end of the dialog: by then
the peer has made the route, or its error says why not. The service and its queue are made with the first request.

A request stays open until it is answered, even for years, and there is no second one for the same service until then.
After the answer the same request is not made again for RETRY_SECONDS. By then there is a route, or a dialog that still
waits asks again, so the requester does not have to remember the waiting dialogs. A gateway receives service names that
any peer may invent. The number of requests that are open or were answered a moment ago is therefore bounded, and so is
their size on the disk.

Bodies are XML of one level. The size of a received body is checked before it is parsed, and a document type (and with
it every entity) is refused. Namespaces are compared without distinguishing `http` from `https`, because the
documentation of the original was rewritten mechanically and has both.

Sources: Service Broker documentation, "Service Broker Dynamic Routing", "Broker Configuration Notice Service";
messages 9761, 9770.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple, Protocol, TypeVar
from xml.etree import ElementTree as ET

import structlog

from broker.client.dialog import Dialog, begin_dialog, get_dialog
from broker.client.receiving import Message, receive
from broker.conversation.body_check import NOT_XML
from broker.conversation.message_types import LIFETIME_MAX
from broker.conversation.state import TAKES_MESSAGES, ConversationState
from broker.errors import DemotedError, StoreUnavailableError
from broker.protocol.layout import NO_GUID, show_guid
from broker.routing.decide import RoutingFacts
from broker.routing.route import BROKER_CONFIGURATION, SERVICE_BROKER
from broker.store.sqlite.metadata import put_queue, put_service, queues, services
from broker.store.sqlite.side import dialogs_between, shorten_lifetime, side_of, state_of
from broker.store.sqlite.transaction import DaemonConnection, writing

QUEUE = "ServiceBrokerQueue"  # where answers arrive, in the database that asked
CONTRACT = "http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice"
MISSING_ROUTE = f"{CONTRACT}/MissingRoute"
FAILED = 9761  # the original's message for a request that ended with an error
RETRY_SECONDS = 10.0  # before the same is asked again: the time-out of the original, as for a delayed conversation
REQUESTS_MAX = 1000  # open or answered a moment ago: a thousand new services in ten seconds, or some 70 MB an hour
POLL_SECONDS = 10.0  # between two checks of open requests, for those that an administrator has ended
ANSWER_SECONDS = 7 * 86_400.0  # for which an answer is sent again
FAILURE_PAUSE = 1.0  # seconds of rest after the store failed
BODY_MAX_BYTES = 64 * 1024  # a hundred times what the longest names need

_GROUPS = uuid.UUID("bef0c593-c142-44e5-a649-034cbdfa2741")  # any, and never another
_RECEIVE_MAX = 1000  # messages taken from the queue at a time
_T = TypeVar("_T")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Inquiry:
    """What is asked: a route to this service, in a broker instance if the conversation that waits names one."""

    service_name: str
    broker_instance: uuid.UUID | None = None


@dataclass(slots=True)
class RouteRequest:
    """An open request."""

    handle: uuid.UUID
    group: bytes  # what it asks for, see `group_of`
    asked_at: float  # UTC seconds since 1970
    service_name: str = ""  # the service whose route is asked for; empty after a restart


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """How a request ended; `code` 0 when the peer says that all is done."""

    handle: uuid.UUID
    code: int = 0
    description: str = ""


class InWriter(Protocol):
    """Runs work in the thread that owns the database's connection, between two of its batches."""

    def __call__(self, work: Callable[[DaemonConnection], _T]) -> Awaitable[_T]:
        """Run it, and return what it returns."""


class _Rest(NamedTuple):
    """An answered request: it is not repeated before `until` (monotonic); `problem` if it failed."""

    until: float
    problem: str


class RouteRequester:
    """The requests of one database. Loop-only."""

    def __init__(self, database: str, run_in_writer: InWriter) -> None:
        self.requests = self.answers = self.failures = 0  # since the start
        self.is_full = False  # whether further requests are refused, because of REQUESTS_MAX
        self._database = database
        self._run_in_writer = run_in_writer
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._wanted: dict[bytes, Inquiry] = {}
        self._open: dict[bytes, RouteRequest] = {}
        self._groups: dict[uuid.UUID, bytes] = {}  # of the open ones, by handle
        self._causes: dict[bytes, bytes] = {}  # of them and of those wanted: the conversation that waits, by group
        self._resting: OrderedDict[bytes, _Rest] = OrderedDict()  # in the order in which they ended
        self._has_arrived = False  # a message may wait in the queue

    def ask(self, facts: RoutingFacts) -> bool:
        """
        Request a route to this service, unless that was requested already. Cost: one look-up if it was.

        Returns:
            True when another conversation's request is pending: then this one is matched without asking (R2.4).
        """
        service_name, group = facts.to_service, group_of(facts.to_service)
        now = self._loop.time()
        while self._resting and next(iter(self._resting.values())).until <= now:
            self._resting.popitem(last=False)
        request = self._open.get(group)
        if request is not None:
            request.service_name = service_name
        if request is not None or group in self._wanted:
            return self._causes.setdefault(group, facts.conversation_id) != facts.conversation_id
        if group in self._resting:
            return False
        if len(self._open) + len(self._wanted) + len(self._resting) >= REQUESTS_MAX:
            if not self.is_full:
                self.is_full = True
                log.warning("too many requests for routes", database=self._database, open=len(self._open))
            return False
        self.is_full = False
        if not can_hold(service_name):
            self._resting[group] = _Rest(now + RETRY_SECONDS, "its name cannot be written in XML")
            return False
        instance = None if facts.to_broker_instance == NO_GUID else uuid.UUID(bytes=facts.to_broker_instance)
        self._wanted[group], self._causes[group] = Inquiry(service_name, instance), facts.conversation_id
        self._wake.set()
        return False

    def on_arrived(self) -> None:
        """A message for the service that asks is stored."""
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
        """Make requests and process answers, until cancelled."""
        await self._until_done(self._find_open)
        while True:
            await self._until_done(self._visit)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS if self._open else None):
                    await self._wake.wait()

    async def _until_done(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat a step while the store fails."""
        while True:
            try:
                return await step()
            except (sqlite3.Error, StoreUnavailableError) as error:
                problem = error
            if not isinstance(problem, DemotedError):  # that, the writer reports to the keeper of the role
                log.error("store failed", database=self._database, reason=str(problem), requests=len(self._wanted))
            await asyncio.sleep(FAILURE_PAUSE)

    async def _find_open(self) -> None:
        for request in await self._run_in_writer(open_requests_in_writer):
            wanted = self._wanted.pop(request.group, None)  # asked for before this was known
            request.service_name = "" if wanted is None else wanted.service_name
            self._add(request)

    async def _visit(self) -> None:
        self._wake.clear()
        wanted, known = dict(self._wanted), list(self._groups)
        if not known and not wanted and not self._has_arrived:
            return
        has_arrived, self._has_arrived = self._has_arrived, False
        try:
            begun, ended = await self._run_in_writer(lambda db: ask_in_writer(db, wanted.values(), known))
        except BaseException:
            self._has_arrived = has_arrived
            raise
        for request in begun:
            self._wanted.pop(request.group, None)
            self._add(request)
            self.requests += 1
            log.info("route asked for", database=self._database, service=request.service_name)
        for end in ended:
            self._on_end(end)

    def _add(self, request: RouteRequest) -> None:
        self._open[request.group] = request
        self._groups[request.handle] = request.group

    def _on_end(self, end: RequestEnd) -> None:
        group = self._groups.pop(end.handle, None)
        if group is None or self._open[group].handle != end.handle:
            return  # not ours, or one of two for the same service, of which the other decides
        service = self._open.pop(group).service_name or "asked for before the start"
        self._causes.pop(group, None)
        problem = f"{end.description} ({end.code})" if end.code else ""
        self._resting[group] = _Rest(self._loop.time() + RETRY_SECONDS, problem)
        self.answers += 1
        if end.code:
            self.failures += 1
            about = {"database": self._database, "service": service, "code": end.code, "reason": end.description}
            log.warning("request for a route failed", number=FAILED, **about)


# --- requests in the database ---


def open_requests_in_writer(db: sqlite3.Connection) -> list[RouteRequest]:
    """
    The requests that wait for their answer.

    Cost: one look-up in a database that has never asked; otherwise it reads all conversations, once a start.
    """
    if SERVICE_BROKER not in services(db):
        return []
    rows = dialogs_between(db, SERVICE_BROKER, BROKER_CONFIGURATION)
    return [RouteRequest(uuid.UUID(bytes=handle), group, created) for handle, group, created in rows]


def ask_in_writer(
    db: sqlite3.Connection, inquiries: Iterable[Inquiry], known: Iterable[uuid.UUID]
) -> tuple[list[RouteRequest], list[RequestEnd]]:
    """
    Begin requests, and see which of those that are known have ended; returns both.

    Raises:
        sqlite3.Error, StoreUnavailableError: nothing of it was done.
    """
    with writing(db):
        ended = _receive_answers(db)
        answered = {end.handle for end in ended}
        ended += [RequestEnd(handle) for handle in known if handle not in answered and _is_over(db, handle)]
        return [_begin(db, inquiry) for inquiry in inquiries], ended


def answer(db: sqlite3.Connection, dialog: Dialog, *, code: int = 0, description: str = "") -> None:
    """
    END CONVERSATION by the side that was asked, plain or with an error, in the transaction of `db`.

    Such a dialog has a lifetime of 68 years, set by its other side. It is shortened for this end, which would otherwise
    be remembered for as long.

    Raises:
        ConversationError: 8462 ended before; 8426 unknown; 8424 a description without a code.
        StoreUnavailableError: the database stayed locked.
    """
    shorten_lifetime(db, dialog.conversation_handle.bytes, time.time() + ANSWER_SECONDS)
    dialog.end(error=code or None, description=description)


def _begin(db: sqlite3.Connection, inquiry: Inquiry) -> RouteRequest:
    if SERVICE_BROKER not in services(db):
        # Others may begin a dialog with it under the one contract it accepts, and are refused when that is read.
        if QUEUE not in queues(db):
            put_queue(db, QUEUE, is_receive_enabled=True)
        put_service(db, SERVICE_BROKER, queues(db)[QUEUE].queue_id, frozenset({CONTRACT}))
    group = group_of(inquiry.service_name)
    dialog = begin_dialog(
        db,
        from_service=SERVICE_BROKER,
        to_service=BROKER_CONFIGURATION,
        contract=CONTRACT,
        lifetime=LIFETIME_MAX,
        related_conversation_group=uuid.UUID(bytes=group),
        encryption=False,  # the requested name is not secret, and is mostly answered within this instance
    )
    dialog.send(render_inquiry(inquiry), type=MISSING_ROUTE)
    return RouteRequest(dialog.conversation_handle, group, time.time(), inquiry.service_name)


def _receive_answers(db: sqlite3.Connection) -> list[RequestEnd]:
    """Read the queue empty, and end what the other side has ended, which is returned."""
    ended: list[RequestEnd] = []
    queue = queues(db).get(QUEUE)
    if queue is None or not queue.is_receive_enabled:
        return ended
    over: set[uuid.UUID] = set()
    while messages := receive(db, queue=QUEUE, top=_RECEIVE_MAX):
        for message in messages:
            handle = message.dialog.conversation_handle
            if handle in over:
                continue
            if message.is_end or message.is_error:
                over.add(handle)
                message.dialog.end()
                ended.append(_end_of(message))
            elif (side := side_of(db, message.dialog.endpoint_id)) is not None and not side.contact.is_initiator:
                over.add(handle)
                message.dialog.end(error=FAILED, description=f"the service {SERVICE_BROKER} only asks")
    return ended


def _end_of(message: Message) -> RequestEnd:
    handle = message.dialog.conversation_handle
    if message.is_end:
        return RequestEnd(handle)
    try:
        texts = parse_flat_xml(message.body).texts
        return RequestEnd(handle, int(texts.get("Code", FAILED)), texts.get("Description", texts.get("Message", "")))
    except ValueError as error:
        return RequestEnd(handle, FAILED, f"its error cannot be read: {error}")


def _is_over(db: sqlite3.Connection, handle: uuid.UUID) -> bool:
    """Whether an open request ended otherwise: an administrator ended it, or another reader read the queue."""
    state = state_of(db, handle.bytes)
    if state in (ConversationState.DISCONNECTED_INBOUND, ConversationState.ERROR):
        get_dialog(db, handle).end()
    elif state not in TAKES_MESSAGES:
        shorten_lifetime(db, handle.bytes, time.time() + ANSWER_SECONDS)
    return state not in TAKES_MESSAGES


# --- what a request says ---


def group_of(service_name: str) -> bytes:
    """
    The conversation group of every request for this service.

    By it a request is found again after a restart, when its message has long been acknowledged and is gone.
    """
    return uuid.uuid5(_GROUPS, service_name).bytes


def render_inquiry(inquiry: Inquiry) -> bytes:
    """The body of MissingRoute; a service name that XML can hold is read from it as it is."""
    # A carriage return is escaped as well: read back bare, it would be a line feed.
    name = escape(inquiry.service_name, quote=False).replace("\r", "&#13;")
    texts = f"<SERVICE_NAME>{name}</SERVICE_NAME>"
    if inquiry.broker_instance is not None:
        texts += f"<BROKER_INSTANCE>{show_guid(inquiry.broker_instance)}</BROKER_INSTANCE>"
    return f'<MissingRoute xmlns="{MISSING_ROUTE}">{texts}</MissingRoute>'.encode()


@dataclass(frozen=True, slots=True)
class FlatXml:
    """One element, its namespace in the `http` form, and the text of each element in it."""

    name: str
    namespace: str
    texts: Mapping[str, str]


def can_hold(text: str) -> bool:
    """Whether XML can hold this text: it has no way to write some control characters."""
    return NOT_XML.search(text) is None


def parse_flat_xml(body: bytes) -> FlatXml:
    """
    A document from elsewhere, in any encoding that it declares.

    Raises:
        ValueError: it is too long, not XML, not flat, has a document type, or an element twice.
    """
    if len(body) > BODY_MAX_BYTES:
        raise ValueError(f"{len(body)} bytes are above {BODY_MAX_BYTES}")
    parser = ET.XMLParser(target=_WithoutDoctype())  # noqa: S314 - bounded, and without entities
    try:
        parser.feed(body)
        root = parser.close()
    except (ET.ParseError, LookupError) as error:  # the latter: an unknown encoding
        raise ValueError(f"not XML: {error}") from None
    texts: dict[str, str] = {}
    for element in root:
        name = _local_name(element)
        if len(element):
            raise ValueError(f"the element {_local_name(element[0])!r} is inside {name!r}, where text is expected")
        if name in texts:
            raise ValueError(f"the element {name!r} is there twice")
        texts[name] = element.text or ""
    namespace = root.tag.rpartition("}")[0].removeprefix("{")
    return FlatXml(_local_name(root), re.sub("^https:", "http:", namespace), texts)


class _WithoutDoctype(ET.TreeBuilder):
    def doctype(self, *_: object) -> None:
        raise ValueError("a document type is not accepted")


def _local_name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]
