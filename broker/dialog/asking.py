"""
Requests for routes as a database keeps them: begun, found again after a restart, and closed when they were answered.

Runs in the writer thread, but for `answer`, which is the other side's and an application's. A request is an ordinary
dialog with the largest lifetime there is; what it asks for is told by its conversation group. Service and queue are
made when the first one is begun. A dialog that was answered is remembered as long as every closed one, so that a
repeated END is still acknowledged.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from broker.application.dialog import Dialog, begin_dialog, get_dialog
from broker.application.message import Message
from broker.application.receiving import receive
from broker.conversation.message_types import LIFETIME_MAX
from broker.conversation.state import TAKES_MESSAGES, State
from broker.dialog.flat_xml import parse_flat_xml
from broker.dialog.inquiry import CONTRACT, MISSING_ROUTE, QUEUE, Inquiry, group_of, render_inquiry
from broker.routing.route import BROKER_CONFIGURATION, SERVICE_BROKER
from broker.store import route_request
from broker.store.metadata import put_queue, put_service, queues, services
from broker.store.transaction import writing

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
    if state in (State.DISCONNECTED_INBOUND, State.ERROR):
        get_dialog(db, handle).end()
    elif state not in TAKES_MESSAGES:
        route_request.put_lifetime(db, handle.bytes, time.time() + ANSWER_SECONDS)
    return state not in TAKES_MESSAGES
