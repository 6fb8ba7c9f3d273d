"""
The applications of the day: what they send and receive, and whether it is what has to come.

An initiator keeps a number of dialogs open, sends on them in turn by the profile of the day, and begins another one
for each that is full. A target takes the messages of each dialog in their order, answers some of them, and ends the
dialog behind its last one; the initiator ends it when it has read that. Either knows of each open dialog which message
comes next, so a message that is lost, doubled or out of order is noticed when the next one comes, and nothing is kept
of a dialog that has ended.
"""

from __future__ import annotations

import sqlite3
import time
from array import array
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from struct import Struct
from typing import Any
from uuid import UUID

import broker
from bench.dialogs import QUEUE
from bench.scenarios.day_profile import DayProfile
from bench.scenarios.timetable import quantile

STAMP = Struct(">IBq")  # number in the dialog, whether it is the last one, when it was due (monotonic nanoseconds)
PAYLOAD = 512
BATCH = 500  # messages in a transaction
OPEN = 40  # dialogs of an initiator at one time
MESSAGES = 100  # of a dialog
ANSWERED_EVERY = 10
TURN_SECONDS = 0.02
FAULTS_TOLD = 20
_FILLING = bytes(PAYLOAD - STAMP.size)


@dataclass(slots=True)
class Tally:
    """
    What an application has done so far, and what was wrong.

    Shape: `latencies` seconds since it was last told, from the moment at which a message was due; `faults` in words.
    """

    sent: int = 0
    received: int = 0
    begun: int = 0
    ended: int = 0
    faults: list[str] = field(default_factory=list)
    latencies: array[float] = field(default_factory=lambda: array("d"))

    def note(self, conversation: UUID, number: int, expected: int, due_at: int) -> None:
        """A message came."""
        self.received += 1
        self.latencies.append((time.monotonic_ns() - due_at) * 1e-9)
        if number != expected and len(self.faults) < FAULTS_TOLD:
            kind = "doubled or out of order" if number < expected else "lost or out of order"
            self.faults.append(f"dialog {conversation}: message {number} came, {expected} had to: {kind}")

    def told(self) -> dict[str, Any]:
        """As a dictionary, the latencies as quantiles; they begin anew."""
        ordered = sorted(self.latencies)
        self.latencies = array("d")
        told = asdict(self) | {"p50_ms": 1e3 * quantile(ordered, 0.5), "p99_ms": 1e3 * quantile(ordered, 0.99)}
        del told["latencies"]
        return told


@dataclass(slots=True)
class Outgoing:
    """A dialog of an initiator. Shape: `sent` messages so far; `answered` answers so far."""

    dialog: broker.Dialog
    sent: int = 0
    answered: int = 0


def send_day(db: sqlite3.Connection, pipe: Connection, name: str, services: list[str], total: int) -> None:
    """(instant, seconds) begins the day, after `ready`; each `told` afterwards is answered with the tally so far."""
    pipe.send(pipe.recv())
    begun, seconds = pipe.recv()
    initiator = Initiator(db, name, services, DayProfile(total), begun=begun, seconds=seconds)
    while True:
        initiator.turn()
        if pipe.poll(TURN_SECONDS):
            pipe.recv()
            pipe.send(initiator.tally.told() | {"is_over": initiator.is_over})


class Initiator:
    """Sends by the profile. Shape: `begun` monotonic nanoseconds; `seconds` that the day lasts."""

    def __init__(
        self, db: sqlite3.Connection, name: str, services: list[str], profile: DayProfile, *, begun: int, seconds: float
    ) -> None:
        self.tally = Tally()
        self._db, self._name, self._services, self._profile = db, name, services, profile
        self._begun, self._seconds = begun, seconds
        self._sending: list[Outgoing] = []
        self._known: dict[UUID, Outgoing] = {}

    @property
    def is_over(self) -> bool:
        """Whether all was sent, and both sides have ended every dialog."""
        return self.tally.sent == self._profile.total and not self._known

    def turn(self) -> None:
        """Send what is due, and take what has come."""
        at = (time.monotonic_ns() - self._begun) * 1e-9 / self._seconds
        due = min(self._profile.due_by(at), self.tally.sent + BATCH)
        if due > self.tally.sent:
            with self._db:
                for number in range(self.tally.sent, due):
                    self._send(number)
            self.tally.sent = due
        with self._db:
            for message in broker.receive(self._db, queue=QUEUE, top=BATCH):
                self._take(message)

    def _send(self, number: int) -> None:
        if len(self._sending) < OPEN:
            self._sending.append(self._begin())
        at = number % len(self._sending)
        outgoing = self._sending[at]
        left = self._profile.total - number
        is_last = outgoing.sent == MESSAGES - 1 or left <= len(self._sending)
        due_at = self._begun + int(self._profile.due_at(number) * self._seconds * 1e9)
        outgoing.dialog.send(STAMP.pack(outgoing.sent, is_last, due_at) + _FILLING)
        outgoing.sent += 1
        if is_last and left > len(self._sending):
            self._sending[at] = self._begin()

    def _begin(self) -> Outgoing:
        service = self._services[self.tally.begun % len(self._services)]
        self.tally.begun += 1
        outgoing = Outgoing(broker.begin_dialog(self._db, from_service=self._name, to_service=service))
        self._known[outgoing.dialog.conversation_id] = outgoing
        return outgoing

    def _take(self, message: broker.Message) -> None:
        conversation = message.dialog.conversation_id
        outgoing = self._known.get(conversation)
        if outgoing is None:
            self.tally.faults.append(f"dialog {conversation}: a message came after its end")
        elif message.is_end or message.is_error:
            expected = len(range(0, outgoing.sent, ANSWERED_EVERY))
            if message.is_error or outgoing.answered != expected:
                problem = f"{outgoing.answered} of {expected} answers; {message.error_description or 'ended'}"
                self.tally.faults.append(f"dialog {conversation}: {problem}")
            message.dialog.end()
            del self._known[conversation]
            self.tally.ended += 1
        else:
            number, _, due_at = STAMP.unpack_from(message.body)
            self.tally.note(conversation, number, outgoing.answered * ANSWERED_EVERY, due_at)
            outgoing.answered += 1


def receive_day(db: sqlite3.Connection, pipe: Connection) -> None:
    """Each `told`, after `ready`, is answered with the tally so far."""
    pipe.send(pipe.recv())
    target = Target(db)
    while True:
        target.turn()
        if pipe.poll():
            pipe.recv()
            pipe.send(target.tally.told())


class Target:
    """Takes, answers and ends."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.tally = Tally()
        self._db = db
        self._expected: dict[UUID, int] = {}

    def turn(self) -> None:
        """Take what has come, in one transaction."""
        with self._db:
            for message in broker.receive(self._db, queue=QUEUE, top=BATCH, wait=TURN_SECONDS):
                self._take(message)

    def _take(self, message: broker.Message) -> None:
        conversation = message.dialog.conversation_id
        if message.is_end or message.is_error:
            problem = message.error_description or "ended by the initiator before its last message"
            self.tally.faults.append(f"dialog {conversation}: {problem}")
            message.dialog.end()
            self._expected.pop(conversation, None)
            return
        number, is_last, due_at = STAMP.unpack_from(message.body)
        self.tally.begun += conversation not in self._expected
        self.tally.note(conversation, number, self._expected.get(conversation, 0), due_at)
        self._expected[conversation] = number + 1
        if number % ANSWERED_EVERY == 0:
            message.dialog.send(message.body)
        if is_last:
            message.dialog.end()
            del self._expected[conversation]
            self.tally.ended += 1
