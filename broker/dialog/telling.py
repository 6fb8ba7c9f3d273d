"""
Which transmission statuses are written into the file of a database, and when.

A dialog that waits for a second has its sentence there; after that changes are written, at most once a second each and
STATUSES_MAX in one turn of the writer. One that was acknowledged something since the last look has a sentence that does
not change with every frame. When nothing waits any more the sentence is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

from broker.conversation.frames import Place
from broker.dialog.sender import Sender

TELL_SECONDS = 1.0  # between two looks at a dialog
STATUSES_MAX = 256  # looked at in one turn: a few milliseconds
MOVING = "being sent: acknowledgements come in"


class Telling:
    """What the file says of each dialog. Loop-only."""

    def __init__(self, senders: Mapping[int, Sender], status: Callable[[Sender], str]) -> None:
        self._senders = senders
        self._status = status
        self._due: dict[int, tuple[float, Place]] = {}  # when to look, and what was acknowledged then; in order
        self._told: dict[int, str | None] = {}  # what the file says, None when that is not known
        self._over: dict[int, None] = {}  # those of which it says something, and shall not any more

    def watch(self, sender: Sender, told: str | None, now: float) -> None:
        """A dialog has something to send; `told` what the file says of it."""
        endpoint_id = sender.endpoint_id
        if endpoint_id in self._over:
            del self._over[endpoint_id]
            self._told[endpoint_id] = None
        elif told is not None:
            self._told[endpoint_id] = told
        self._due[endpoint_id] = (now + TELL_SECONDS, sender.outbound.acknowledged)

    def forget(self, endpoint_id: int) -> None:
        """The dialog has nothing to send any more."""
        self._due.pop(endpoint_id, None)
        if endpoint_id in self._told:
            del self._told[endpoint_id]
            self._over[endpoint_id] = None

    def statuses(self, now: float) -> dict[int, str | None]:
        """What to write in the next turn, by endpoint_id; None removes what is there."""
        statuses: dict[int, str | None] = dict.fromkeys(self._over)
        self._over.clear()
        for endpoint_id, (due, acknowledged) in list(islice(self._due.items(), STATUSES_MAX)):
            if due > now:
                break
            sender = self._senders[endpoint_id]
            has_moved = sender.outbound.acknowledged != acknowledged
            del self._due[endpoint_id]
            self._due[endpoint_id] = (now + TELL_SECONDS, sender.outbound.acknowledged)
            status = MOVING if has_moved else self._status(sender)
            if self._told.get(endpoint_id) != status:
                self._told[endpoint_id] = statuses[endpoint_id] = status
        return statuses

    def untold(self, statuses: Mapping[int, str | None]) -> None:
        """The store failed: nobody knows what the file says of these."""
        for endpoint_id in statuses:
            if endpoint_id in self._due:
                self._told[endpoint_id] = None
            else:
                self._over[endpoint_id] = None
