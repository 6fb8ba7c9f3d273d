"""The two sinks of the pass that are no next hop: a database of this instance, and the drop."""

from __future__ import annotations

from typing import Protocol

from broker.flow import Disposition
from broker.forwarding.way import Buffer, Origin, WayOf, frame_bounds


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

    __slots__ = ("_database", "_deliver", "runs")

    def __init__(self, database: bytes, deliver: Deliver) -> None:
        self.runs: list[Buffer] = []
        self._database = database
        self._deliver = deliver

    def flush(self, _now: float, origin: Origin, _way_of: WayOf) -> None:
        """Copy the frames out of the slab and deliver them."""
        frames = [bytes(run[start:stop]) for run in self.runs for start, stop in frame_bounds(run)]
        self.runs.clear()
        self._deliver(self._database, frames, origin)


class DropSink:
    """Frames that end here for one reason."""

    __slots__ = ("_disposition", "_drop", "runs")

    def __init__(self, disposition: Disposition, drop: Drop) -> None:
        self.runs: list[Buffer] = []
        self._disposition = disposition
        self._drop = drop

    def flush(self, _now: float, origin: Origin, _way_of: WayOf) -> None:
        """Count each frame and advise its origin."""
        for run in self.runs:
            for start, stop in frame_bounds(run):
                self._drop(run[start:stop], self._disposition, origin)
        self.runs.clear()
