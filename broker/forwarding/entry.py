"""
A decision as the pass uses it: where frames of one kind and route go, and how many went.

A `Way` is what the route cache holds; all route keys that take one route to one place share one. A batch's runs are
gathered at the way's `sink`, in the order of arrival whatever way they take, so that messages, acknowledgements and
faults of a dialog stay in order. There are three sinks: an outbox (a next hop), a database of this instance, and the
drop. The two ports of the pass are declared here as well: `Origin`, where frames come from, and `Outlet`, where they
leave; and `Arrival`, with `Queued`, what is remembered of the former.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from broker.errors import PeerError
from broker.flow import Disposition
from broker.protocol.frame import Rejected
from broker.protocol.layout import CONVERSATION_AT, FRAGMENT_AT, MESSAGE_ID_AT, PLACE_END, PRELUDE, SEQUENCE_AT

Buffer = bytes | bytearray | memoryview


class FrameOrigin(Protocol):
    """
    Where frames of a batch came from: a link, or a database of this instance.

    Shape: `received` frames by kind that came from here; counted by the forwarder.
    """

    received: Counter[int]

    def reject(self, frame: Buffer, disposition: Disposition) -> None:
        """Advise the sender that this frame was not taken; may do nothing, and must not fail."""


def rejected(frame: Buffer, disposition: Disposition) -> Rejected:
    """What the sender of a dialog frame is advised."""
    return Rejected(
        message=bytes(frame[MESSAGE_ID_AT:CONVERSATION_AT]),
        conversation=bytes(frame[CONVERSATION_AT:SEQUENCE_AT]),
        sequence=int.from_bytes(frame[SEQUENCE_AT:FRAGMENT_AT], "big"),
        fragment=int.from_bytes(frame[FRAGMENT_AT:PLACE_END], "big"),
        code=disposition.number,
        reason=disposition.value,
    )


class UnknownOrigin:
    """The origin of frames that waited here: where they came from is not kept, so nobody is advised."""

    def __init__(self) -> None:
        self.received: Counter[int] = Counter()

    def reject(self, _frame: Buffer, _disposition: Disposition) -> None:
        """Its sender has it and sends it again."""


class Queued(NamedTuple):
    """
    What a database here tells of a frame that it sends.

    Shape: `enqueued_at` UTC seconds since 1970 at which its message was put in the queue; `is_resend` whether its
    fragment was sent before; `trace_parent` the application's own span where its trace is sampled, as W3C writes it.
    """

    enqueued_at: float
    is_resend: bool
    trace_parent: str = ""


QueuedById = Mapping[bytes, Queued]
"""By message_id."""

UNTOLD: QueuedById = {}
"""Of frames about which nobody tells anything."""


class PassOrigin(NamedTuple):
    """
    When and from where the frames of one pass came.

    Shape: `entered` monotonic seconds; `adjacent_in` the instance or address that sent them, or the name of the
    database here, "" where that is unknown; `is_from_here` whether a database here sent them: such frames have spent no
    hop; `queued` by message_id, of those that waited in a queue and are followed; `trace_parent` of what a database
    here tells of one message, as in `Queued`.
    """

    entered: float
    adjacent_in: str
    is_from_here: bool
    queued: QueuedById = UNTOLD
    trace_parent: str = ""

    @property
    def hops(self) -> int:
        """What the pass added to their hop count."""
        return 0 if self.is_from_here else 1


class Outlet(Protocol):
    """
    Where frames leave: an open link.

    Shape: `max_frame` bytes, what the peer announced; `is_narrow` when that is less than this instance takes, so
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
    """
    Where the frames of a batch end up; flushed once, when the batch has been walked.

    Shape: `runs` of whole frames in the order of arrival, valid until the batch ends.
    """

    runs: list[Buffer]

    def flush(self, now: float, origin: FrameOrigin, way_of: WayOf) -> None:
        """Take `runs`: write, deliver or count them; afterwards there are none. `recover` follows when this fails."""

    def recover(self, now: float, origin: FrameOrigin, way_of: WayOf) -> None:
        """Be as if the frames of `runs` had not left: hold or drop and count them; afterwards there are none."""


class ForwardingEntry:
    """
    What the route cache holds: a sink, and the route that led to it.

    Shape: `disposition` what becomes of a frame that takes it; `frames` of this `kind` that took it for good: one that
    has to wait is taken back until it leaves; `route` its name, empty where none decided; `choices` by conversation id
    where that has a say, else None: such a way only stands for its route key, its sink is never used.
    """

    __slots__ = ("choices", "disposition", "frames", "kind", "route", "sink")

    def __init__(self, sink: Sink, disposition: Disposition, *, kind: int, route: str = "") -> None:
        self.sink = sink
        self.disposition = disposition
        self.kind = kind
        self.route = route
        self.frames = 0
        self.choices: dict[bytes, ForwardingEntry] | None = None


Report = Callable[[Outlet | None, Exception], None]
"""
Something failed that must not; `Outlet` where it was one. The pass has gone on without: nothing more is given to that
outlet, which is to be closed, though not in this call. Must not fail.
"""


def surface(_outlet: Outlet | None, error: Exception) -> None:
    """Where there is nobody to tell: whoever called has to know."""
    raise error


WayOf = Callable[[Buffer], ForwardingEntry]
"""The way that a frame of this batch took; asked only for frames that have to wait."""


def frame_bounds(run: Buffer) -> list[tuple[int, int]]:
    """Start and stop of every frame in a run of whole frames."""
    bounds = []
    start, end = 0, len(run)
    while start < end:
        stop = start + PRELUDE.unpack_from(run, start)[0]
        bounds.append((start, stop))
        start = stop
    return bounds


# --- batch ---
# What one walk of a kernel leaves behind: runs at the sinks, counts, the link's own frames.


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
