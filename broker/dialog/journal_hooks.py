"""
What a database tells the ring of the frames that arrive for it, where somebody follows frames.

The pass says only that it handed them over. What became of them is known when the turn of the writer that stored them
is committed, and then each is told once: delivered, a duplicate, or dropped and why. Delivered means stored, or
understood where there is nothing to store: a fragment that came before its turn is safe as well, and acknowledged as
such; what ends its conversation later takes nothing back. Frames that are still here when the instance stops were not
stored; their senders have them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker.conversation.frames import Place
from broker.conversation.outbound import Outgoing
from broker.flow import Disposition
from broker.forwarding.entry import UNTOLD, PassOrigin, Queued, QueuedById
from broker.forwarding.held_frames import message_id
from broker.forwarding.ring import Ring, head_of
from broker.protocol.layout import CONVERSATION_AT, FLAGS_AT, FRAGMENT_AT, SEQUENCE_AT, Flag
from broker.store.port import TracedKey

Seen = tuple[bytes, PassOrigin]
NOT_TRACED: Mapping[TracedKey, str] = {}

_FROM_TARGET = int(Flag.FROM_TARGET)  # an enum's operators are slow


class Verdicts:
    """The frames that arrived at one database and have no verdict yet, with how they came. Loop-only."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._messages: list[Seen] = []
        self._acks: list[Seen] = []
        self._under_way: list[Seen] = []

    def expect(self, frame: bytes, *, is_ack: bool) -> None:
        """A frame of the pass under way is to be stored."""
        (self._acks if is_ack else self._messages).append((frame, self._arrival_of(frame)))

    def refuse(self, frame: bytes, disposition: Disposition, now: float) -> None:
        """A frame of the pass under way is not taken at all."""
        self._ring.tell(frame, disposition, self._arrival_of(frame), now)

    def begin(self, messages: int, acks: int) -> None:
        """So many of what is expected, the oldest of each kind, go to the writer, which has nothing else."""
        assert not self._under_way
        self._under_way = self._messages[:messages] + self._acks[:acks]
        del self._messages[:messages], self._acks[:acks]

    def judge(self, verdicts: Sequence[Disposition], now: float, traced: Mapping[TracedKey, str] = NOT_TRACED) -> None:
        """The writer is done with what it had; what became of each, in that order, and whose spans it has."""
        for (frame, came), disposition in zip(self._under_way, verdicts, strict=True):
            arrival = came._replace(trace_parent=traced.get(_key_of(frame), "")) if traced else came
            self._ring.tell(frame, disposition, arrival, now)
        self._under_way = []

    def drop(self, disposition: Disposition, now: float) -> None:
        """The writer has failed: nothing of what it had is stored."""
        self.judge([disposition] * len(self._under_way), now)

    def close(self, now: float) -> None:
        """Nothing is stored any more."""
        self._under_way += self._messages + self._acks
        self._messages, self._acks = [], []
        self.drop(Disposition.SHUTDOWN, now)

    def _arrival_of(self, frame: bytes) -> PassOrigin:
        """As the pass has it; how long the far side kept its message in a queue is not part of this visit."""
        arrival = self._ring.arrival_of(frame)
        return arrival._replace(queued=UNTOLD) if arrival.queued else arrival


def _key_of(frame: bytes) -> TracedKey:
    """Which message a frame is of."""
    sequence = int.from_bytes(frame[SEQUENCE_AT:FRAGMENT_AT], "big")
    return frame[CONVERSATION_AT:SEQUENCE_AT], bool(frame[FLAGS_AT] & _FROM_TARGET), sequence


# --- witness ---
# What a database tells the ring of the fragments that it sends, where somebody follows frames.
#
# The pass records each frame as it leaves; since when its message was queued, and whether the fragment was sent
# before,
# is known here only and goes with it. The acknowledgement that covers a fragment is a visit of its own: of its newest
# transmission, once, as long as it is known which one that was. "Sent before" means by this process: whoever starts
# anew
# sends what is not acknowledged as if for the first time, and may hear of fragments that it has not sent itself.


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
        arrival = PassOrigin(now - max(0.0, waited), "", is_from_here=True, queued=queued)
        for one, fragment in covered.items():
            self._ring.tell(fragment.head, None, arrival, now)
            del sent[one]
        self._kept -= len(covered)

    def forget(self, endpoint_id: int) -> None:
        """The dialog has nothing to send any more."""
        self._kept -= len(self._sent.pop(endpoint_id, ()))
