"""
The application at one end: what it does with its dialogs, and the exact record of what it has committed.

The record is the model. It changes only when a transaction of the application has committed, so it says what has to be
delivered, and in which order.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from broker.client.dialog import Dialog, get_dialog
from broker.client.receiving import Message, receive
from broker.errors import ConversationError
from broker.store.sqlite.quarantine import failures, resume
from tests.simulation.story import Deed, Habit
from tests.support.dialog import QUEUE, rows

ENDED = frozenset({8426, 8429, 8462, 8489, 8410})  # what may be answered to who is too late
ERROR_NUMBER = 4711


@dataclass(eq=False)
class Side:
    """What is true of one side of one dialog. Shape: `timer` UTC instant for which a timer is set."""

    sent: list[bytes] = field(default_factory=list)
    got: list[bytes] = field(default_factory=list)
    has_ended: bool = False
    is_told: bool = False  # it ended because the far side had, or because of an error
    has_failed: bool = False  # an error was sent or received here
    timer: float | None = None


class Application:
    """
    One side's application on a connection of its own.

    Shape: `sides` by conversation_id, in the order of their first use; `note` is told each thing done.
    """

    def __init__(self, name: str, path: Path, chance: random.Random, note: Callable[[str], None]) -> None:
        self.name = name
        self.db = sqlite3.connect(path, isolation_level=None)
        self.sides: dict[uuid.UUID, Side] = defaultdict(Side)
        self._random = chance
        self._note = note
        self._after_commit: list[Callable[[], None]] = []

    # --- transactions ---

    @contextmanager
    def _transaction(self, *, is_kept: bool) -> Iterator[None]:
        """What the model learns in it becomes true with the commit, or never."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.db.execute("ROLLBACK")
            self._after_commit.clear()
            raise
        self.db.execute("COMMIT" if is_kept else "ROLLBACK")
        if is_kept:
            for change in self._after_commit:
                change()
        self._after_commit.clear()

    def find(self, conversation: uuid.UUID) -> Dialog | None:
        """This side of a dialog, None when there is none."""
        query = "SELECT conversation_handle FROM broker_conversation WHERE conversation_id = ?"
        found = rows(self.db, query, conversation.bytes)
        return get_dialog(self.db, uuid.UUID(bytes=found[0])) if found else None

    # --- deeds ---

    def do(self, deed: Deed, dialog: Dialog) -> None:
        """Do it; who is too late for it is told so, and nothing has happened then."""
        self._note(f"{self.name}: {deed.what} {deed.amount} on dialog {deed.dialog}")
        try:
            with self._transaction(is_kept=deed.what != "rollback"):
                self._do(deed, dialog)
        except ConversationError as error:
            _check_is_too_late(error)
            self._note(f"{self.name}: refused with {error.number}")

    def _do(self, deed: Deed, dialog: Dialog) -> None:
        side = self.sides[dialog.conversation_id]
        if deed.what == "send":
            self._send(dialog, deed.amount)
        elif deed.what in ("many", "rollback"):
            bodies = [self.body(self._random.choice([0, 30, 150])) for _ in range(deed.amount)]
            dialog.send_many(bodies)
            self._after_commit.append(lambda: side.sent.extend(bodies))
        elif deed.what == "timer":
            due = time.time() + deed.amount / 10
            dialog.set_timer(deed.amount / 10)
            self._after_commit.append(lambda: setattr(side, "timer", due))
        elif deed.what == "cancel":
            dialog.cancel_timer()
            self._after_commit.append(lambda: setattr(side, "timer", None))
        else:
            self.end(dialog, error=ERROR_NUMBER if deed.what == "error" else None)

    def body(self, size: int) -> bytes:
        """Of a message, so many bytes long."""
        return self._random.randbytes(size)

    def _send(self, dialog: Dialog, size: int) -> None:
        body = self.body(size)
        sequence = dialog.send(body)
        sent = self.sides[dialog.conversation_id].sent
        assert sequence >= len(sent)
        self._after_commit.append(lambda: sent.append(body))

    def end(self, dialog: Dialog, *, error: int | None = None, is_told: bool = False) -> None:
        """END CONVERSATION, in a transaction or by itself."""
        side = self.sides[dialog.conversation_id]
        dialog.end(error=error)

        def change() -> None:
            side.has_ended, side.timer = True, None
            side.is_told |= is_told
            side.has_failed |= error is not None

        if self.db.in_transaction:
            self._after_commit.append(change)
        else:
            change()

    # --- reading ---

    def read(self, habit: Habit, *, is_settling: bool) -> None:
        """One transaction of the reader; while it settles, none is rolled back and nothing new is begun."""
        if not self.db.execute("SELECT EXISTS (SELECT 1 FROM broker_message)").fetchone()[0]:
            return  # most looks find nothing, and a story has a thousand
        is_kept = is_settling or self._random.random() >= habit.rollback
        for failure in list(failures(self.db)):
            if failure.quarantine_time is not None:
                with self._transaction(is_kept=True):
                    resume(self.db, failure.endpoint_id)
        over: set[uuid.UUID] = set()
        messages: list[Message] = []
        with self._transaction(is_kept=is_kept):
            messages = receive(self.db, queue=QUEUE, top=habit.top)
            for message in messages:
                if message.dialog.conversation_id not in over:
                    self._take(message, over, 0.0 if is_settling else habit.answer)
        if messages:
            self._note(f"{self.name}: received {len(messages)}{'' if is_kept else ', rolled back'}")

    def _take(self, message: Message, over: set[uuid.UUID], answer: float) -> None:
        dialog = message.dialog
        side = self.sides[dialog.conversation_id]
        assert not side.has_ended, f"{self.name}: a message after the end of this side"
        if message.is_timer:
            enqueued = message.message_enqueue_time.timestamp()
            if side.timer is not None and enqueued >= side.timer - 0.001:
                self._after_commit.append(lambda: setattr(side, "timer", None))
        elif message.is_end or message.is_error:
            over.add(dialog.conversation_id)
            if message.is_error:
                self._after_commit.append(lambda: setattr(side, "has_failed", True))
            self.end(dialog, is_told=True)
        else:
            body = message.body
            self._after_commit.append(lambda: side.got.append(body))
            if self._random.random() < answer:
                try:
                    self._send(dialog, self._random.choice([0, 5, 700]))
                except ConversationError as error:
                    _check_is_too_late(error)


def _check_is_too_late(error: ConversationError) -> None:
    assert error.number in ENDED, error


async def carry_out(deeds: Iterable[Deed], dialogs: Sequence[Dialog], applications: Mapping[str, Application]) -> None:
    """All that the story has the applications do, each in its time."""
    for deed in deeds:
        await asyncio.sleep(deed.after)
        application = applications[deed.side]
        dialog = application.find(dialogs[deed.dialog].conversation_id)
        if dialog is not None:
            application.do(deed, dialog)


async def keep_reading(
    application: Application, habit: Habit, chance: random.Random, is_settling: Callable[[], bool]
) -> None:
    """Read now and then, until it is cancelled."""
    while True:
        await asyncio.sleep(chance.uniform(habit.pause / 2, habit.pause))
        application.read(habit, is_settling=is_settling())
