"""
Who sends next: the higher priority first, and dialogs of one priority in turn, each as many bytes as the others.

Within a priority a turn is QUANTUM_BYTES; who sends more, because its last fragment did not fit, has the less in its
next turns (surplus round robin, a form of deficit round robin: Shreedhar and Varghese, "Efficient Fair Queuing Using
Deficit Round-Robin", 1995). So a dialog with huge messages delays one with small ones by its turn, not by its message.

Starvation guard: of every GUARD_TURNS turns one goes to the priority that was passed over for longest, so the lowest
moves as well, however much the highest has to send.

Source: Service Broker documentation, "Conversation Priorities".
"""

from __future__ import annotations

from collections import deque

from broker.dialog.sender import Sender

QUANTUM_BYTES = 64 * 1024  # one fragment of the default size
FRAME_COST = 1024  # bytes that a frame counts at least: a small one takes as much work
GUARD_TURNS = 8  # an eighth of the bytes, shared by all lower priorities, costs the highest little


class Turns:
    """The senders that may have something to send, each at most once. Loop-only."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Sender]] = {}  # by priority; none is empty
        self._served: dict[int, int] = {}  # turn in which a priority was last served, or began to wait
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, sender: Sender) -> None:
        """It may have something to send."""
        if sender.is_queued:
            return
        sender.is_queued = True
        queue = self._queues.get(sender.priority)
        if queue is None:
            queue = self._queues[sender.priority] = deque()
            self._served[sender.priority] = self._turn
        queue.append(sender)

    def take(self) -> Sender:
        """Whose turn it is; it may send until its credit is used up."""
        self._turn += 1
        priority = self._next_priority()
        self._served[priority] = self._turn
        queue = self._queues[priority]
        while True:
            sender = queue.popleft()
            sender.credit = min(0, sender.credit) + QUANTUM_BYTES
            if sender.credit > 0:
                break
            queue.append(sender)
        sender.is_queued = False
        if not queue:
            del self._queues[priority]
        return sender

    def _next_priority(self) -> int:
        if self._turn % GUARD_TURNS:
            return max(self._queues)
        return min(self._queues, key=self._served.__getitem__)
