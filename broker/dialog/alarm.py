"""One timer of the loop for as many instants as there are dialogs."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from broker.conversation.window import NEVER
from broker.dialog.sender import Sender


class Alarms:
    """
    When senders are looked at again. Loop-only.

    A sender has one alarm, at its `armed_at`; setting it earlier leaves an entry behind that rings in vain. `ring` is
    called with the instant that was set and the endpoint_id.
    """

    def __init__(self, ring: Callable[[float, int], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._entries: list[tuple[float, int]] = []
        self._timer: asyncio.Handle | None = None
        self._timer_at = NEVER  # kept here: uvloop's handle of a call that is due at once does not tell

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def next_at(self) -> float:
        """When the next one rings; NEVER when none will."""
        return self._entries[0][0] if self._entries else NEVER

    def set(self, sender: Sender, at: float) -> None:
        """Look at the sender at this instant at the latest."""
        if at < sender.armed_at:
            sender.armed_at = at
            heapq.heappush(self._entries, (at, sender.endpoint_id))
            self._set_timer()

    def close(self) -> None:
        """Nothing rings any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        if self.next_at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = self.next_at
            self._timer = self._loop.call_at(self._timer_at, self._on_time)

    def _on_time(self) -> None:
        self._timer, self._timer_at = None, NEVER
        now = self._loop.time()
        while self.next_at <= now:
            self._ring(*heapq.heappop(self._entries))
        self._set_timer()
