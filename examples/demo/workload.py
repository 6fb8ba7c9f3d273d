"""
The applications of the demo: one that sends orders and others that answer them, each on its own database file.

Each does its work in one transaction a batch: what it receives, what it notes in a table of its own, and what it sends.
So the tables are the proof: a message that was lost is missing there, one that was doubled stands there twice, and the
order of arrival shows in the rows themselves.
"""

import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import broker

BATCH = 100  # messages in one transaction
OUTSTANDING = 1000  # messages without an answer at most, so that both directions have traffic until the end
WAIT_SECONDS = 0.25  # for the first message of a batch, between two looks at `stop`
PAUSE_SECONDS = 0.005  # of the sender, while too much is outstanding

_NOTES = "CREATE TABLE IF NOT EXISTS noted (conversation BLOB, number INTEGER, at INTEGER PRIMARY KEY AUTOINCREMENT)"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent. Shape: `dialogs` to each of `services`, `messages` on each dialog."""

    from_service: str
    services: tuple[str, ...]
    dialogs: int
    messages: int

    @property
    def total(self) -> int:
        """Messages in one direction."""
        return len(self.services) * self.dialogs * self.messages


class Workload:
    """Applications in threads. Shape: `sent`, `answered`, `returned` messages so far, for the progress bar."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.sent = 0
        self.returned = 0
        self.failures: list[BaseException] = []
        self._answered: dict[Path, int] = {}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def answered(self) -> int:
        """Messages that reached a target and were answered."""
        return sum(self._answered.values())

    def answered_in(self, path: Path) -> int:
        """Messages that were answered in this file of a target."""
        return self._answered.get(path, 0)

    def start(self, initiator: Path, targets: Sequence[Path], queue: str) -> None:
        """Begin: one thread sends, one takes the answers, one for each file of a target answers."""
        self._spawn(self._send, initiator)
        self._spawn(self._take_answers, initiator, queue)
        for path in targets:
            self._spawn(self._answer, path, queue)

    def stop(self) -> None:
        """End the threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _spawn(self, work: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # noqa: BLE001 - told by whoever waits
                self.failures.append(error)

        thread = threading.Thread(target=run, name=work.__name__, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _send(self, path: Path) -> None:
        """All dialogs side by side, so that every one of them is under way when a gateway dies."""
        plan = self.plan
        with connection(path) as db:
            with db:
                dialogs = [
                    broker.begin_dialog(
                        db, from_service=plan.from_service, to_service=service, contract="//demo/Orders"
                    )
                    for service in plan.services
                    for _ in range(plan.dialogs)
                ]
            pending = [(dialog, number) for number in range(plan.messages) for dialog in dialogs]
            for start in range(0, len(pending), BATCH):
                with db:
                    for dialog, number in pending[start : start + BATCH]:
                        dialog.send(f'{{"order": {number}}}', type="//demo/Order")
                self.sent += len(pending[start : start + BATCH])
                while self.sent - self.returned > OUTSTANDING and not self._stop.is_set():
                    self._stop.wait(PAUSE_SECONDS)
                if self._stop.is_set():
                    return
            with db:
                for dialog in dialogs:
                    dialog.send("", type="//demo/Close")

    def _answer(self, path: Path, queue: str) -> None:
        self._answered[path] = 0
        with connection(path) as db:
            while not self._stop.is_set():
                with db:
                    messages = broker.receive(db, queue=queue, top=BATCH, wait=WAIT_SECONDS)
                    orders = [message for message in messages if message.type == "//demo/Order"]
                    note(db, orders)
                    for message in messages:
                        if message.type == "//demo/Order":
                            message.dialog.send(message.body, type="//demo/Receipt")
                        elif message.type == "//demo/Close":
                            message.dialog.end()
                self._answered[path] += len(orders)

    def _take_answers(self, path: Path, queue: str) -> None:
        with connection(path) as db:
            while not self._stop.is_set():
                with db:
                    messages = broker.receive(db, queue=queue, top=BATCH, wait=WAIT_SECONDS)
                    receipts = [message for message in messages if message.type == "//demo/Receipt"]
                    note(db, receipts)
                    for message in messages:
                        if message.is_end or message.is_error:
                            message.dialog.end()
                self.returned += len(receipts)


class connection:  # noqa: N801 - used like a function
    """A database of the broker with the table in which an application notes what it has seen; closed at the end."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, timeout=60)

    def __enter__(self) -> sqlite3.Connection:
        with self._db:
            self._db.execute(_NOTES)
        return self._db

    def __exit__(self, *_: object) -> None:
        self._db.close()


def note(db: sqlite3.Connection, messages: list[broker.Message]) -> None:
    """Note messages in the transaction that takes them."""
    rows = [(message.dialog.conversation_id.bytes, int(message.body[10:-1])) for message in messages]
    db.executemany("INSERT INTO noted (conversation, number) VALUES (?, ?)", rows)


def faults(*dbs: sqlite3.Connection, dialogs: int, messages: int) -> list[str]:
    """
    What is wrong with what the applications of a service have seen: lost, doubled or out of order; empty when nothing
    is. A dialog that was seen in two of their databases is doubled.
    """
    seen: dict[bytes, list[int]] = {}
    for db in dbs:
        for conversation, number in db.execute("SELECT conversation, number FROM noted ORDER BY at"):
            seen.setdefault(conversation, []).append(number)
    found = [] if len(seen) == dialogs else [f"{len(seen)} dialogs seen, {dialogs} expected"]
    for conversation, numbers in seen.items():
        if numbers != list(range(messages)):
            lost = messages - len(set(numbers))
            doubled = len(numbers) - len(set(numbers))
            found.append(f"dialog {conversation.hex()}: {lost} lost, {doubled} doubled, or out of order")
    return found
