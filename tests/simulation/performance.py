"""
What the applications of a story do, by numbers, and what must have become of it.

The applications' records are the model: they change only when a transaction has committed, so they say what has to be
delivered, and in which order.
"""

import asyncio
import random
import sqlite3
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from broker.client.dialog import Dialog, get_dialog
from broker.client.receiving import Message, receive
from broker.conversation.frames import Travel
from broker.conversation.window import Backoff
from broker.dialog.transmitter import DialogTuning
from broker.errors import ConversationError, StoreUnavailableError
from broker.store.port import WriteBatch, WriteResult
from broker.store.sqlite.inspect import read_balance
from broker.store.sqlite.quarantine import failures, resume
from broker.store.sqlite.transaction import epoch
from broker.store.sqlite.write_batch import SqliteStore
from tests.support.dialog import QUEUE, rows

SIDES = ("shop", "bank")
DAY = 86_400.0
TUNING = DialogTuning(Backoff(0.2, 2.0), Travel(), window=16, fragment_size=100)

S = TypeVar("S", bound=Any)


@dataclass(frozen=True)
class Deed:
    """
    What an application does.

    Shape: `after` seconds since the deed before; `side`; `what` send, rollback, many, timer, cancel, end or error;
    `dialog` its number; `amount` bytes of a body, messages of `many` and `rollback`, seconds/10 of a timer.
    """

    after: float
    side: str
    what: str
    dialog: int
    amount: int = 0


@dataclass(frozen=True)
class Blow:
    """
    What happens to a process or between two. Shape: `at` and `seconds`, when and for how long.
    """

    at: float
    what: str
    name: str
    other: str
    seconds: float


@dataclass(frozen=True)
class Habit:
    """How an application reads. Shape: `pause` seconds at most between two receives; `rollback`, `answer` chances."""

    pause: float = 0.05
    top: int = 5
    rollback: float = 0.0
    answer: float = 0.0


def draw_deed(chance: random.Random, dialogs: int) -> Deed:
    what = chance.choices(
        ["send", "many", "rollback", "timer", "cancel", "end", "error"], weights=[12, 4, 2, 2, 1, 1, 0.5]
    )[0]
    amounts = {"send": [0, 1, 99, 100, 101, 350, 2500], "many": [2, 10, 40], "rollback": [1, 5], "timer": [1, 5, 20]}
    return Deed(
        after=chance.choice([0.0, 0.0, 0.01, 0.3]),
        side=chance.choice(["shop", "shop", "bank"]),
        what=what,
        dialog=chance.randrange(dialogs),
        amount=chance.choice(amounts.get(what, [0])),
    )


def draw_habit(chance: random.Random) -> Habit:
    return Habit(
        pause=chance.choice([0.02, 0.1, 0.5]),
        top=chance.choice([1, 5, 100]),
        rollback=chance.choice([0.0, 0.0, 0.3]),
        answer=chance.choice([0.0, 0.6]),
    )


def left_out(story: S, *fields: str) -> Iterator[S]:
    """The story with some items of these rows left out, more of them first."""
    for name in fields:
        row = getattr(story, name)
        size = len(row)
        while size:
            for start in range(0, len(row), size):
                yield replace(story, **{name: row[:start] + row[start + size :]})
            size //= 2


def plainer(story: S, plain: Any, *fields: str, within: str = "") -> Iterator[S]:
    """The story with one of these fields, of itself or of the value `within` it, as it is in `plain`."""
    inner = getattr(story, within) if within else story
    for name in fields:
        if getattr(inner, name) != getattr(plain, name):
            changed = replace(inner, **{name: getattr(plain, name)})
            yield replace(story, **{within: changed}) if within else changed


def calmer(story: S) -> Iterator[S]:
    habits: dict[str, Habit] = story.habits
    for side in SIDES:
        if habits[side] != Habit():
            yield replace(story, habits=habits | {side: Habit()})


class WatchedStore(SqliteStore):
    """
    Fails now and then, before, within or behind the commit; after each turn the ledger holds.

    Shape: `chance` and `failure`, the chance that a turn fails, are those of a story, which makes a class of its own.
    """

    chance: random.Random
    failure = 0.0

    def write_in_writer(self, batch: WriteBatch) -> WriteResult:
        """
        As `SqliteStore`.

        Raises:
            StoreUnavailableError: as well when it is to fail.
            AssertionError: messages are unaccounted for, or a copy that has been taken over has stored something.
        """
        how = self.chance.choice(["before", "within", "behind"]) if self.chance.random() < self.failure else ""
        if how == "before":
            raise StoreUnavailableError(str(self.path), "played: before")
        if how == "within":
            steps = iter([0] * self.chance.randrange(300))
            self.connection.set_progress_handler(lambda: 1 if self._is_over(steps) else 0, 5)
        seen = self._seen
        try:
            result = super().write_in_writer(batch)
        finally:
            self.connection.set_progress_handler(None, 0)
            if self.connection.in_transaction:  # SQLite may stop behind a BEGIN that has worked; no disk does that
                self.connection.execute("ROLLBACK")
            assert read_balance(self.connection).unaccounted == 0
        if batch.frames:
            assert self.epoch == epoch(self.connection), "frames were stored by a principal of earlier"
        if how == "behind":
            self._seen = seen  # as when a look behind the commit fails: what was found is found again
            raise StoreUnavailableError(str(self.path), "played: behind")
        return result

    def _is_over(self, steps: object) -> bool:
        if next(steps, None) is None:  # type: ignore[call-overload]
            self.connection.set_progress_handler(None, 0)
            return True
        return False


ENDED = frozenset({8426, 8429, 8462, 8489, 8410})  # what may be answered to who is too late
ERROR_NUMBER = 4711


ENVELOPE_BYTES = 100  # of the first fragment, at most
LEFT_BEHIND = (
    "broker_conversation",
    "broker_transmission",
    "broker_transmission_part",
    "broker_fragment",
    "broker_received",
    "broker_message",
    "broker_failure",
)


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
            bodies = [self._random.randbytes(self._random.choice([0, 30, 150])) for _ in range(deed.amount)]
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

    def _send(self, dialog: Dialog, size: int) -> None:
        body = self._random.randbytes(size)
        sequence = dialog.send(body)
        sent = self.sides[dialog.conversation_id].sent
        assert sequence >= len(sent)
        self._after_commit.append(lambda: sent.append(body))

    def end(self, dialog: Dialog, *, error: int | None = None, is_told: bool = False) -> None:
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

    async def keep_reading(self, habit: Habit, is_settling: Callable[[], bool]) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(habit.pause / 2, habit.pause))
            self.read(habit, is_settling=is_settling())

    # --- what is left ---

    def is_over(self) -> bool:
        """Whether nothing of any dialog is in its database."""
        return not any(rows(self.db, f"SELECT 1 FROM {table} LIMIT 1") for table in LEFT_BEHIND)

    def rows_left(self) -> Iterator[str]:
        for table in LEFT_BEHIND:
            for row in self.db.execute(f"SELECT * FROM {table} LIMIT 5"):
                short = [value[:8].hex() if isinstance(value, bytes) else value for value in row]
                yield f"left in {self.name}.{table}: {short}"

    def fragments_needed(self) -> int:
        """How many fragments there are in all that was sent, and in the ends of all dialogs."""
        sizes = (size for side in self.sides.values() for size in (*map(len, side.sent), 0))
        return sum(-(-(size + ENVELOPE_BYTES) // TUNING.fragment_size) for size in sizes)


def _check_is_too_late(error: ConversationError) -> None:
    assert error.number in ENDED, error


def check_direction(what: str, sender: Side, receiver: Side, *, has_failed: bool) -> None:
    """What came is what was sent, in order; and all of it, where nothing cut the dialog short."""
    assert receiver.got == sender.sent[: len(receiver.got)], f"{what}: not what was sent, or not in order"
    if not has_failed and (receiver.is_told or not receiver.has_ended):
        assert len(receiver.got) == len(sender.sent), f"{what}: {len(receiver.got)} of {len(sender.sent)} came"


QUIET_SECONDS = 420.0  # virtual; until everything is over once the network is whole: a lifetime may be 300 s too long
SILENCE_SECONDS = 3.0  # ... and so long nobody says anything afterwards
FRAMES_FACTOR = 20  # frames sent for each that is needed, at most: above it somebody sends again and again
FRAMES_MORE = 400  # ... and for what time-outs and acknowledgements of a story with few messages cost


@dataclass
class Outcome:
    """
    How it went.

    Shape: `frames` that both databases sent, `needed` the least there can be; `seconds` virtual; `history` in words;
    `members` instances by name.
    """

    digest: int = 0
    frames: int = 0
    needed: int = 0
    seconds: float = 0.0
    history: list[str] = field(default_factory=list)
    members: dict[str, Any] = field(default_factory=dict, repr=False)


def failing_store(chance: random.Random, kind: type[WatchedStore] = WatchedStore, **more: Any) -> type[WatchedStore]:
    """A class of its own, which fails by the chance of a story; not at first."""
    return type("_Store", (kind,), {"chance": chance, "failure": 0.0, **more})
