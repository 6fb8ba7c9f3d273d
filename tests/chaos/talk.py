"""
What is said on the dialogs of a fault run, and how it is told in a history: bodies, answers, ends.

Whether a target ends a dialog with an error of its own, and what is in a body, follows from the conversation id: it is
the same whenever it is asked for, as whoever is killed does it again.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from dataclasses import replace

import broker
from tests.chaos.history import Event, What

SIZES = ((100, 2000), (2000, 20_000), (100_000, 200_000))  # bytes, least and most
SIZE_WEIGHTS = (90, 9, 1)
MESSAGE, CLOSE = "//chaos/Message", "//chaos/Close"
ERROR_SHARE = 0.15  # of the dialogs that a target ends with an error
ERROR_CODE = 31  # of such an error


def answer_all(messages: Iterable[broker.Message], events: list[Event], *, idle_at: float = 0.0) -> None:
    """Answer each of these, and end each dialog behind its last; what was done is put behind `events`."""
    over: set[str] = set()
    for message in messages:
        told = received_event(message, is_initiator=False, idle_at=idle_at)
        events.append(told)
        if told.conversation in over:
            continue
        if told.what is What.RECEIVED and not _answer(message, told, events):
            continue
        if told.what is not What.RECEIVED:
            message.dialog.end()
            events.append(Event(What.ENDED, told.conversation, is_initiator=False))
            over.add(told.conversation)
        elif message.type == CLOSE:
            events.append(_end(message.dialog, told.conversation))
            over.add(told.conversation)


def _end(dialog: broker.Dialog, conversation: str) -> Event:
    """A target ends a dialog of its own accord; some with an error, the same whenever it is asked."""
    if random.Random(f"{conversation} end").random() >= ERROR_SHARE:
        dialog.end()
        return Event(What.ENDED, conversation, is_initiator=False)
    note = f"{conversation} is not wanted"
    dialog.end(error=ERROR_CODE, description=note)
    return Event(What.ENDED, conversation, is_initiator=False, number=ERROR_CODE, note=note)


def _answer(message: broker.Message, told: Event, events: list[Event]) -> bool:
    """Whether the dialog could take it."""
    body = body_of(told.conversation, told.number, is_initiator=False)
    try:
        number = message.dialog.send(body, type=MESSAGE)
    except broker.ConversationError as error:
        if error.number not in (8429, 8489):
            raise
        return False
    events.append(sent_event(told.conversation, number, body, is_initiator=False))
    return True


def body_of(conversation: str, number: int, *, is_initiator: bool) -> bytes:
    """The body of a message: another one for each, the same whenever it is asked for."""
    begin = f"{conversation} {'request' if is_initiator else 'answer'} {number} ".encode()
    dice = random.Random(begin)
    size = dice.randint(*dice.choices(SIZES, SIZE_WEIGHTS)[0])
    return begin + dice.randbytes(size)


def sent_event(conversation: str, number: int, body: bytes, *, is_initiator: bool) -> Event:
    """A message that was sent."""
    return Event(What.SENT, conversation, is_initiator=is_initiator, number=number, digest=digest_of(body))


def received_event(message: broker.Message, *, is_initiator: bool, idle_at: float) -> Event:
    """What was received."""
    stored_at = message.message_enqueue_time.timestamp()
    told = Event(
        What.END,
        str(message.dialog.conversation_id),
        is_initiator=is_initiator,
        stored_at=stored_at,
        idle_at=idle_at,
    )
    if message.is_end:
        return told
    if message.is_error:
        code, note = message.error_code or 0, message.error_description or ""
        return replace(told, what=What.ERROR, number=code, note=note)
    number, digest = message.message_sequence_number, digest_of(bytes(message.body))
    return replace(told, what=What.RECEIVED, number=number, digest=digest)


def digest_of(body: bytes) -> str:
    """What a body is known by."""
    return hashlib.sha256(body).hexdigest()[:24]
