"""What of a queue that moves has yet to be looked at, from its front."""

from __future__ import annotations

from collections import deque

from broker.forwarding.held import Held
from broker.forwarding.held_queue import HeldQueue
from broker.forwarding.pack import Piece


class Pending:
    """
    The frames of a queue in their order, each once; what is added to the queue meanwhile is added here.

    Shape: `len` frames; those that have left unlooked at count until it is their turn.
    """

    def __init__(self, queue: HeldQueue) -> None:
        self._queue = queue
        self._length = len(queue)
        self._front: deque[Held] = deque()  # of the pack whose turn it is
        self._rest = deque(queue.names())

    def __len__(self) -> int:
        return self._length

    def add(self, piece: Piece) -> None:
        """This was put at the end of the queue."""
        self._rest.append((piece if isinstance(piece, Held) else piece.name, piece.frames))
        self._length += piece.frames

    def first(self) -> Held | None:
        """The one whose turn it is, which may have left the queue; None when there is no more."""
        while not self._front and self._rest:
            entry, frames = self._rest.popleft()
            self._front.extend([entry] if isinstance(entry, Held) else self._queue.apart(entry).values())
            self._length -= frames - len(self._front)
        return self._front[0] if self._front else None

    def pop(self) -> None:
        """It was looked at."""
        self._front.popleft()
        self._length -= 1
