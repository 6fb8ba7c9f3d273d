"""
One message to the far side and its answer, through services that are there for nothing else.

Run by each side on its own database, in its own transactions, as an application does; what is told is what the file
says of the dialog afterwards.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass

from broker.application.dialog import begin_dialog
from broker.application.message import Message
from broker.application.receiving import receive
from broker.control.pairing import Trial
from broker.store.secured import find_security

PAUSE_SECONDS = 1.0  # between two attempts
_QUESTION, _ANSWER = b"broker pair: are you there, ", b"broker pair: I am, "


@dataclass(frozen=True, slots=True)
class Seen:
    """
    What came of it.

    Shape: `problem` empty when all went well; `security` FULL, ANONYMOUS, or empty for clear text; `far_certificate`
    "sha256:..." of who signed what came; `seconds` it took.
    """

    problem: str = ""
    security: str = ""
    far_certificate: str = ""
    seconds: float = 0.0


def begin_trial(db: sqlite3.Connection, trial: Trial, *, number: str, seconds: float) -> Seen:
    """
    Send the question and wait for the answer.

    A daemon takes new certificates within seconds; a dialog that begins before that fails, and another one is begun.
    """
    begun = time.monotonic()
    while True:
        with db:
            dialog = begin_dialog(
                db, from_service=trial.own, to_service=trial.far, lifetime=2 * seconds, encryption=True
            )
            dialog.send(_QUESTION + number.encode())
        message = _next(db, trial, begun + seconds)
        seen = _judged(message, _ANSWER + number.encode(), "no answer came", seconds)
        if seen is None:
            security, certificate = find_security(db, dialog.conversation_id.bytes, is_initiator=True)
            seen = Seen("", security, certificate, time.monotonic() - begun)
        with db:
            dialog.end()
        if message is None or not message.is_error or time.monotonic() + PAUSE_SECONDS > begun + seconds:
            return seen
        time.sleep(PAUSE_SECONDS)


def answer_trial(db: sqlite3.Connection, trial: Trial, *, number: str, seconds: float) -> Seen:
    """Wait for the question, answer it, and wait until the far side has ended the dialog."""
    begun = time.monotonic()
    deadline = begun + seconds
    message = _next(db, trial, deadline, reply=_ANSWER + number.encode())
    seen = _judged(message, _QUESTION + number.encode(), "no message came", seconds)
    if seen is not None:
        return seen
    assert message is not None
    security, certificate = find_security(db, message.dialog.conversation_id.bytes, is_initiator=False)
    seen = Seen("", security, certificate, time.monotonic() - begun)
    _next(db, trial, deadline)  # the far side has the answer and ends
    with db:
        message.dialog.end()
    return seen


def _next(db: sqlite3.Connection, trial: Trial, deadline: float, reply: bytes = b"") -> Message | None:
    """The next message, answered in the transaction that takes it; None when the time is over."""
    while (left := deadline - time.monotonic()) > 0:
        with db:
            messages = receive(db, queue=trial.queue, top=1, wait=min(left, 5.0))
            if reply and messages and not (messages[0].is_error or messages[0].is_end):
                messages[0].dialog.send(reply)
        if messages:
            return messages[0]
    return None


def _judged(message: Message | None, expected: bytes, nothing: str, seconds: float) -> Seen | None:
    """What is wrong with what came; None when nothing is."""
    if message is None:
        return Seen(f"{nothing} within {seconds:g} s")
    if message.is_error:
        return Seen(f"the dialog has ended with an error: {message.body.decode('utf-8', 'backslashreplace')}")
    return None if message.body == expected else Seen("something else came than what was sent")
