"""
Frames that wait for the writer thread: bounded, and which of them came from inside.

Acknowledgements wait by themselves, and a turn stores some of both: a crowd of them, as many as there are dialogs,
holds up no message, and no crowd of messages holds up what makes room for more. Each kind stays in its order.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple, TypeAlias

from broker.security.session import Secured

TURN_FRAMES = 1000  # of each kind in one turn: more would hold the database, and what else waits for a turn, for long
INBOX_MAX_BYTES = 16 * 1024 * 1024  # arrivals that wait for the writer; past it they are dropped and come again

_Entry: TypeAlias = tuple[bytes, object, Secured | None]


class Waiting(NamedTuple):
    """
    What has waited.

    Shape: `frames` with the acknowledgements last, so many as `acks`; `origins` who brought each of them; `inside` the
    frames, counted from 0, that a database of this instance has sent, each with what it may be sealed with later.
    """

    frames: list[bytes]
    inside: dict[int, Secured]
    acks: int
    origins: list[object]


class Inbox:
    """Loop-only."""

    def __init__(self) -> None:
        self._messages: deque[_Entry] = deque()
        self._acks: deque[_Entry] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._messages or self._acks)

    def put(self, frame: bytes, origin: object, inside: Secured | None, *, is_ack: bool) -> bool:
        """Let a frame wait, from outside where `inside` is None; False when there is no room for it."""
        if self._bytes >= INBOX_MAX_BYTES:
            return False
        (self._acks if is_ack else self._messages).append((frame, origin, inside))
        self._bytes += len(frame)
        return True

    def take(self) -> Waiting:
        """What has waited longest: as much as one turn stores."""
        taken = _first(self._messages)
        acks = _first(self._acks)
        taken += acks
        frames = [frame for frame, _, _ in taken]
        self._bytes -= sum(map(len, frames))
        inside = {number: secured for number, (_, _, secured) in enumerate(taken) if secured is not None}
        return Waiting(frames, inside, len(acks), [origin for _, origin, _ in taken])


def _first(line: deque[_Entry]) -> list[_Entry]:
    taken = list(islice(line, TURN_FRAMES))
    for _ in taken:
        line.popleft()
    return taken
