"""
The handler: reads requests from a queue, makes the routes that were asked for, and ends each dialog.

A request stays in its queue until it was answered, and the transaction that answers it is short: no database is locked
while the DNS or another instance is asked, because that may be the instance that serves this very database. So a
handler that dies in between answers again after its restart, and two handlers on one queue do the same work twice;
both are harmless, as making a route that exists gives it a new life.

What cannot be answered is refused at once with the reason, and who asked asks again later. Only while the requesting
instance does not answer does a request wait here.
"""

import sqlite3
import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import structlog

from broker.client.receiving import Message, receive
from broker.ddl.statements import CreateRoute
from broker.dialog.route_requests import CONTRACT, MISSING_ROUTE, Inquiry, answer, parse_flat_xml
from broker.errors import ConversationError, DaemonUnreachableError, StoreUnavailableError

from .requester import UNKNOWN_REQUESTER, Requester, Requesters
from .srv import NO_ROUTE

MISSING_BINDING = f"{CONTRACT}/MissingRemoteServiceBinding"  # the other request of the contract
BAD_REQUEST = 9615  # the original's message for a message that fails its validation
BATCH = 1000  # requests looked at in a row; what one instance has open at most
WAIT_SECONDS = 0.5  # for a request, between two looks at `stop`
RETRY_SECONDS = 2.0  # before a request is tried again whose instance did not answer

log = structlog.get_logger(__name__)


class Source(Protocol):
    """Where routes come from."""

    def find(self, inquiry: Inquiry) -> Sequence[CreateRoute]:
        """The routes to a service, none when there are none; raises ConversationError to say why."""


class Answerer:
    """
    One handler on one queue. `stop` may be set from a signal handler or another thread.

    Shape: `db` an application's connection, in no transaction; `sources` asked in order, the first that has a route
    gives it; `answered`, `refused` requests since the start.
    """

    def __init__(
        self, db: sqlite3.Connection, queue: str, *, sources: Sequence[Source], requesters: Requesters
    ) -> None:
        self.stop = threading.Event()
        self.answered = 0
        self.refused = 0
        self._db = db
        self._queue = queue
        self._sources = sources
        self._requesters = requesters

    def run(self) -> None:
        """Answer until told to stop."""
        while not self.stop.is_set():
            try:
                left = self.answer_waiting(wait=WAIT_SECONDS)
            except StoreUnavailableError as error:
                log.warning("requests cannot be read", reason=str(error))
                left = 1
            if left:
                self.stop.wait(RETRY_SECONDS)

    def answer_waiting(self, *, wait: float = 0.0) -> int:
        """
        Answer what waits in the queue.

        Returns:
            How many requests stay there, because the instance that asks does not answer now.

        Raises:
            ConversationError: 208 no such queue; 9617 the queue is disabled.
            StoreUnavailableError: the database stayed locked.
        """
        try:
            messages = receive(self._db, queue=self._queue, top=BATCH, wait=wait)
        finally:
            self._db.rollback()  # they stay where they are until they are answered
        return sum(not self._answer(message) for message in messages if not self.stop.is_set())

    def _answer(self, message: Message) -> bool:
        """Whether the request is done with."""
        if message.is_end or message.is_error:
            self._end(message)
            return True
        try:
            inquiry = _inquiry_of(message)
            routes = self._routes(inquiry)
            requester = self._requester(message)
            requester.put_routes(routes)
        except ConversationError as refusal:
            self.refused += 1
            log.warning("request refused", number=refusal.number, reason=refusal.problem)
            self._end(message, code=refusal.number, description=refusal.problem)
        except DaemonUnreachableError as error:
            log.warning("request waits", reason=str(error))
            return False
        else:
            self.answered += 1
            names = [route.name for route in routes]
            log.info("request answered", service=inquiry.service_name, database=requester.name, routes=names)
            self._end(message)
        return True

    def _requester(self, message: Message) -> Requester:
        instance = message.dialog.far_broker_instance
        if instance is None:
            raise ConversationError(UNKNOWN_REQUESTER, "nothing is known of the database that asks")
        return self._requesters.find(instance)

    def _end(self, message: Message, *, code: int = 0, description: str = "") -> None:
        with suppress(ConversationError), self._db:  # ended before: by another reader, or by a message before this one
            answer(self._db, message.dialog, code=code, description=description)

    def _routes(self, inquiry: Inquiry) -> Sequence[CreateRoute]:
        refusal = ConversationError(NO_ROUTE, f"no route to {inquiry.service_name!r} is known here")
        for source in self._sources:
            try:
                routes = source.find(inquiry)
            except ConversationError as error:
                refusal = error
            else:
                if routes:
                    return routes
        raise refusal


def parse_inquiry(body: bytes) -> Inquiry:
    """
    Parse a body of MissingRoute.

    Raises:
        ValueError: it is not such a document, names no service, or a broker instance that is not a GUID.
    """
    document = parse_flat_xml(body)
    if (document.name, document.namespace) != ("MissingRoute", MISSING_ROUTE):
        raise ValueError(f"the document is {document.name!r} of {document.namespace!r}, not MissingRoute")
    service_name = document.texts.get("SERVICE_NAME", "")
    if not service_name:
        raise ValueError("it has no SERVICE_NAME")
    instance = document.texts.get("BROKER_INSTANCE", "").strip()
    return Inquiry(service_name, uuid.UUID(instance) if instance else None)


def _inquiry_of(message: Message) -> Inquiry:
    kind = message.type
    if kind.startswith("https:"):  # the documentation of the original has both forms
        kind = "http:" + kind.removeprefix("https:")
    if kind == MISSING_BINDING:
        raise ConversationError(BAD_REQUEST, "requests for remote service bindings are not supported")
    if kind != MISSING_ROUTE:
        raise ConversationError(BAD_REQUEST, f"the message type {message.type!r} is not supported")
    try:
        return parse_inquiry(message.body)
    except ValueError as error:
        raise ConversationError(BAD_REQUEST, f"the request cannot be read: {error}") from error
