"""
Applications that go on sending until they are told to stop, and the ledger of what each of them sent and received.

The ledger is kept outside of the system, in this process, and only after the commit of the transaction in which a
message was sent or received: a message that was lost is missing in it, one that was doubled stands there twice.
"""

import sqlite3
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

import broker
from examples.demo.topology import wait_for

WAIT_SECONDS = 0.2  # for a message, between two looks at the end
BUSY_SECONDS = 60.0
SECONDS = 60.0

Heard = dict[uuid.UUID, list[int]]
"""Numbers of messages by conversation id, in the order in which they came."""


class Traffic:
    """
    One application that sends requests, and one for each file of the target that answers them.

    Args:
        initiator: File of the database with `from_service`.
        targets: Files in which somebody receives what comes for `to_service`.
        queue: Of both services.
        pause: Seconds between two transactions of the sender, each with one message on each dialog.

    Shape: `sent` messages on each dialog; `requests` heard in each file of the target, `replies` at the initiator.
    """

    def __init__(
        self,
        initiator: Path,
        targets: Sequence[Path],
        *,
        from_service: str,
        to_service: str,
        queue: str = "Inbox",
        dialogs: int = 4,
        pause: float = 0.02,
    ) -> None:
        self.sent: dict[uuid.UUID, int] = {}
        self.requests: dict[Path, Heard] = {path: {} for path in targets}
        self.replies: Heard = {}
        self.failures: list[BaseException] = []
        self._initiator = initiator
        self._services = from_service, to_service
        self._queue = queue
        self._dialogs = dialogs
        self._pause = pause
        self._is_said = threading.Event()
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def answered(self) -> int:
        """Messages that went there, and whose answer came back."""
        return sum(len(heard) for heard in list(self.replies.values()))

    @property
    def arrived(self) -> int:
        """Requests that the target's applications have received."""
        return sum(len(numbers) for heard in self.requests.values() for numbers in list(heard.values()))

    def start(self) -> None:
        """Begin to send, to answer and to hear."""
        self._spawn(self._send)
        self._spawn(self._hear)
        for path in self.requests:
            self._spawn(self._answer, path)

    def goes_on(self, count: int = 40) -> None:
        """Wait until so many more answers have come, to what was sent from now on."""
        goal = sum(self.sent.values()) + count
        self._wait(lambda: self.answered >= goal, f"{count} more answers")

    def finish(self) -> None:
        """Send nothing more, and wait until all is answered."""
        self._is_said.set()
        self._threads[0].join()
        self._wait(lambda: self.answered >= sum(self.sent.values()), "all answers")
        with closing(sqlite3.connect(self._initiator, timeout=BUSY_SECONDS)) as db:
            query = "SELECT count(*) FROM broker_transmission"
            self._wait(lambda: db.execute(query).fetchone()[0] == 0, "everything acknowledged")
        self.close()

    def faults(self) -> list[str]:
        """What was lost, doubled, or out of order; empty when nothing was."""
        assert self.sent
        told = []
        for conversation, count in self.sent.items():
            requests = [heard[conversation] for heard in self.requests.values() if conversation in heard]
            if len(requests) != 1:
                told.append(f"{conversation}: heard in {len(requests)} files")
            for what, numbers in [*(("requests", one) for one in requests), ("replies", self.replies[conversation])]:
                if numbers != list(range(count)):
                    lost, doubled = count - len(set(numbers)), len(numbers) - len(set(numbers))
                    told.append(f"{conversation}: {what}: {lost} lost, {doubled} doubled, or out of order: {numbers}")
        return told

    def close(self) -> None:
        """End the applications."""
        self._is_said.set()
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        wait_for(lambda: self.failures or is_so(), seconds=SECONDS, what=f"{what}, {self.arrived=} {self.answered=}")
        if self.failures:
            raise self.failures[0]

    def _spawn(self, work: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # noqa: BLE001 - told by whoever waits
                self.failures.append(error)

        thread = threading.Thread(target=run, name=work.__name__, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _send(self) -> None:
        near, far = self._services
        with closing(sqlite3.connect(self._initiator, timeout=BUSY_SECONDS)) as db:
            with db:
                dialogs = [broker.begin_dialog(db, from_service=near, to_service=far) for _ in range(self._dialogs)]
            self.replies |= {dialog.conversation_id: [] for dialog in dialogs}
            while not self._is_said.is_set():
                with db:
                    for dialog in dialogs:
                        dialog.send(str(self.sent.get(dialog.conversation_id, 0)))
                for dialog in dialogs:
                    self.sent[dialog.conversation_id] = self.sent.get(dialog.conversation_id, 0) + 1
                self._is_said.wait(self._pause)

    def _answer(self, path: Path) -> None:
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as db:
            while not self._is_over.is_set():
                with db:
                    messages = broker.receive(db, queue=self._queue, wait=WAIT_SECONDS)
                    for message in messages:
                        message.dialog.send(message.body)
                _note(self.requests[path], messages)

    def _hear(self) -> None:
        with closing(sqlite3.connect(self._initiator, timeout=BUSY_SECONDS)) as db:
            while not self._is_over.is_set():
                with db:
                    messages = broker.receive(db, queue=self._queue, wait=WAIT_SECONDS)
                _note(self.replies, messages)


def _note(heard: Heard, messages: list[broker.Message]) -> None:
    for message in messages:
        heard.setdefault(message.dialog.conversation_id, []).append(int(message.body))
