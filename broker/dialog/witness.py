"""
What a database tells the ring of the fragments that it sends, where somebody follows frames.

The pass records each frame as it leaves; since when its message was queued, and whether the fragment was sent before,
is known here only and goes with it. The acknowledgement that covers a fragment is a visit of its own: of its newest
transmission, once, as long as it is known which one that was. "Sent before" means by this process: whoever starts anew
sends what is not acknowledged as if for the first time, and may hear of fragments that it has not sent itself.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.conversation.frames import Place
from broker.conversation.outbound import Outgoing
from broker.forwarding.held import message_id
from broker.forwarding.ring import Ring, head_of
from broker.forwarding.way import UNTOLD, Arrival, Queued, QueuedById
from broker.wire.layout import Flag

KEPT_MAX = 65_536  # fragments of a database, some 30 MB: a thousand dialogs with a full window each

_LAST = int(Flag.LAST_FRAGMENT)  # an enum's operators are slow


class _Sent(NamedTuple):
    """A fragment under way. Shape: `head` of its newest transmission, and what goes with that."""

    head: bytes
    flags: int
    queued: Queued


class Witness:
    """
    The fragments that are not acknowledged yet, of followed dialogs and traced messages. Loop-only.

    Shape: at most KEPT_MAX; of one above it the acknowledgement is shed. None without a ring.
    """

    def __init__(self, ring: Ring | None) -> None:
        self._ring = ring
        self._queued: dict[bytes, Queued] = {}
        self._sent: dict[int, dict[Place, _Sent]] = {}  # by endpoint_id, in the order of the places
        self._kept = 0

    def follows(self, conversation: bytes) -> bool:
        """Whether the fragments of a dialog are to be told."""
        return self._ring is not None and self._ring.follows(conversation)

    def send(self, endpoint_id: int, frame: bytes, fragment: Outgoing, *, is_resend: bool) -> None:
        """A fragment of a followed dialog, or of a traced message, is about to leave in this frame."""
        if self._ring is None:
            return
        queued = Queued(fragment.enqueued_at, is_resend, fragment.trace_parent)
        self._queued[message_id(frame)] = queued
        sent = self._sent.setdefault(endpoint_id, {})
        if not is_resend:
            if self._kept >= KEPT_MAX:
                self._ring.shed += 1
                return
            self._kept += 1
        elif fragment.place not in sent:  # there was no room for it
            return
        sent[fragment.place] = _Sent(head_of(frame), fragment.flags, queued)

    def take(self) -> QueuedById:
        """What goes with the frames since the last time."""
        if not self._queued:
            return UNTOLD
        taken, self._queued = self._queued, {}
        return taken

    def acknowledge(self, endpoint_id: int, place: Place, *, now: float, wall: float) -> None:
        """Everything before `place` is stored at the far side; both clocks now."""
        sent = self._sent.get(endpoint_id)
        if sent is None or self._ring is None:
            return
        covered: dict[Place, _Sent] = {}
        for one, fragment in sent.items():
            # As `Outbound` has it: a last fragment is done with only when its message is.
            if one >= place or (fragment.flags & _LAST and one[0] == place[0]):
                break
            covered[one] = fragment
        if not covered:
            return
        queued = {message_id(fragment.head): fragment.queued for fragment in covered.values()}
        waited = wall - min(one.enqueued_at for one in queued.values())
        arrival = Arrival(now - max(0.0, waited), "", is_from_here=True, queued=queued)
        for one, fragment in covered.items():
            self._ring.tell(fragment.head, None, arrival, now)
            del sent[one]
        self._kept -= len(covered)

    def forget(self, endpoint_id: int) -> None:
        """The dialog has nothing to send any more."""
        self._kept -= len(self._sent.pop(endpoint_id, ()))
