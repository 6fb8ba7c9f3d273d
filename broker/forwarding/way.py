"""
A decision as the pass uses it: where frames of one kind and route go, and how many went.

A `Way` is what the route cache holds; all route keys that take one route to one place share one `Way`. The kernel
gathers a batch's runs in `pieces`; its `sink` then takes them. There are three sinks: an outbox (a next hop), a
database of this instance, and the drop under one disposition. The two ports of the pass are declared here as well:
`Origin`, where frames come from, and `Outlet`, where they leave.
"""

from __future__ import annotations

from typing import Protocol

from broker.flow import Disposition
from broker.wire.layout import PRELUDE

Buffer = bytes | bytearray | memoryview


class Origin(Protocol):
    """Where frames of a batch came from: a link, or a database of this instance."""

    def reject(self, frame: Buffer, disposition: Disposition) -> None:
        """Advise the sender that this frame was not taken; may do nothing, and must not fail."""


class Outlet(Protocol):
    """
    Where frames leave: an open link.

    Shape: `max_frame` bytes, what the peer announced; `is_narrow` when that is less than this instance announces, so
    that a frame may have to be dropped for its size.
    """

    max_frame: int
    is_narrow: bool

    @property
    def can_send(self) -> bool:
        """Whether `send` may be called now: open, not draining, and no cut frame waits to be finished."""

    def send(self, data: Buffer) -> int:
        """Hand over whole frames; how many bytes were taken at once. Copies nothing, keeps nothing."""

    def finish(self, rest: Buffer) -> None:
        """Keep the end of a frame that `send` cut; it leaves before anything else."""


class Sink(Protocol):
    """Where the ways of one batch lead; flushed once, when the batch has been walked."""

    ways: list[Way]

    def flush(self, now: float, origin: Origin) -> None:
        """Take the pieces of `ways`: write, deliver or count them; afterwards all of them are empty."""


class Way:
    """
    One destination of the pass. The kernel gathers, the sink takes; nobody else changes it.

    Shape: `pieces` runs of whole frames of this batch, valid until it ends; `gathered` frames in them; `frames` taken
    by the sink for good since the start; `kind` of the frames; `route` its name, empty where none decided.
    """

    __slots__ = ("disposition", "frames", "gathered", "kind", "pieces", "route", "sink")

    def __init__(self, sink: Sink, disposition: Disposition, *, kind: int, route: str = "") -> None:
        self.sink = sink
        self.disposition = disposition
        self.kind = kind
        self.route = route
        self.pieces: list[Buffer] = []
        self.gathered = 0
        self.frames = 0

    def clear(self) -> None:
        """Forget this batch."""
        self.pieces.clear()
        self.gathered = 0


def frame_bounds(run: Buffer) -> list[tuple[int, int]]:
    """Start and stop of every frame in a run of whole frames."""
    bounds = []
    start, end = 0, len(run)
    while start < end:
        stop = start + PRELUDE.unpack_from(run, start)[0]
        bounds.append((start, stop))
        start = stop
    return bounds
