"""The two sinks of the pass that are no next hop: a database of this instance, and the drop."""

from __future__ import annotations

from typing import Protocol

from broker.flow import Disposition
from broker.forwarding.ring import Ring
from broker.forwarding.way import Buffer, FrameOrigin, WayOf, frame_bounds


class Deliver(Protocol):
    """The port to the dialogs: whole frames for one database, in the order in which they arrived."""

    def __call__(self, database: bytes, frames: list[bytes], origin: FrameOrigin) -> None:
        """Take them; must not fail and must not block."""


class Drop(Protocol):
    """Count one dropped frame under its disposition and advise where it came from, when that is known."""

    def __call__(self, frame: Buffer, disposition: Disposition, origin: FrameOrigin | None) -> None:
        """Must not fail."""


class DatabaseSink:
    """Frames for a database of this instance, by its broker instance."""

    __slots__ = ("_database", "_deliver", "_drop", "_ring", "runs")

    def __init__(self, database: bytes, deliver: Deliver, drop: Drop, ring: Ring | None = None) -> None:
        self.runs: list[Buffer] = []
        self._database = database
        self._deliver = deliver
        self._drop = drop
        self._ring = ring

    def flush(self, _now: float, origin: FrameOrigin, _way_of: WayOf) -> None:
        """Copy the frames out of the slab and deliver them."""
        frames = [bytes(run[start:stop]) for run in self.runs for start, stop in frame_bounds(run)]
        self._deliver(self._database, frames, origin)
        self.runs.clear()

    def recover(self, now: float, origin: FrameOrigin, way_of: WayOf) -> None:
        """They could not be delivered: none of them counts as if it had been."""
        for run in self.runs:
            for start, stop in frame_bounds(run):
                frame, way = run[start:stop], way_of(run[start:stop])
                way.frames -= 1
                if self._ring is not None:
                    self._ring.refuse(frame, way, Disposition.STORE_FAILED, self._ring.take_back(frame), now)
                self._drop(frame, Disposition.STORE_FAILED, origin)
        self.runs.clear()


class DropSink:
    """Frames that end here for one reason."""

    __slots__ = ("_disposition", "_drop", "runs")

    def __init__(self, disposition: Disposition, drop: Drop) -> None:
        self.runs: list[Buffer] = []
        self._disposition = disposition
        self._drop = drop

    def flush(self, _now: float, origin: FrameOrigin, _way_of: WayOf) -> None:
        """Count each frame and advise its origin."""
        for run in self.runs:
            for start, stop in frame_bounds(run):
                self._drop(run[start:stop], self._disposition, origin)
        self.runs.clear()

    def recover(self, _now: float, _origin: FrameOrigin, _way_of: WayOf) -> None:
        """Nothing is left to do; counting cannot fail."""
        self.runs.clear()
