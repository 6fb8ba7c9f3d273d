"""Steady one-way load between two databases, and what it saw: lost, doubled, out of order, and how late."""

from __future__ import annotations

import sqlite3
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

import broker
from examples.demo.topology import wait_for

WAIT_SECONDS = 0.2  # for a message, between two looks at the end
SECONDS = 60.0


class Load:
    """
    One application that sends on several dialogs, one that receives.

    Shape: `sent` messages on each dialog; `heard` numbers by conversation, in the order in which they came; `latencies`
    (when it was sent, seconds until it was received), both by the monotonic clock.
    """

    def __init__(
        self,
        initiator: Path,
        target: Path,
        *,
        services: tuple[str, str],
        queue: str,
        dialogs: int = 8,
        pause: float = 0.01,
    ) -> None:
        self.sent: dict[uuid.UUID, int] = {}
        self.heard: dict[uuid.UUID, list[int]] = {}
        self.latencies: list[tuple[float, float]] = []
        self.failures: list[BaseException] = []
        self._files = initiator, target
        self._services, self._queue = services, queue
        self._dialogs, self._pause = dialogs, pause
        self._is_said, self._is_over = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def arrived(self) -> int:
        """Messages that were received."""
        return len(self.latencies)

    def go_on(self, count: int) -> None:
        """Wait until so many more messages have arrived."""
        wanted = self.arrived + count
        wait_for(lambda: self.failures or self.arrived >= wanted, seconds=SECONDS, what=f"{count} more messages")
        assert [] == self.failures

    def finish(self) -> None:
        """Send no more, and wait until all has arrived."""
        self._is_said.set()
        self._threads[0].join()
        wanted = sum(self.sent.values())
        wait_for(lambda: self.failures or self.arrived >= wanted, seconds=SECONDS, what=f"{wanted} messages")
        self._is_over.set()
        self._threads[1].join()
        assert [] == self.failures

    def lateness(self, begin: float, end: float) -> str:
        """The latencies of what was sent between two instants, in words."""
        found = sorted(late for at, late in self.latencies if begin <= at < end)
        if not found:
            return "nothing sent"
        p50, p99 = (found[min(len(found) - 1, int(len(found) * share))] * 1000 for share in (0.5, 0.99))
        return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {found[-1] * 1000:.1f} ms of {len(found)}"

    def __enter__(self) -> Self:
        self._spawn(self._send)
        self._spawn(self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_said.set()
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _spawn(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - told by whoever waits
                self.failures.append(error)

        thread = threading.Thread(target=run, name=work.__name__)
        thread.start()
        self._threads.append(thread)

    def _send(self) -> None:
        with closing(sqlite3.connect(self._files[0], timeout=SECONDS)) as db:
            with db:
                from_service, to_service = self._services
                dialogs = [
                    broker.begin_dialog(db, from_service=from_service, to_service=to_service)
                    for _ in range(self._dialogs)
                ]
            number = 0
            while not self._is_said.wait(self._pause):
                with db:
                    for dialog in dialogs:
                        dialog.send(f"{number} {time.monotonic()!r}")
                number += 1
                self.sent = dict.fromkeys((dialog.conversation_id for dialog in dialogs), number)

    def _receive(self) -> None:
        with closing(sqlite3.connect(self._files[1], timeout=SECONDS)) as db:
            while not self._is_over.is_set():
                with db:
                    messages = broker.receive(db, queue=self._queue, top=1000, wait=WAIT_SECONDS)
                now = time.monotonic()
                for message in messages:
                    number, at = bytes(message.body).split()
                    self.heard.setdefault(message.dialog.conversation_id, []).append(int(number))
                    self.latencies.append((float(at), now - float(at)))
