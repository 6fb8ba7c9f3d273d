"""Frames that wait for the writer thread: bounded, in the order of arrival, and which of them came from inside."""

from __future__ import annotations

from typing import NamedTuple

TURN_FRAMES = 1000  # of one turn: more would hold the database, and what else waits for a turn, for long
INBOX_MAX_BYTES = 16 * 1024 * 1024  # arrivals that wait for the writer; past it they are dropped and come again


class Waiting(NamedTuple):
    """What has waited. Shape: `inside` which of the frames, counted from 0, a database of this instance has sent."""

    frames: list[bytes]
    inside: set[int]


class Inbox:
    """Loop-only."""

    def __init__(self) -> None:
        self._waiting = Waiting([], set())
        self._bytes = 0

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._waiting.frames)

    def put(self, frame: bytes, *, is_inside: bool) -> bool:
        """Let a frame wait; False when there is no room for it."""
        if self._bytes >= INBOX_MAX_BYTES:
            return False
        frames, inside = self._waiting
        if is_inside:
            inside.add(len(frames))
        frames.append(frame)
        self._bytes += len(frame)
        return True

    def take(self) -> Waiting:
        """What has waited longest: as much as one turn stores."""
        frames, inside = self._waiting
        if len(frames) <= TURN_FRAMES:
            self._waiting, self._bytes = Waiting([], set()), 0
            return Waiting(frames, inside)
        taken, left = frames[:TURN_FRAMES], frames[TURN_FRAMES:]
        self._waiting = Waiting(left, {number - TURN_FRAMES for number in inside if number >= TURN_FRAMES})
        self._bytes -= sum(map(len, taken))
        return Waiting(taken, {number for number in inside if number < TURN_FRAMES})
