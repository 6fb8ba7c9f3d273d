"""
Who is told that a dialog is not known here (any more), and how often.

A far side that sends to a dialog of which not even a tombstone is left would go on until its lifetime is over. It is
told at once when it has heard from here before. Else what begins the dialog may just have been overtaken, so it is told
only when it still comes a while later. What is remembered is bounded, and so is what is sent.

Source: Service Broker documentation, "END CONVERSATION"; message 8462.
"""

from __future__ import annotations

from collections import OrderedDict

from broker.conversation.frames import Contact
from broker.wire.frame import Fault

GRACE = 10.0  # seconds for which the beginning of a dialog may be behind: several resends of it
AGAIN = 60.0  # seconds between two faults for one dialog, which may get lost
KNOWN_MAX = 4096  # dialogs remembered
FAULTS_PER_SECOND = 100  # of a database, so that a flood of old frames is not answered with another
GONE = Fault(-8462, "the remote conversation endpoint is not known here; it has ended, or its database was replaced")


class Strangers:
    """The dialogs of strangers, each with the instant from which it is told. Changed by `may_tell` only."""

    def __init__(self) -> None:
        self._from: OrderedDict[tuple[bytes, bool], float] = OrderedDict()
        self._second = 0
        self._told = 0

    def may_tell(self, contact: Contact, now: float, *, is_certain: bool) -> bool:
        """Whether to tell the far side now (monotonic seconds)."""
        key = (contact.conversation_id, contact.is_initiator)
        at = self._from.get(key)
        if at is None:
            at = self._from[key] = now if is_certain else now + GRACE
            if len(self._from) > KNOWN_MAX:
                self._from.popitem(last=False)
        if now < at or not self._has_room(int(now)):
            return False
        self._from[key] = now + AGAIN
        self._from.move_to_end(key)
        return True

    def _has_room(self, second: int) -> bool:
        if second != self._second:
            self._second, self._told = second, 0
        self._told += 1
        return self._told <= FAULTS_PER_SECOND
