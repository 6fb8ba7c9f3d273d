"""
The fragments of one side that wait until their message is whole and in its turn.

Rows of `broker_fragment`, inside the transaction of whoever asks; for the writer thread. What a fragment is to the
receiver is decided by `broker.conversation.frames`; here it is kept and joined. What is kept out of order has a bound
for each side, in fragments and in bytes: past it a fragment is not taken, and comes again when its turn is nearer. The
body of a message above LARGE_BYTES is never joined: its fragments stay rows until an application has received it.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from enum import IntEnum

from broker.conversation.frames import EARLY_BYTES_MAX, EARLY_FRAGMENTS_MAX, Place
from broker.conversation.message_types import Validation, validator
from broker.errors import FrameMalformedError
from broker.protocol.frame import Envelope, decode_envelope
from broker.store.large import LARGE_BYTES
from broker.store.receipt import Run

HELD_RUNS_MAX = 128  # told in one acknowledgement, about a kilobyte
ENVELOPE_LENGTH = 4  # bytes of the length before an envelope

_OF_MESSAGE = "FROM broker_fragment WHERE endpoint_id = ? AND message_sequence_number = ?"
_IN_ORDER = f"{_OF_MESSAGE} AND fragment_number <= ? ORDER BY fragment_number"
_EARLY = (
    "SELECT message_sequence_number, fragment_number, flags, length(body) FROM broker_fragment"
    " WHERE endpoint_id = ? AND (message_sequence_number, fragment_number) > (?, ?)"
)


class EarlyFragment(IntEnum):
    """What became of an early fragment."""

    NEW = 0
    HERE_ALREADY = 1
    NO_ROOM = 2


@dataclass(frozen=True, slots=True)
class Large:
    """A whole body that stays in its fragments. Shape: `fragments` how many those are."""

    db: sqlite3.Connection
    endpoint_id: int
    sequence: int
    fragments: int

    def violation(self, validation: Validation) -> str | None:
        """What is wrong with it as a body of a message type; read a fragment at a time."""
        if validation is Validation.NONE:
            return None
        check = validator(validation)
        rows = self.db.execute(f"SELECT body {_IN_ORDER}", (self.endpoint_id, self.sequence, self.fragments))
        for number, (body,) in enumerate(rows):
            problem = check.feed(body if number else decode_envelope(body)[1])
            if problem is not None:
                return problem
        return check.close()


class Assembly:
    """
    The kept fragments of one side, during one batch.

    Shape: `count` of those that are early, as the side's row says.
    Cost: reads the places of what is early, EARLY_FRAGMENTS_MAX rows at most, nothing when there is none.
    """

    def __init__(self, db: sqlite3.Connection, endpoint_id: int, expected: Place, count: int) -> None:
        self._db = db
        self._endpoint_id = endpoint_id
        self._early: dict[Place, tuple[int, int]] = {}  # flags, bytes
        self._early_bytes = 0
        if count:
            for sequence, fragment, flags, size in db.execute(_EARLY, (endpoint_id, *expected)):
                self._early[sequence, fragment] = (flags, size)
                self._early_bytes += size

    @property
    def count(self) -> int:
        """How many fragments are early."""
        return len(self._early)

    def keep(self, place: Place, flags: int, body: bytes) -> None:
        """Keep the expected fragment of an unfinished message."""
        self._db.execute(
            "INSERT OR REPLACE INTO broker_fragment VALUES (?, ?, ?, ?, ?)", (self._endpoint_id, *place, flags, body)
        )

    def keep_early(self, place: Place, flags: int, body: bytes) -> EarlyFragment:
        """Keep a fragment whose turn has not come."""
        if place in self._early:
            return EarlyFragment.HERE_ALREADY
        if len(self._early) >= EARLY_FRAGMENTS_MAX or self._early_bytes + len(body) > EARLY_BYTES_MAX:
            return EarlyFragment.NO_ROOM
        self.keep(place, flags, body)
        self._early[place] = (flags, len(body))
        self._early_bytes += len(body)
        return EarlyFragment.NEW

    def take_early(self, place: Place) -> int | None:
        """The flags of an early fragment whose turn has come, which is early no more; None when it is not here."""
        kept = self._early.pop(place, None)
        if kept is None:
            return None
        self._early_bytes -= kept[1]
        return kept[0]

    def held(self) -> tuple[Run, ...]:
        """What is early as runs of fragments of one message, the first ones when there are many."""
        runs: list[list[int]] = []
        for sequence, fragment in sorted(self._early):
            if runs and runs[-1][0] == sequence and runs[-1][2] + 1 == fragment:
                runs[-1][2] = fragment
            elif len(runs) == HELD_RUNS_MAX:
                break
            else:
                runs.append([sequence, fragment, fragment])
        return tuple((sequence, first, last) for sequence, first, last in runs)

    def join(self, sequence: int, last: int, tail: tuple[int, bytes] | None = None) -> tuple[Envelope, bytes | Large]:
        """
        A message whose fragments are all here, up to its last one; what is joined is kept no longer.

        Args:
            sequence: The message.
            last: The number of its last fragment.
            tail: Flags and body of that one when it has just come; None when it is kept like the others.

        Raises:
            FrameMalformedError: its envelope cannot be read; its fragments are kept no longer.
        """
        self._forget_strays(sequence, last)
        key = (self._endpoint_id, sequence)
        bodies: list[bytes] = []
        size = 0 if tail is None else len(tail[1])
        for (body,) in self._db.execute(f"SELECT body {_IN_ORDER}", (*key, last)):
            bodies.append(body)
            size += len(body) if len(bodies) > 1 else max(0, len(body) - _envelope_bytes(body))
            if size > LARGE_BYTES:
                if tail is not None:
                    self.keep((sequence, last), *tail)
                return self._envelope(sequence, bodies[0]), Large(self._db, self._endpoint_id, sequence, last + 1)
        self._db.execute(f"DELETE {_OF_MESSAGE}", key)
        if tail is not None:
            bodies.append(tail[1])
        return decode_envelope(b"".join(bodies))

    def discard(self, expected: Place) -> None:
        """Whatever waits behind whole messages will never be one; it is removed by and by."""
        self._early.clear()
        self._early_bytes = 0
        self._db.execute(
            "INSERT OR IGNORE INTO broker_received SELECT DISTINCT endpoint_id, message_sequence_number"
            " FROM broker_fragment WHERE endpoint_id = ? AND message_sequence_number >= ?",
            (self._endpoint_id, expected[0]),
        )

    def _envelope(self, sequence: int, first: bytes) -> Envelope:
        """The envelope of a large message; without a readable one its fragments are thrown away."""
        try:
            return decode_envelope(first)[0]
        except FrameMalformedError:
            self._db.execute("INSERT OR IGNORE INTO broker_received VALUES (?, ?)", (self._endpoint_id, sequence))
            raise

    def _forget_strays(self, sequence: int, last: int) -> None:
        """Fragments behind the last one: a broken sender's."""
        strays = [place for place in self._early if place[0] == sequence and place[1] > last]
        for place in strays:
            self._early_bytes -= self._early.pop(place)[1]
        if strays:
            self._db.execute(
                f"DELETE {_OF_MESSAGE} AND fragment_number > ?",
                (self._endpoint_id, sequence, last),
            )


def _envelope_bytes(first: bytes) -> int:
    return ENVELOPE_LENGTH + int.from_bytes(first[:ENVELOPE_LENGTH], "big")
