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

from broker.flow import Disposition
from broker.forwarding.ring import Ring
from broker.forwarding.way import UNTOLD, Arrival
from broker.store.receipt import TracedKey
from broker.wire.layout import CONVERSATION_AT, FLAGS_AT, FRAGMENT_AT, SEQUENCE_AT, Flag

Seen = tuple[bytes, Arrival]
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

    def _arrival_of(self, frame: bytes) -> Arrival:
        """As the pass has it; how long the far side kept its message in a queue is not part of this visit."""
        arrival = self._ring.arrival_of(frame)
        return arrival._replace(queued=UNTOLD) if arrival.queued else arrival


def _key_of(frame: bytes) -> TracedKey:
    """Which message a frame is of."""
    sequence = int.from_bytes(frame[SEQUENCE_AT:FRAGMENT_AT], "big")
    return frame[CONVERSATION_AT:SEQUENCE_AT], bool(frame[FLAGS_AT] & _FROM_TARGET), sequence
