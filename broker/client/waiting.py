"""
How an application waits for messages: until the daemon rings for its queue or conversation, and CHECK_SECONDS at most.

A ring is a hint (`broker.store.sqlite.hints`): after each pause the caller checks the database, which decides. Only the
daemon rings: a reader that rolls back or releases a conversation group does not. Each check costs CPU that the other
readers lack, so where a daemon rings there are few of them.
"""

from __future__ import annotations

import time

from broker.store.sqlite.hints import Bell

CHECK_SECONDS = 0.1  # between two checks at most, where there is a bell
POLL_SECONDS = 0.02  # likewise, where there is none


class Doorbell:
    """The pauses of one call or thread. `mark`, check, and `pause` if there is nothing."""

    def __init__(self, path: str, slot: int) -> None:
        """Wait for a slot of the bell of this database; empty for one in memory."""
        self._bell = Bell.open(path)
        self._slot = slot
        self._count = 0
        self._longest = self._limit = POLL_SECONDS if self._bell is None else CHECK_SECONDS
        self._is_interrupted = False

    def mark(self) -> None:
        """A check follows: what is rung from now on ends the next pause."""
        if self._bell is not None:
            self._count = self._bell.count(self._slot)

    def within(self, seconds: float) -> Doorbell:
        """The same, whose next pause takes so many seconds at most."""
        self._limit = min(self._longest, seconds)
        return self

    def pause(self) -> None:
        """Wait for a ring since `mark`."""
        if self._is_interrupted:
            self._is_interrupted = False
        elif self._bell is None:
            time.sleep(self._limit)
        else:
            self._bell.wait(self._slot, self._count, self._limit)

    def interrupt(self) -> None:
        """End the pause of another thread; without a bell it ends by itself."""
        self._is_interrupted = True
        if self._bell is not None:
            self._bell.wake(self._slot)

    def close(self) -> None:
        """Release it."""
        if self._bell is not None:
            self._bell.close()
