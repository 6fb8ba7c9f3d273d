"""
What an initiator means to do with a dialog, drawn by the seed before the dialog begins, and what is said on it.

How a dialog ends is told to nobody but by what is done: the target learns it from the type of the last message, or from
the end. A dialog that its initiator ends, or in which timers are set, has a lifetime that no fault outlasts, so nothing
excuses an end or a timer that does not come; one that is cleaned up has a brief one, for its target may never be told.
No target cleans up: what comes again would begin the dialog again there.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from msgspec.structs import replace

import broker
from broker.conversation.message_types import DEFAULT
from tests.chaos.history import Event, What

SIZES = ((100, 2000), (2000, 20_000), (100_000, 200_000))  # bytes, least and most
SIZE_WEIGHTS = (90, 9, 1)
MESSAGE, CLOSE = "//chaos/Message", "//chaos/Close"
LAST = "//chaos/Last"  # behind it the initiator ends the dialog
URGENT, PATIENT = "//chaos/Urgent", "//chaos/Patient"
LEVELS = {DEFAULT: 5, URGENT: 9, PATIENT: 2}  # priority of a dialog by its contract
ERROR_SHARE = 0.15  # of the dialogs that a target ends with an error
ERROR_CODE = 31  # of such an error
HEADERS_SHARE = 0.3  # of the messages

NO_LOOK = Event(What.END)  # nothing is known of the RECEIVE that gave a message
Rest = Callable[[broker.Dialog], Iterable[Event]]
"""Receives what waits of a dialog that has failed, and tells of it."""


def answer_all(
    messages: Iterable[broker.Message],
    events: list[Event],
    *,
    draft: str,
    look: Event = NO_LOOK,
    rest: Rest | None = None,
) -> None:
    """
    Answer each of these, and end each dialog behind its last; what was done is put behind `events`.

    Args:
        messages: As they were received.
        events: What is told.
        look: What is told of the RECEIVE that gave them.
        draft: Of the transaction, when it is to be rolled back.
        rest: Asked behind all of them for each dialog that has failed: an error comes before what waits, of which one
            RECEIVE may have given a part only.
    """
    over: set[str] = set()
    failed: dict[str, broker.Dialog] = {}
    for message in messages:
        told = received_event(message, is_initiator=False, look=look)
        events.append(told)
        if told.conversation in over:
            continue
        if told.what is What.RECEIVED:
            if not _answer(message, told, events, draft) or message.type != CLOSE:
                continue
            events.append(_end(message.dialog, told.conversation))
        else:
            failed[told.conversation] = message.dialog
        over.add(told.conversation)
    for conversation, dialog in failed.items():
        events.extend(rest(dialog) if rest is not None else ())
        dialog.end()
        events.append(Event(What.ENDED, conversation, is_initiator=False))


def _end(dialog: broker.Dialog, conversation: str) -> Event:
    """A target ends a dialog of its own accord; some with an error, the same whenever it is asked."""
    if random.Random(f"{conversation} end").random() >= ERROR_SHARE:
        dialog.end()
        return Event(What.ENDED, conversation, is_initiator=False)
    note = f"{conversation} is not wanted"
    dialog.end(error=ERROR_CODE, description=note)
    return Event(What.ENDED, conversation, is_initiator=False, number=ERROR_CODE, note=note)


def _answer(message: broker.Message, told: Event, events: list[Event], draft: str) -> bool:
    """Whether the dialog could take it."""
    body = body_of(told.conversation, told.number, is_initiator=False, draft=draft)
    headers = headers_of(told.conversation, told.number, is_initiator=False)
    try:
        number = message.dialog.send(body, type=MESSAGE, headers=headers)
    except broker.ConversationError as error:
        if error.number not in (8429, 8489):
            raise
        return False
    events.append(sent_event(told.conversation, number, body, MESSAGE, headers, is_initiator=False))
    return True


def body_of(conversation: str, number: int, *, is_initiator: bool, draft: str = "") -> bytes:
    """The body of a message: another one for each, the same whenever it is asked for."""
    begin = f"{conversation} {'request' if is_initiator else 'answer'} {number} {draft}".encode()
    dice = random.Random(begin)
    size = dice.randint(*dice.choices(SIZES, SIZE_WEIGHTS)[0])
    return begin + dice.randbytes(size)


def headers_of(conversation: str, number: int, *, is_initiator: bool) -> dict[str, str]:
    """The headers of a message, none of most: the same whenever they are asked for."""
    dice = random.Random(f"{conversation} {is_initiator} {number} headers")
    if dice.random() >= HEADERS_SHARE:
        return {}
    return {f"chaos-{place}": f"{dice.getrandbits(64):x} ß" * dice.randint(0, 4) for place in range(dice.randint(1, 4))}


def sent_event(
    conversation: str, number: int, body: bytes, type_name: str, headers: Mapping[str, str], *, is_initiator: bool
) -> Event:
    """A message that was sent."""
    beside = _beside(type_name, headers)
    return Event(
        What.SENT, conversation, is_initiator=is_initiator, number=number, digest=digest_of(body), beside=beside
    )


def received_event(message: broker.Message, *, is_initiator: bool, look: Event) -> Event:
    """What was received; `look` tells of the RECEIVE that gave it."""
    told = replace(
        look,
        what=What.END,
        until=look.until if message.is_timer else 0.0,
        conversation=str(message.dialog.conversation_id),
        is_initiator=is_initiator,
        stored_at=message.message_enqueue_time.timestamp(),
        priority=message.priority,
        group=str(message.conversation_group_id),
    )
    if message.is_end:
        return told
    if message.is_timer:
        return replace(told, what=What.TIMER)
    if message.is_error:
        code, note = message.error_code or 0, message.error_description or ""
        return replace(told, what=What.ERROR, number=code, note=note)
    number, digest = message.message_sequence_number, digest_of(bytes(message.body))
    beside = _beside(message.type, message.headers)
    return replace(told, what=What.RECEIVED, number=number, digest=digest, beside=beside)


def digest_of(body: bytes) -> str:
    """What a body is known by."""
    return hashlib.sha256(body).hexdigest()[:24]


def _beside(type_name: str, headers: Mapping[str, str]) -> str:
    return json.dumps([type_name, dict(headers)], sort_keys=True)


MESSAGES = (6, 30)  # on a dialog, least and most
LIFETIME = 3600.0
BRIEF_SECONDS = (3.0, 6.0)  # lifetime of a brief dialog
BRIEF_SHARE = 0.15  # of those that may be brief
TIMERS_SHARE, TIMER_SECONDS = 0.25, (0.3, 2.0)  # of those that may have timers; until one is due
RELATED_SHARE = 0.3
HASTY_SHARE = 0.5  # of those that are cleaned up


class Close(StrEnum):
    """Who ends a dialog first, and how."""

    TARGET = "the target, behind the last message"
    ANSWERED = "the initiator, when it has all answers"
    BEHIND = "the initiator, right behind its last message"
    ERROR = "the initiator, with an error"
    CLEANUP = "the initiator forgets it, and tells nobody"


CLOSES = {Close.TARGET: 54, Close.ANSWERED: 16, Close.BEHIND: 10, Close.ERROR: 10, Close.CLEANUP: 10}
CONTRACTS = {DEFAULT: 60, URGENT: 20, PATIENT: 20}


@dataclass(frozen=True)
class Plan:
    """
    What is to be done with a dialog.

    Shape: `total` messages that are sent; `timers` seconds until each of the timers that are set one after the other,
    before the last message; `is_hasty` whether a dialog is cleaned up before any answer has come.
    """

    close: Close
    total: int
    lifetime: float
    contract: str
    timers: tuple[float, ...]
    is_related: bool
    is_hasty: bool

    def type_of(self, number: int) -> str:
        """The type of a message of the initiator."""
        if number + 1 < self.total or self.close in (Close.ERROR, Close.CLEANUP):
            return MESSAGE
        return LAST if self.close is Close.ANSWERED else CLOSE


def make_plan(seed: str, *, may_fail: bool) -> Plan:
    """
    Draw one.

    Args:
        seed: Another one for each dialog.
        may_fail: Whether the initiator may end it with an error: a reader that is given one message at a time would
            read the error before what waits.
    """
    dice = random.Random(seed)
    [close] = dice.choices(list(CLOSES), list(CLOSES.values()))
    [contract] = dice.choices(list(CONTRACTS), list(CONTRACTS.values()))
    if close is Close.ERROR and not may_fail:
        close = Close.BEHIND
    is_brief = close is Close.CLEANUP or (close is Close.TARGET and dice.random() < BRIEF_SHARE * 2)
    timers = dice.randint(1, 2) if not is_brief and dice.random() < TIMERS_SHARE else 0
    return Plan(
        close,
        total=dice.randint(*MESSAGES),
        lifetime=round(dice.uniform(*BRIEF_SECONDS)) if is_brief else LIFETIME,
        contract=contract,
        timers=tuple(round(dice.uniform(*TIMER_SECONDS), 1) for _ in range(timers)),
        is_related=dice.random() < RELATED_SHARE,
        is_hasty=dice.random() < HASTY_SHARE,
    )
