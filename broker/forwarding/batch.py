"""What one walk of a kernel leaves behind: runs at the sinks, counts, the link's own frames."""

from __future__ import annotations

from broker.errors import PeerError
from broker.forwarding.way import Buffer, Sink

CARE_MAX = 64  # frames of one walk that are taken care of one by one, some 5 us each; the others are for another walk


class PassResult:
    """
    What one walk leaves behind.

    Shape: `consumed` bytes of whole frames; `received` dialog frames by kind; `touched` sinks that have runs, each
    once; `link_frames` copies of whole link frames in order; `error` set when what follows `consumed` breaks the
    protocol; `care_left` frames that may still take the careful path, behind which the walk ends.
    """

    __slots__ = ("care_left", "consumed", "error", "link_frames", "received", "touched")

    def __init__(self) -> None:
        self.consumed = 0
        self.care_left = CARE_MAX
        self.received: dict[int, int] = {}
        self.touched: list[Sink] = []
        self.link_frames: list[bytes] = []
        self.error: PeerError | None = None

    def gather(self, sink: Sink, run: Buffer) -> None:
        """Add a run of whole frames to a sink."""
        if not sink.runs:
            self.touched.append(sink)
        sink.runs.append(run)

    def close(self, consumed: int, kind: int, frames: int) -> PassResult:
        """The walk ends here; `frames` of `kind` are not counted yet."""
        self.consumed = consumed
        self.count(kind, frames)
        return self

    def count(self, kind: int, frames: int) -> None:
        """Count frames of a kind."""
        if frames:
            self.received[kind] = self.received.get(kind, 0) + frames
