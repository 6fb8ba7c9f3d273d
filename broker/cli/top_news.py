"""
The snapshots of a daemon as they come, in a thread, so that whoever shows them can listen to the keys meanwhile.

Only the newest is kept. A daemon that goes away is asked again, at first soon and then each few seconds, until it is
back or nobody wants to know any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from threading import Condition, Thread
from typing import Any

from broker.admin.client import ProblemError
from broker.errors import BrokerError, DaemonUnreachableError

RETRY_SECONDS, RETRY_MAX_SECONDS = 0.5, 3.0
_LASTING = frozenset({400, 401, 403, 404, 405})  # asking again will not help

Pulse = Mapping[str, Any]


class News:
    """
    What is known of a daemon. The thread writes it under `changed`, who shows it reads it there.

    Shape: `pulse` the newest snapshot; `came_at` when, monotonic; `number` how many came; `problem` why none comes now,
    "" while they come; `error` the same as it was raised, None when the stream just ended; `is_refused` when none will
    come any more.
    """

    def __init__(self, listen: Callable[[], Iterator[Pulse]]) -> None:
        self.changed = Condition()
        self.pulse: Pulse | None = None
        self.came_at = time.monotonic()
        self.number = 0
        self.problem = ""
        self.error: BrokerError | None = None
        self.is_refused = False
        self._listen = listen
        self._is_over = False

    def start(self) -> None:
        """Listen from now on; the thread ends with the process, or with `stop`."""
        Thread(target=self._run, name="news", daemon=True).start()

    def stop(self) -> None:
        """Listen no more."""
        with self.changed:
            self._is_over = True
            self.changed.notify_all()

    def wait(self, *, after: int, seconds: float) -> bool:
        """
        Whether something newer than the snapshot of that number is known, or becomes known in so many seconds; not
        waited for when there is none at all, and asking has failed.
        """
        with self.changed:
            self.changed.wait_for(lambda: self.number > after or self._has_failed, seconds)
            return self.number > after

    @property
    def _has_failed(self) -> bool:
        return self.is_refused or (self.number == 0 and self.error is not None)

    def _run(self) -> None:
        wait = RETRY_SECONDS
        while not self._is_over:
            before = self.number
            try:
                for pulse in self._listen():
                    self._take(pulse)
                    if self._is_over:
                        return
                self._say("it has ended the stream", None)
            except ProblemError as error:
                self._say(str(error), error, is_lasting=error.status in _LASTING)
            except DaemonUnreachableError as error:
                self._say(error.problem, error)
            except BrokerError as error:
                self._say(str(error), error, is_lasting=True)
            if self.is_refused:
                return
            wait = RETRY_SECONDS if self.number > before else min(2 * wait, RETRY_MAX_SECONDS)
            with self.changed:
                self.changed.wait_for(lambda: self._is_over, wait)

    def _take(self, pulse: Pulse) -> None:
        with self.changed:
            self.pulse, self.came_at, self.problem, self.error = pulse, time.monotonic(), "", None
            self.number += 1
            self.changed.notify_all()

    def _say(self, problem: str, error: BrokerError | None, *, is_lasting: bool = False) -> None:
        with self.changed:
            self.problem, self.error, self.is_refused = problem, error, is_lasting
            self.changed.notify_all()
