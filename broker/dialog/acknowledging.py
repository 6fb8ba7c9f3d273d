"""
When a side tells its far side what it has stored.

At once when the far side waits for it or has to send something again: after a duplicate, a gap or an end, and when
enough has come. Else a little later, for the next message of this side may carry it. Acknowledgements need no care: one
that is lost is told again when the far side sends again.

Source: Service Broker documentation, "Service Broker Communication Protocols"; RFC 5681, section 4.2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from broker.conversation.frames import Place
from broker.store.receipt import Standing

DELAY = 0.05  # seconds: whoever answers has most often done so by then; a far side resends after 200 ms at the earliest
ENOUGH = 4  # frames not told of yet; a window that is small stays open

Tell = Callable[[Mapping[int, Standing]], None]


class Acknowledging:
    """
    What is stored and not told yet, by endpoint. Loop-only.

    Shape: `pending` waits for a message that carries it, DELAY seconds at most.
    """

    def __init__(self, tell: Tell) -> None:
        self.pending: dict[int, Standing] = {}
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def note(self, stored: Mapping[int, Standing]) -> None:
        """After a commit: what is stored now."""
        due: dict[int, Standing] = {}
        for endpoint_id, standing in stored.items():
            before = self.pending.pop(endpoint_id, None)
            frames = standing.frames + (before.frames if before is not None else 0)
            if standing.is_urgent or frames >= ENOUGH:
                due[endpoint_id] = standing
            else:
                self.pending[endpoint_id] = replace(standing, frames=frames)
        if due:
            self._tell(due)
        if self.pending and self._timer is None:
            self._timer = self._loop.call_later(DELAY, self._on_time)

    def on_told(self, endpoint_id: int, place: Place) -> None:
        """A message that left carries this place."""
        standing = self.pending.get(endpoint_id)
        if standing is not None and standing.place <= place:
            del self.pending[endpoint_id]

    def close(self) -> None:
        """Tell the rest, and nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._on_time()

    def _on_time(self) -> None:
        self._timer = None
        due, self.pending = self.pending, {}
        if due:
            self._tell(due)
