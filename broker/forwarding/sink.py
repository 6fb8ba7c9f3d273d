"""The two sinks of the pass that are no next hop: a database of this instance, and the drop."""

from __future__ import annotations

from typing import Protocol

from broker.flow import Disposition
from broker.forwarding.way import Buffer, Origin, Way, frame_bounds


class Deliver(Protocol):
    """The port to the dialogs: whole frames for one database, in the order in which they arrived."""

    def __call__(self, database: bytes, frames: list[bytes], origin: Origin) -> None:
        """Take them; must not fail and must not block."""


class Drop(Protocol):
    """Count one dropped frame under its disposition and advise where it came from, when that is known."""

    def __call__(self, frame: Buffer, disposition: Disposition, origin: Origin | None) -> None:
        """Must not fail."""


class DatabaseSink:
    """Frames for a database of this instance, by its broker instance."""

    __slots__ = ("_database", "_deliver", "ways")

    def __init__(self, database: bytes, deliver: Deliver) -> None:
        self.ways: list[Way] = []
        self._database = database
        self._deliver = deliver

    def flush(self, _now: float, origin: Origin) -> None:
        """Copy the frames out of the slab and deliver them."""
        frames = []
        for way in self.ways:
            for run in way.pieces:
                frames += [bytes(run[start:stop]) for start, stop in frame_bounds(run)]
            way.frames += way.gathered
            way.clear()
        self.ways.clear()
        self._deliver(self._database, frames, origin)


class DropSink:
    """Frames that end here; the disposition is the way's."""

    __slots__ = ("_drop", "ways")

    def __init__(self, drop: Drop) -> None:
        self.ways: list[Way] = []
        self._drop = drop

    def flush(self, _now: float, origin: Origin) -> None:
        """Count each frame and advise its origin."""
        for way in self.ways:
            for run in way.pieces:
                for start, stop in frame_bounds(run):
                    self._drop(run[start:stop], way.disposition, origin)
            way.clear()
        self.ways.clear()
