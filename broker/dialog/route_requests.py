"""
The XML of Service Broker's own messages: one element, and in it elements that hold nothing but text. Pure.

What comes from elsewhere is never trusted: a body is bounded before it is looked at, a document type (and with it
every entity of its own making) is refused, and so is whatever is not flat. Namespaces are compared without telling
`http` from `https`, because the documentation of the original was rewritten mechanically and has both.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import Protocol, TypeVar
from xml.parsers import expat

import structlog

from broker.client.dialog import Dialog, begin_dialog, get_dialog
from broker.client.receiving import Message, receive
from broker.conversation.message_types import LIFETIME_MAX
from broker.conversation.state import TAKES_MESSAGES, ConversationState
from broker.errors import DemotedError, StoreUnavailableError
from broker.protocol.layout import NO_GUID
from broker.routing.route import BROKER_CONFIGURATION, SERVICE_BROKER
from broker.store.sqlite import metadata as route_request
from broker.store.sqlite.metadata import put_queue, put_service, queues, services
from broker.store.sqlite.transaction import DaemonConnection, writing

BODY_MAX_BYTES = 64 * 1024  # a hundred times what the longest names need
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # by XML 1.0, in any spelling
_SEPARATOR = " "  # between namespace and name, as expat is told; no namespace may hold it


@dataclass(frozen=True, slots=True)
class FlatXml:
    """Shape: `name` and `namespace` of the root, the namespace in its `http` form; `texts` by name of the element."""

    name: str
    namespace: str
    texts: Mapping[str, str] = field(default_factory=dict)


def can_hold(text: str) -> bool:
    """Whether XML has a way to write this text: some control characters have none."""
    return _FORBIDDEN.search(text) is None


def render_flat_xml(document: FlatXml) -> bytes:
    """A document as UTF-8. Every text `can_hold` holds comes back from `parse_flat_xml` as it was."""
    texts = "".join(f"<{name}>{_escaped(text)}</{name}>" for name, text in document.texts.items())
    return f'<{document.name} xmlns="{document.namespace}">{texts}</{document.name}>'.encode()


def parse_flat_xml(body: bytes) -> FlatXml:
    """
    A document from elsewhere, in any encoding that says what it is.

    Raises:
        ValueError: it is too long, no XML, not flat, has a document type, or an element twice.
    """
    if len(body) > BODY_MAX_BYTES:
        raise ValueError(f"{len(body)} bytes are above {BODY_MAX_BYTES}")
    return _Reader().read(body)


class _Reader:
    """Expat's callbacks, for one document."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._root = ("", "")
        self._texts: dict[str, str] = {}

    def read(self, body: bytes) -> FlatXml:
        parser = expat.ParserCreate(namespace_separator=_SEPARATOR)
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = self._doctype
        try:
            parser.Parse(body, True)
        except (expat.ExpatError, LookupError) as error:  # the latter: an encoding that nobody knows
            raise ValueError(f"no XML: {error}") from None
        namespace, name = self._root
        return FlatXml(name, re.sub("^https:", "http:", namespace), self._texts)

    def _start(self, tag: str, _attributes: object) -> None:
        namespace, _, name = tag.rpartition(_SEPARATOR)
        if not self._open:
            self._root = (namespace, name)
        elif len(self._open) > 1:
            raise ValueError(f"the element {name!r} stands inside {self._open[-1]!r}, where text is expected")
        elif name in self._texts:
            raise ValueError(f"the element {name!r} stands there twice")
        else:
            self._texts[name] = ""
        self._open.append(name)

    def _end(self, _tag: str) -> None:
        self._open.pop()

    def _text(self, text: str) -> None:
        if len(self._open) > 1:
            self._texts[self._open[-1]] += text

    def _doctype(self, *_: object) -> None:
        raise ValueError("a document type is not accepted")


def _escaped(text: str) -> str:
    """A carriage return is escaped as well: read back bare, it would be a line feed."""
    return escape(text, quote=False).replace("\r", "&#13;")


# --- inquiry ---
# A request for a route: the names that both sides know, and the message that asks. Pure.
#
# A database asks in the name of the service `SERVICE_BROKER`, which every database of the original has; it asks the
# service `BROKER_CONFIGURATION`, wherever the route to it leads. There is no answer but the end of the dialog: who is
# asked has made the route by then, or says with an error why not.
#
# Source: Service Broker documentation, "Service Broker Dynamic Routing", "Broker Configuration Notice Service".


QUEUE = "ServiceBrokerQueue"  # where answers to requests arrive, in the database that asked
CONTRACT = "http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice"
MISSING_ROUTE = f"{CONTRACT}/MissingRoute"
MISSING_BINDING = f"{CONTRACT}/MissingRemoteServiceBinding"  # the other request of the contract

_GROUPS = uuid.UUID("bef0c593-c142-44e5-a649-034cbdfa2741")  # any, and never another


@dataclass(frozen=True, slots=True)
class Inquiry:
    """
    What is asked: a route to this service.

    Shape: `broker_instance` what the conversation that waits has named, None when any will do.
    """

    service_name: str
    broker_instance: uuid.UUID | None = None


def group_of(service_name: str) -> bytes:
    """
    The conversation group of every request for this service.

    By it a request is found again after a restart, when its message has long been acknowledged and is gone.
    """
    return uuid.uuid5(_GROUPS, service_name).bytes


def render_inquiry(inquiry: Inquiry) -> bytes:
    """The body of MissingRoute; the service name is one that XML can hold."""
    texts = {"SERVICE_NAME": inquiry.service_name}
    if inquiry.broker_instance is not None:
        texts["BROKER_INSTANCE"] = str(inquiry.broker_instance).upper()
    return render_flat_xml(FlatXml("MissingRoute", MISSING_ROUTE, texts))


def parse_inquiry(body: bytes) -> Inquiry:
    """
    What a body of MissingRoute asks for.

    Raises:
        ValueError: it is no such document, names no service, or a broker instance that is no GUID.
    """
    document = parse_flat_xml(body)
    if (document.name, document.namespace) != ("MissingRoute", MISSING_ROUTE):
        raise ValueError(f"the document is {document.name!r} of {document.namespace!r}, not MissingRoute")
    service_name = document.texts.get("SERVICE_NAME", "")
    if not service_name:
        raise ValueError("it has no SERVICE_NAME")
    instance = document.texts.get("BROKER_INSTANCE", "").strip()
    return Inquiry(service_name, uuid.UUID(instance) if instance else None)


def type_of(message_type: str) -> str:
    """A message type in its `http` form: the documentation of the original has both."""
    return "http:" + message_type.removeprefix("https:") if message_type.startswith("https:") else message_type


# --- asking ---
# Requests for routes as a database keeps them: begun, found again after a restart, and closed when they were
# answered.
#
# Runs in the writer thread, but for `answer`, which is the other side's and an application's. A request is an
# ordinary
# dialog with the largest lifetime there is; what it asks for is told by its conversation group. Service and queue are
# made when the first one is begun. A dialog that was answered is remembered as long as every closed one, so that a
# repeated END is still acknowledged.


FAILED = 9761  # the original's message for a request that ended with an error
ANSWER_SECONDS = 7 * 86_400.0  # for which an answer is sent again until who asked has it; then that asks nobody
_BATCH = 1000  # messages taken from the queue at a time


@dataclass(frozen=True, slots=True)
class Request:
    """An open request. Shape: `group` tells what it asks for (`group_of`); `asked_at` UTC seconds since 1970."""

    handle: uuid.UUID
    group: bytes
    asked_at: float


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended. Shape: `code` 0 when who was asked said that all is done."""

    handle: uuid.UUID
    code: int = 0
    description: str = ""


@dataclass(slots=True)
class Progress:
    """What came of one look at the database."""

    begun: list[Request] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)


def open_requests_in_writer(db: sqlite3.Connection) -> list[Request]:
    """
    The requests that wait for their answer.

    Cost: one look-up in a database that has never asked; else it reads all conversations, once a start.
    """
    if SERVICE_BROKER not in services(db):
        return []
    rows = route_request.open_requests(db, SERVICE_BROKER, BROKER_CONFIGURATION)
    return [Request(uuid.UUID(bytes=handle), group, created) for handle, group, created in rows]


def ask_in_writer(db: sqlite3.Connection, inquiries: Iterable[Inquiry], known: Iterable[uuid.UUID]) -> Progress:
    """
    Begin requests, and see what became of those that are known.

    Raises:
        sqlite3.Error, StoreUnavailableError: nothing of it was done.
    """
    progress = Progress()
    with writing(db):
        _take_endings(db, progress)
        told = {ending.handle for ending in progress.endings}
        progress.endings += [Ending(handle) for handle in known if handle not in told and _is_over(db, handle)]
        progress.begun = [_begin(db, inquiry) for inquiry in inquiries]
    return progress


def answer(db: sqlite3.Connection, dialog: Dialog, *, code: int = 0, description: str = "") -> None:
    """
    END CONVERSATION by who was asked, plain or with an error, in the transaction of `db`.

    The lifetime that such a dialog has from its other side, 68 years, is that of this end no more: it would be
    remembered for as long.

    Raises:
        ConversationError: 8462 ended before; 8426 unknown; 8424 a description without a code.
        StoreUnavailableError: the database stayed locked.
    """
    route_request.shorten_lifetime(db, dialog.conversation_handle.bytes, time.time() + ANSWER_SECONDS)
    dialog.end(error=code or None, description=description)


def _begin(db: sqlite3.Connection, inquiry: Inquiry) -> Request:
    _provide_service(db)
    dialog = begin_dialog(
        db,
        from_service=SERVICE_BROKER,
        to_service=BROKER_CONFIGURATION,
        contract=CONTRACT,
        lifetime=LIFETIME_MAX,
        encryption=False,  # what it asks for is no secret, and is mostly answered in this very instance
    )
    group = group_of(inquiry.service_name)
    route_request.put_group(db, dialog.conversation_handle.bytes, group)
    dialog.send(render_inquiry(inquiry), type=MISSING_ROUTE)
    return Request(dialog.conversation_handle, group, time.time())


def _provide_service(db: sqlite3.Connection) -> None:
    """Others may begin a dialog with it under the one contract it takes, and are refused when that is read."""
    if SERVICE_BROKER in services(db):
        return
    if QUEUE not in queues(db):
        put_queue(db, QUEUE, is_receive_enabled=True)
    put_service(db, SERVICE_BROKER, queues(db)[QUEUE].queue_id, frozenset({CONTRACT}))


def _take_endings(db: sqlite3.Connection, progress: Progress) -> None:
    """Read the queue empty and end what the other side has ended."""
    known = queues(db).get(QUEUE)
    if known is None or not known.is_receive_enabled:
        return
    over: set[uuid.UUID] = set()
    while messages := receive(db, queue=QUEUE, top=_BATCH):
        for message in messages:
            handle = message.dialog.conversation_handle
            if handle in over:
                continue
            if message.is_end or message.is_error:
                over.add(handle)
                message.dialog.end()
                progress.endings.append(_ending(message))
            elif not route_request.is_begun_here(db, handle.bytes):
                over.add(handle)
                message.dialog.end(error=FAILED, description=f"the service {SERVICE_BROKER} only asks")


def _ending(message: Message) -> Ending:
    handle = message.dialog.conversation_handle
    if message.is_end:
        return Ending(handle)
    try:
        texts = parse_flat_xml(message.body).texts
        return Ending(handle, int(texts.get("Code", FAILED)), texts.get("Description", texts.get("Message", "")))
    except ValueError as error:
        return Ending(handle, FAILED, f"its error cannot be read: {error}")


def _is_over(db: sqlite3.Connection, handle: uuid.UUID) -> bool:
    """Whether an open request ended in another way: an administrator ended it, or somebody else read the queue."""
    state = route_request.state_of(db, handle.bytes)
    if state in (ConversationState.DISCONNECTED_INBOUND, ConversationState.ERROR):
        get_dialog(db, handle).end()
    elif state not in TAKES_MESSAGES:
        route_request.put_lifetime(db, handle.bytes, time.time() + ANSWER_SECONDS)
    return state not in TAKES_MESSAGES


# --- inquirer ---
# Who asks for routes that are missing: one request per service name, however many conversations and frames wait.
#
# Whoever meets matching step 4 says so (`ask`), every time; that costs a look-up. What was asked stays open until who
# was asked ends the dialog, be it years: without an answer there is no new request. After the answer nothing is asked
# about the same service for RETRY_SECONDS; by then either there is a route, or whoever still waits says so again. So
# nothing has to be remembered about who waits, and nobody is asked for what nobody wants any more.
#
# A gateway hears service names that strangers invented. What is open or was answered a moment ago is bounded, and
# with
# it what requests take on the disk; above the bound no request is made.
#
# Source: Service Broker documentation, "Service Broker Dynamic Routing"; messages 9761, 9770.


RETRY_SECONDS = 10.0  # before the same is asked again: the time-out of the original, as for a delayed conversation
REQUESTS_MAX = 1000  # open or answered a moment ago: a thousand new services in ten seconds, or some 70 MB an hour
LOOK_SECONDS = 10.0  # between two looks at open requests, for those that an administrator has ended
FAILURE_PAUSE = 1.0  # seconds of rest after the store failed

log = structlog.get_logger(__name__)
_T = TypeVar("_T")


class InWriter(Protocol):
    """The port to the thread that owns the database's connection."""

    def __call__(self, work: Callable[[DaemonConnection], _T]) -> Awaitable[_T]:
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
