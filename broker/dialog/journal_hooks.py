"""
Journal records that a database adds for frames of followed or traced dialogs, received and sent.

The forwarder records only that it handed a frame to the database, or that one was sent. `ReceiverJournal` adds the
result of an arrival once the batch that stored it is committed: delivered, a duplicate, or dropped and why. Delivered
means stored, or understood where there is nothing to store. A fragment that arrived early is stored as well, and
acknowledged as such. The end of its conversation, later, does not change the record. Frames that still wait when the
instance stops were not stored; their senders have them.

`SenderJournal` adds since when a message was queued and whether its fragment was sent before. It also adds a visit for
the acknowledgement that covers a fragment: of its newest transmission, once, while it is known which one that was.
"Before" means by this process. After a restart unacknowledged fragments are sent as if for the first time, and there
may be acknowledgements of fragments that this process has not sent. Loop-only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker.conversation.frames import Place
from broker.conversation.outbound import Outgoing
from broker.flow import Disposition
from broker.forwarding.entry import NOT_QUEUED, PassOrigin, Queued, QueuedById, message_id
from broker.forwarding.ring import Ring, head_of
from broker.protocol.layout import CONVERSATION_AT, FLAGS_AT, FRAGMENT_AT, SEQUENCE_AT, Flag
from broker.store.port import TracedKey

SENT_MAX = 65_536  # fragments of a database, some 30 MB: a thousand dialogs with a full window each
NOT_TRACED: Mapping[TracedKey, str] = {}

_FROM_TARGET, _LAST = int(Flag.FROM_TARGET), int(Flag.LAST_FRAGMENT)  # an enum's operators are slow


class ReceiverJournal:
    """The frames that arrived at one database and are not stored yet, with their arrival."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._messages: list[tuple[bytes, PassOrigin]] = []
        self._acks: list[tuple[bytes, PassOrigin]] = []
        self._in_batch: list[tuple[bytes, PassOrigin]] = []

    def on_received(self, frame: bytes, *, is_ack: bool) -> None:
        """A frame of the current pass is to be stored."""
        (self._acks if is_ack else self._messages).append((frame, self._arrival_of(frame)))

    def refuse(self, frame: bytes, disposition: Disposition, now: float) -> None:
        """A frame of the current pass was dropped before it was queued."""
        self._ring.report(frame, disposition, self._arrival_of(frame), now)

    def begin(self, messages: int, acks: int) -> None:
        """The oldest frames, so many of each kind, are passed to the writer, which has no other."""
        assert not self._in_batch
        self._in_batch = self._messages[:messages] + self._acks[:acks]
        del self._messages[:messages], self._acks[:acks]

    def finish(self, verdicts: Sequence[Disposition], now: float, traced: Mapping[TracedKey, str] = NOT_TRACED) -> None:
        """The batch is stored: what became of each frame, in that order, and the span of each traced message."""
        for (frame, origin), disposition in zip(self._in_batch, verdicts, strict=True):
            arrival = origin._replace(trace_parent=traced.get(_key_of(frame), "")) if traced else origin
            self._ring.report(frame, disposition, arrival, now)
        self._in_batch = []

    def drop(self, disposition: Disposition, now: float) -> None:
        """The writer has failed: nothing of the batch is stored."""
        self.finish([disposition] * len(self._in_batch), now)

    def close(self, now: float) -> None:
        """Report every frame that still waits as SHUTDOWN: the database stores no further frames."""
        self._in_batch += self._messages + self._acks
        self._messages, self._acks = [], []
        self.drop(Disposition.SHUTDOWN, now)

    def _arrival_of(self, frame: bytes) -> PassOrigin:
        """As the forwarder has it; how long the far side kept its message in a queue is not part of this visit."""
        arrival = self._ring.arrival_of(frame)
        return arrival._replace(queued=NOT_QUEUED) if arrival.queued else arrival


class _Sent(NamedTuple):
    head: bytes  # of its newest transmission
    flags: int
    queued: Queued


class SenderJournal:
    """
    The fragments of followed dialogs and traced messages that are not acknowledged yet; does nothing without a ring.

    At most SENT_MAX are kept; of one above it the acknowledgement is not recorded.
    """

    def __init__(self, ring: Ring | None) -> None:
        self._ring = ring
        self._queued: dict[bytes, Queued] = {}
        self._sent: dict[int, dict[Place, _Sent]] = {}  # by endpoint_id, in the order of the places
        self._count = 0

    def follows(self, conversation: bytes) -> bool:
        """Whether the fragments of a dialog are recorded."""
        return self._ring is not None and self._ring.follows(conversation)

    def on_sent(self, endpoint_id: int, frame: bytes, fragment: Outgoing, *, is_resend: bool) -> None:
        """A fragment of a followed dialog, or of a traced message, is about to leave in this frame."""
        if self._ring is None:
            return
        queued = Queued(fragment.enqueued_at, is_resend, fragment.trace_parent)
        self._queued[message_id(frame)] = queued
        sent = self._sent.setdefault(endpoint_id, {})
        if not is_resend:
            if self._count >= SENT_MAX:
                self._ring.shed += 1
                return
            self._count += 1
        elif fragment.place not in sent:  # it was above the bound
            return
        sent[fragment.place] = _Sent(head_of(frame), fragment.flags, queued)

    def pop_queued(self) -> QueuedById:
        """Remove and return the queueing details of the frames sent since the last call."""
        if not self._queued:
            return NOT_QUEUED
        queued, self._queued = self._queued, {}
        return queued

    def on_acknowledged(self, endpoint_id: int, place: Place, *, now: float, wall: float) -> None:
        """Everything before `place` is stored at the far side; both clocks now."""
        sent = self._sent.get(endpoint_id)
        if sent is None or self._ring is None:
            return
        covered: dict[Place, _Sent] = {}
        for position, fragment in sent.items():
            # As in `Outbound`: a last fragment is done with only when its message is.
            if position >= place or (fragment.flags & _LAST and position[0] == place[0]):
                break
            covered[position] = fragment
        if not covered:
            return
        queued = {message_id(fragment.head): fragment.queued for fragment in covered.values()}
        waited = wall - min(each.enqueued_at for each in queued.values())
        arrival = PassOrigin(now - max(0.0, waited), "", is_from_here=True, queued=queued)
        for position, fragment in covered.items():
            self._ring.report(fragment.head, None, arrival, now)
            del sent[position]
        self._count -= len(covered)

    def forget(self, endpoint_id: int) -> None:
        """Forget the fragments of a dialog that has nothing left to send."""
        self._count -= len(self._sent.pop(endpoint_id, ()))


def _key_of(frame: bytes) -> TracedKey:
    """Which message a frame is of."""
    sequence = int.from_bytes(frame[SEQUENCE_AT:FRAGMENT_AT], "big")
    return frame[CONVERSATION_AT:SEQUENCE_AT], bool(frame[FLAGS_AT] & _FROM_TARGET), sequence
